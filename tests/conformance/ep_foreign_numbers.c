/* SPDX-License-Identifier: BSD-2-Clause */
/* A number that the program did not open is EBADF to epoll_ctl, whoever else may have it. */
#include "conf.h"

#define NUMBERS 66000

static bool open_before[NUMBERS];

static void each(int a, int b)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int ep = conf_epoll();

	conf_ep_add(ep, b, EPOLLIN);
	for (int fd = ep + 1; fd < NUMBERS; fd++) {
		if (open_before[fd] || fd == a || fd == b)
			continue;
		conf_note("number %d", fd);
		CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), EBADF);
		CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev), EBADF);
		CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL), EBADF);
	}
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_OK(close(ep));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	for (int fd = 0; fd < NUMBERS; fd++)
		open_before[fd] = fcntl(fd, F_GETFD) >= 0;
	conf_each_role(each);
}

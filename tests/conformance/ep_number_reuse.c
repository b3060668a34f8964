/* SPDX-License-Identifier: BSD-2-Clause */
/* A number in the set is closed and reused by another stream: the old item is gone, ADD of the new one is fresh. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), fd[2];

	conf_ep_add(ep, b, EPOLLIN | EPOLLOUT | EPOLLET);
	CONF_EP_EXPECT(ep, b, EPOLLOUT);
	conf_write_all(a, "old", 3);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT);
	CONF_OK(close(b));
	conf_pair(fd);
	if (fd[0] == b)
		fd[0] = (int)CONF_OK(fcntl(b, F_DUPFD, b + 1));
	if (fd[1] != b) {
		CONF_EQ(dup2(fd[1], b), b);
		CONF_OK(close(fd[1]));
	}
	CONF_EP_QUIET(ep);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, b, &(struct epoll_event){0}), ENOENT);
	conf_ep_add(ep, b, EPOLLIN);
	CONF_EP_QUIET(ep);
	conf_write_all(fd[0], "new", 3);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_drain(b, 3);
	CONF_EP_QUIET(ep);
	conf_close2(fd[0], b);
	conf_close2(a, ep);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

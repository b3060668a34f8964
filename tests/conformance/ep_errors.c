/* SPDX-License-Identifier: BSD-2-Clause */
/* Bad arguments to epoll_create, epoll_ctl and epoll_wait: the kernel's errnos, with carried descriptors in the set. */
#include "conf.h"

static void ctl(int ep, int a, int b)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int file = (int)CONF_OK(open("/etc/passwd", O_RDONLY)), dead = (int)CONF_OK(dup(a));

	CONF_OK(close(dead));
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev), EEXIST);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, a, &ev), ENOENT);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, a, &ev), ENOENT);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, dead, &ev), EBADF);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, -1, &ev), EBADF);
	CONF_ERR(epoll_ctl(-1, EPOLL_CTL_ADD, a, &ev), EBADF);
	CONF_ERR(epoll_ctl(dead, EPOLL_CTL_ADD, a, &ev), EBADF);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &ev), EINVAL);
	CONF_ERR(epoll_ctl(a, EPOLL_CTL_ADD, b, &ev), EINVAL);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, file, &ev), EPERM);
	CONF_ERR(epoll_ctl(ep, 99, a, &ev), EINVAL);
	CONF_ERR(epoll_ctl(ep, 99, b, &ev), EINVAL);
	CONF_OK(close(file));
}

static void each(int a, int b)
{
	volatile int minus = -1, huge = INT32_MAX; /* gcc would warn of constants */
	struct epoll_event ev;
	struct timespec bad = {.tv_nsec = -1};
	int ep = conf_epoll(), p[2];

	CONF_OK(pipe(p));
	conf_ep_add(ep, b, EPOLLIN);
	ctl(ep, a, b);
	CONF_ERR(epoll_wait(ep, &ev, 0, 0), EINVAL);
	CONF_ERR(epoll_wait(ep, &ev, minus, 0), EINVAL);
	CONF_ERR(epoll_wait(-1, &ev, 1, 0), EBADF);
	CONF_ERR(epoll_wait(p[0], &ev, 1, 0), EINVAL);
	CONF_ERR(epoll_wait(b, &ev, 1, 0), EINVAL);
	CONF_ERR(epoll_wait(ep, &ev, huge, 0), EINVAL);
	CONF_ERR(epoll_pwait2(ep, &ev, 1, &bad, NULL), EINVAL);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
	CONF_OK(close(ep));
	CONF_ERR(epoll_wait(ep, &ev, 1, 0), EBADF);
}

CONF_TEST(0)
{
	volatile int zero = 0, minus = -1;
	int ep;

	CONF_ERR(epoll_create(zero), EINVAL);
	CONF_ERR(epoll_create(minus), EINVAL);
	CONF_ERR(epoll_create1(1), EINVAL);
	ep = (int)CONF_OK(epoll_create(1));
	CONF_EQ(fcntl(ep, F_GETFD), 0);
	CONF_OK(close(ep));
	ep = (int)CONF_OK(epoll_create1(EPOLL_CLOEXEC));
	CONF_EQ(fcntl(ep, F_GETFD), FD_CLOEXEC);
	CONF_OK(close(ep));
	conf_each_role(each);
}

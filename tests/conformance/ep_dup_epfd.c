/* SPDX-License-Identifier: BSD-2-Clause */
/* A dup of the epoll descriptor is the same set; it works on after the first number is closed. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), d = (int)CONF_OK(dup(ep)), e;

	conf_ep_add(ep, b, EPOLLIN);
	CONF_ERR(epoll_ctl(d, EPOLL_CTL_ADD, b, &(struct epoll_event){0}), EEXIST);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(d, b, EPOLLIN);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_drain(b, 1);
	CONF_OK(close(ep));
	e = (int)CONF_OK(fcntl(d, F_DUPFD_CLOEXEC, 150));
	CONF_OK(dup2(e, 151));
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(151, b, EPOLLIN);
	CONF_OK(epoll_ctl(e, EPOLL_CTL_DEL, b, NULL));
	CONF_EP_QUIET(d);
	conf_ep_add(d, a, EPOLLOUT);
	CONF_EP_EXPECT(e, a, EPOLLOUT);
	CONF_OK(close(151));
	conf_close2(d, e);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

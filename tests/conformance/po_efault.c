/* SPDX-License-Identifier: BSD-2-Clause */
/* Bad pointers to poll, select, epoll_ctl and epoll_wait: EFAULT, and no event is lost by the failed call. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), max = (a > b ? a : b) + 1;

	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, b, (struct epoll_event *)0x1000), EFAULT);
	conf_ep_add(ep, b, EPOLLIN);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, b, NULL), EFAULT);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_ERR(epoll_wait(ep, (struct epoll_event *)0x1000, 1, 0), EFAULT);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_ERR(poll((struct pollfd *)0x1000, 1, 0), EFAULT);
	CONF_ERR(ppoll((struct pollfd *)0x1000, 1, NULL, NULL), EFAULT);
	CONF_ERR(select(max, (fd_set *)0x1000, NULL, NULL, NULL), EFAULT);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* ADD s, dup s, close s: still reported, DEL of the closed number EBADF, silent after the last close; both numbers can
 * be in one set. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), d = (int)CONF_OK(dup(b));
	struct epoll_event ev[4];

	conf_ep_add(ep, b, EPOLLIN);
	CONF_OK(close(b));
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL), EBADF);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, d, NULL), ENOENT);
	/* The other number is another item of the same set. */
	conf_ep_add(ep, d, EPOLLIN);
	CONF_EQ(epoll_wait(ep, ev, 4, CONF_PATIENCE_MS), 2);
	CONF_TRUE((ev[0].data.fd == b && ev[1].data.fd == d) || (ev[0].data.fd == d && ev[1].data.fd == b));
	/* The number comes back for the same description: the old item is reachable again. */
	CONF_EQ(dup2(d, b), b);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL));
	CONF_EP_EXPECT(ep, d, EPOLLIN);
	CONF_OK(close(b));
	CONF_EP_EXPECT(ep, d, EPOLLIN);
	CONF_OK(close(d));
	CONF_EP_QUIET(ep);
	CONF_OK(close(a));
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

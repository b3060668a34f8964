/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown is news to an edge-triggered member, whatever it waits for: unread bytes are reported once more by a
 * SHUT_WR, and the end by a shutdown that fails with ENOTCONN. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();

	conf_ep_add(ep, a, EPOLLIN | EPOLLET);
	conf_write_all(b, "x", 1);
	CONF_EP_EXPECT(ep, a, EPOLLIN);
	CONF_EP_QUIET(ep);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EP_EXPECT(ep, a, EPOLLIN);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	CONF_EP_EXPECT(ep, a, EPOLLIN | EPOLLHUP);
	CONF_EP_QUIET(ep);
	CONF_ERR(shutdown(a, SHUT_RDWR), ENOTCONN);
	CONF_EP_EXPECT(ep, a, EPOLLIN | EPOLLHUP);
	CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
	conf_close2(a, b);
}

/* The peer's is news to one that waits for OUT alone. */
static void out_alone(int a, int b)
{
	int ep = conf_epoll();

	conf_ep_add(ep, a, EPOLLOUT | EPOLLET);
	CONF_EP_EXPECT(ep, a, EPOLLOUT);
	CONF_EP_QUIET(ep);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_EP_EXPECT(ep, a, EPOLLOUT);
	CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(out_alone);
}

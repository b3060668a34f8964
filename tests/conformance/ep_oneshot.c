/* SPDX-License-Identifier: BSD-2-Clause */
/* One-shot: reported once, then silent for everything (HUP too) until MOD arms it again. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();

	conf_ep_add(ep, b, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
	CONF_EP_QUIET(ep);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_write_all(a, "y", 1);
	CONF_EP_QUIET(ep);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_EP_QUIET(ep);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_EP_QUIET(ep);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLRDHUP | EPOLLHUP);
	CONF_EP_QUIET(ep);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

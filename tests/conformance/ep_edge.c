/* SPDX-License-Identifier: BSD-2-Clause */
/* Edge-triggered: once per arrival, with OUT beside IN; a partial read alone does not fire; MOD reports anew. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();
	char buf[8];

	conf_ep_add(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, b, EPOLLOUT);
	CONF_EP_QUIET(ep);
	conf_write_all(a, "abcd", 4);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT);
	CONF_EP_QUIET(ep);
	conf_read_all(b, buf, 2);
	CONF_EP_QUIET(ep);
	/* New data while old is there. */
	conf_write_all(a, "ef", 2);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT);
	CONF_EP_QUIET(ep);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT);
	CONF_EP_QUIET(ep);
	conf_read_all(b, buf, 4);
	CONF_EP_QUIET(ep);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLET);
	CONF_EP_QUIET(ep);
	conf_write_all(a, "g", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_QUIET(ep);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

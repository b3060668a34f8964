/* SPDX-License-Identifier: BSD-2-Clause */
/* Level-triggered: reported as long as it holds, bits follow the state, a partial read leaves it, an emptying one ends.
 */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();
	char buf[8];

	conf_ep_add(ep, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_QUIET(ep);
	conf_write_all(a, "abcd", 4);
	for (int i = 0; i < 3; i++)
		CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_read_all(b, buf, 2);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_read_all(b, buf, 2);
	CONF_EP_QUIET(ep);
	conf_ep_mod(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EP_EXPECT(ep, b, EPOLLOUT);
	CONF_EP_EXPECT(ep, b, EPOLLOUT);
	conf_write_all(a, "e", 1);
	CONF_STATE(b, POLLIN | POLLOUT);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	conf_read_all(b, buf, 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP);
	conf_ep_mod(ep, b, 0);
	CONF_EP_EXPECT(ep, b, EPOLLHUP);
	conf_close2(a, b);
	CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

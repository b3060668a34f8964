/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer's end is reported to an edge-triggered member once: not again when the peer closes after a shutdown for
 * writing. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();

	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	conf_write_all(b, "x", 1); /* and with it the acknowledgement of the end */
	conf_wait_inq(a, 1);
	conf_drain(a, 1);
	conf_ep_add(ep, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, a, EPOLLOUT);
	CONF_EP_QUIET(ep);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_EP_EXPECT(ep, a, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	CONF_EP_QUIET(ep);
	CONF_OK(close(b));
	for (int i = 0; i < 5; i++)
		CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
	CONF_OK(close(a));
}

/* Nor is a reset. */
static void reset(int a, int b)
{
	int ep = conf_epoll();

	CONF_OK(shutdown(a, SHUT_RDWR));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EQ(send(b, "late", 4, MSG_NOSIGNAL), 4);
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	conf_ep_add(ep, a, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, a, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_OK(close(b));
	for (int i = 0; i < 5; i++)
		CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	conf_each_role(reset);
	conf_each_role(each);
}

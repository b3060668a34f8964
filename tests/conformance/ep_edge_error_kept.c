/* SPDX-License-Identifier: BSD-2-Clause */
/* A read that moves bytes leaves the error behind them for the next call, and that is no news to edge-triggered
 * members. */
#include "conf.h"

#define ALL_OVER (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP)

static char buf[64];
static int flags;

/* b's reset comes behind 4 bytes. */
static void reset(int a, int b)
{
	int ep = conf_epoll();

	conf_write_all(a, "unread", 6);
	conf_wait_inq(b, 6);
	conf_write_all(b, "some", 4);
	conf_wait_inq(a, 4);
	CONF_OK(close(b));
	CONF_STATE(a, ALL_OVER);
	conf_ep_add(ep, a, EPOLLIN | EPOLLRDHUP | EPOLLET);
	CONF_EP_EXPECT(ep, a, ALL_OVER & ~EPOLLOUT);
	CONF_EQ(recv(a, buf, sizeof(buf), flags), 4);
	CONF_EQ(conf_poll1(ep, POLLIN, 0), 0);
	CONF_EP_QUIET(ep);
	CONF_STATE(a, ALL_OVER);
	CONF_ERR(recv(a, buf, 1, 0), ECONNRESET);
	CONF_EQ(recv(a, buf, 1, 0), 0);
	CONF_OK(close(ep));
	CONF_OK(close(a));
}

/* recvmmsg makes the error of a later message the socket's. */
static void later_message(int a, int b)
{
	struct iovec iov[2] = {{buf, 2}, {(void *)1, 2}};
	struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = iov, .msg_iovlen = 1}},
			       {.msg_hdr = {.msg_iov = iov + 1, .msg_iovlen = 1}}};
	int ep = conf_epoll(), err = 0;
	socklen_t len = sizeof(err);

	conf_write_all(b, "some", 4);
	conf_wait_inq(a, 4);
	conf_ep_add(ep, a, EPOLLIN | EPOLLET);
	CONF_EP_EXPECT(ep, a, EPOLLIN);
	CONF_EQ(recvmmsg(a, m, 2, 0, NULL), 1);
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLERR);
	CONF_EQ(conf_poll1(ep, POLLIN, 0), 0);
	CONF_EP_QUIET(ep);
	CONF_OK(getsockopt(a, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, EFAULT);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	static const int ways[] = {0, MSG_WAITALL, MSG_TRUNC, MSG_TRUNC | MSG_WAITALL};

	for (size_t i = 0; i < CONF_ARRAY_SIZE(ways); i++) {
		conf_note("flags %#x", flags = ways[i]);
		conf_each_role(reset);
	}
	conf_note("recvmmsg");
	conf_each_role(later_message);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* ERR is shown only for an error that recv or SO_ERROR takes away; an orderly end never shows ERR. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), err = -1;
	socklen_t len = sizeof(err);
	struct epoll_event ev;

	conf_exchange(a, b);
	conf_ep_add(ep, b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
	CONF_EQ(ev.events & EPOLLERR, 0);
	CONF_OK(getsockopt(b, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, 0);
	CONF_OK(close(a));
	conf_read_eof(b);
	/* The first send meets a closed socket: its reset is an error once. */
	CONF_EQ(send(b, "x", 1, MSG_NOSIGNAL), 1);
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_OK(getsockopt(b, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, EPIPE);
	CONF_STATE(b, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
	CONF_EP_EXPECT(ep, b, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	CONF_OK(close(b));
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

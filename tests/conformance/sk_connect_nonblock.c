/* SPDX-License-Identifier: BSD-2-Clause */
/* Non-blocking connect: EINPROGRESS; poll, epoll and select report OUT when it is done; usable from either end. */
#include "conf.h"

static int begin(int l)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));

	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	return c;
}

static void finish(int l, int c)
{
	int s = (int)CONF_OK(accept(l, NULL, NULL)), err = -1;
	socklen_t len = sizeof(err);

	CONF_OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, 0);
	CONF_STATE(c, POLLOUT);
	conf_exchange(s, c);
	conf_close2(c, s);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 8), c, ep = conf_epoll();
	struct timeval tv = {.tv_sec = CONF_PATIENCE_MS / 1000};
	fd_set w, r;

	c = begin(l);
	CONF_EVENTS(conf_poll1(c, POLLIN | POLLOUT, CONF_PATIENCE_MS), POLLOUT);
	finish(l, c);
	c = begin(l);
	conf_ep_add(ep, c, EPOLLIN | EPOLLOUT | EPOLLET);
	CONF_EP_EXPECT(ep, c, EPOLLOUT);
	finish(l, c);
	c = begin(l);
	FD_ZERO(&w);
	FD_SET(c, &w);
	r = w;
	CONF_EQ(select(c + 1, &r, &w, NULL, &tv), 1);
	CONF_TRUE(FD_ISSET(c, &w) && !FD_ISSET(c, &r));
	finish(l, c);
	/* Not waited for at all: the accept comes first, then the data. */
	c = begin(l);
	finish(l, c);
}

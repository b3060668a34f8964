/* SPDX-License-Identifier: BSD-2-Clause */
/* A listener is silent until somebody connects, then IN for poll, select and epoll, until the last one is accepted. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), lt = conf_epoll(), et = conf_epoll(), c, d, s, t;
	struct timeval tv = {0};
	fd_set r;

	conf_ep_add(lt, l, EPOLLIN);
	conf_ep_add(et, l, EPOLLIN | EPOLLET);
	CONF_EVENTS(conf_poll1(l, POLLIN | POLLOUT | POLLRDHUP, 0), 0);
	CONF_EP_QUIET(lt);
	c = conf_dial(l);
	CONF_EP_EXPECT(lt, l, EPOLLIN);
	CONF_EP_EXPECT(et, l, EPOLLIN);
	CONF_EP_EXPECT(lt, l, EPOLLIN);
	CONF_EP_QUIET(et);
	CONF_EVENTS(conf_poll1(l, POLLIN | POLLOUT, 0), POLLIN);
	FD_ZERO(&r);
	FD_SET(l, &r);
	CONF_EQ(select(l + 1, &r, NULL, NULL, &tv), 1);
	d = conf_dial(l);
	CONF_EP_EXPECT(et, l, EPOLLIN);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EVENTS(conf_poll1(l, POLLIN, 0), POLLIN);
	t = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EVENTS(conf_poll1(l, POLLIN, 0), 0);
	CONF_EP_QUIET(lt);
	CONF_EP_QUIET(et);
	conf_exchange(c, s);
	conf_exchange(d, t);
	conf_close2(c, s);
	conf_close2(d, t);
	CONF_OK(close(l));
	CONF_EP_QUIET(lt);
}

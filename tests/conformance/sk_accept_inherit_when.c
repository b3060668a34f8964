/* SPDX-License-Identifier: BSD-2-Clause */
/* What is inherited from a listener is what it was when the client connected, not when the connection is accepted. */
#include "conf.h"

static int get(int fd, int level, int opt)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CONF_OK(getsockopt(fd, level, opt, &v, &len));
	return v;
}

CONF_TEST(0)
{
	const struct linger rst = {1, 0};
	struct pollfd p = {.events = POLLIN};
	struct linger got;
	int on = 1, off = 0, l = conf_bound(AF_INET), early, late, s;
	socklen_t len = sizeof(got);
	char c;

	CONF_OK(setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	CONF_OK(listen(l, 4));
	early = conf_dial(l);
	p.fd = l;
	CONF_EQ(poll(&p, 1, CONF_PATIENCE_MS), 1);
	CONF_OK(setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off)));
	CONF_OK(setsockopt(l, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
	CONF_OK(setsockopt(l, SOL_SOCKET, SO_LINGER, &rst, sizeof(rst)));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EQ(get(s, IPPROTO_TCP, TCP_NODELAY), 1);
	CONF_EQ(get(s, SOL_SOCKET, SO_KEEPALIVE), 0);
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_LINGER, &got, &len));
	CONF_EQ(got.l_onoff, 0);
	conf_exchange(early, s);
	CONF_OK(close(s));
	CONF_EQ(read(early, &c, 1), 0); /* an end, no reset */
	CONF_OK(close(early));

	late = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EQ(get(s, IPPROTO_TCP, TCP_NODELAY), 0);
	CONF_EQ(get(s, SOL_SOCKET, SO_KEEPALIVE), 1);
	CONF_OK(close(s));
	CONF_ERR(read(late, &c, 1), ECONNRESET);
	CONF_OK(close(late));
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* What is accepted inherits the listener's options: NODELAY, keepalive and its times, linger, timeouts, buffers. */
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
	static const struct {
		int level, opt, value;
	} opts[] = {
	    {IPPROTO_TCP, TCP_NODELAY, 1},    {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 77},
	    {IPPROTO_TCP, TCP_KEEPINTVL, 33}, {IPPROTO_TCP, TCP_KEEPCNT, 4}, {SOL_SOCKET, SO_RCVBUF, 100000},
	    {SOL_SOCKET, SO_SNDBUF, 90000},   {SOL_SOCKET, SO_REUSEADDR, 1}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 12345},
	    {IPPROTO_IP, IP_TTL, 44},         {SOL_SOCKET, SO_OOBINLINE, 1}, {SOL_SOCKET, SO_RCVLOWAT, 2},
	    {IPPROTO_IP, IP_TOS, 0x10},
	};
	struct linger lg = {1, 3}, got;
	int l = conf_bound(AF_INET), c, s;
	socklen_t len = sizeof(got);

	for (size_t i = 0; i < CONF_ARRAY_SIZE(opts); i++)
		CONF_OK(setsockopt(l, opts[i].level, opts[i].opt, &opts[i].value, sizeof(int)));
	CONF_OK(setsockopt(l, SOL_SOCKET, SO_LINGER, &lg, sizeof(lg)));
	CONF_OK(listen(l, 2));
	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	for (size_t i = 0; i < CONF_ARRAY_SIZE(opts); i++) {
		conf_note("level %d option %d", opts[i].level, opts[i].opt);
		CONF_EQ(get(s, opts[i].level, opts[i].opt), get(l, opts[i].level, opts[i].opt));
	}
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_LINGER, &got, &len));
	CONF_EQ(got.l_onoff, 1);
	CONF_EQ(got.l_linger, 3);
	CONF_EQ(get(c, IPPROTO_TCP, TCP_NODELAY), 0);
	conf_exchange(c, s);
	CONF_OK(close(c));
	conf_read_eof(s);
	CONF_OK(close(s));
}

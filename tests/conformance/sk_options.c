/* SPDX-License-Identifier: BSD-2-Clause */
/* Options set before and after connect are answered as TCP answers them; buffers doubled; names of the socket's kind.
 */
#include "conf.h"

static int get(int fd, int level, int opt)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CONF_OK(getsockopt(fd, level, opt, &v, &len));
	return v;
}

static const struct {
	int level, opt, set, want;
} opts[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1, 1},       {SOL_SOCKET, SO_KEEPALIVE, 1, 1},
    {IPPROTO_TCP, TCP_KEEPIDLE, 77, 77},    {IPPROTO_TCP, TCP_KEEPINTVL, 33, 33},
    {IPPROTO_TCP, TCP_KEEPCNT, 4, 4},       {SOL_SOCKET, SO_RCVBUF, 100000, 200000},
    {SOL_SOCKET, SO_SNDBUF, 90000, 180000}, {SOL_SOCKET, SO_REUSEADDR, 1, 1},
    {SOL_SOCKET, SO_PRIORITY, 3, 3},        {IPPROTO_TCP, TCP_USER_TIMEOUT, 12345, 12345},
    {IPPROTO_IP, IP_TTL, 44, 44},           {SOL_SOCKET, SO_OOBINLINE, 1, 1},
    {SOL_SOCKET, SO_BROADCAST, 1, 1},       {SOL_SOCKET, SO_DONTROUTE, 1, 1},
    {IPPROTO_TCP, TCP_QUICKACK, 1, 1},      {IPPROTO_TCP, TCP_SYNCNT, 3, 3},
    {IPPROTO_TCP, TCP_LINGER2, 7, 7},       {SOL_SOCKET, SO_REUSEPORT, 1, 1},
    {SOL_SOCKET, SO_TIMESTAMP, 1, 1},       {IPPROTO_TCP, TCP_CORK, 1, 1},
    {SOL_SOCKET, SO_RCVLOWAT, 1, 1},
};

static void set_all(int fd)
{
	for (size_t i = 0; i < CONF_ARRAY_SIZE(opts); i++) {
		conf_note("set level %d option %d", opts[i].level, opts[i].opt);
		CONF_OK(setsockopt(fd, opts[i].level, opts[i].opt, &opts[i].set, sizeof(int)));
	}
}

static void check_all(int fd)
{
	for (size_t i = 0; i < CONF_ARRAY_SIZE(opts); i++) {
		conf_note("get level %d option %d", opts[i].level, opts[i].opt);
		CONF_EQ(get(fd, opts[i].level, opts[i].opt), opts[i].want);
	}
}

static void kind(int fd)
{
	conf_note("kind");
	CONF_EQ(get(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
	CONF_EQ(get(fd, SOL_SOCKET, SO_DOMAIN), AF_INET);
	CONF_EQ(get(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
	CONF_EQ(get(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
	CONF_EQ(get(fd, SOL_SOCKET, SO_ERROR), 0);
	CONF_GE(get(fd, IPPROTO_TCP, TCP_MAXSEG), 1);
}

static void after(int a, int b)
{
	set_all(a);
	check_all(a);
	kind(a);
	kind(b);
	CONF_EQ(get(b, IPPROTO_TCP, TCP_NODELAY), 0);
	CONF_GE(get(b, SOL_SOCKET, SO_RCVBUF), 1);
	CONF_GE(get(b, SOL_SOCKET, SO_SNDBUF), 1);
	for (int off = 0; off < 1; off++) {
		CONF_OK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &off, sizeof(off)));
		CONF_EQ(get(a, IPPROTO_TCP, TCP_NODELAY), 0);
		CONF_OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
	}
	/* What one socket has been given another may be given as well. */
	set_all(b);
	check_all(b);
	for (int off = 0; off < 1; off++)
		CONF_OK(setsockopt(b, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s, off = 0;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	CONF_EQ(get(l, SOL_SOCKET, SO_ACCEPTCONN), 1);
	set_all(c);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	check_all(c);
	kind(c);
	CONF_OK(setsockopt(c, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
	conf_exchange(c, s);
	conf_close2(c, s);
	conf_each_role(after);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* IP_TOS changes SO_PRIORITY with it, when it is another one than before; the last that was set counts. */
#include "conf.h"

static int value(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof(v);

	CONF_OK(getsockopt(fd, level, name, &v, &len));
	return v;
}

static void set(int fd, int level, int name, int v)
{
	CONF_OK(setsockopt(fd, level, name, &v, sizeof(v)));
}

/* What a socket that never connects says. */
static void both(int fd, int plain, int level, int name, int v)
{
	set(fd, level, name, v);
	set(plain, level, name, v);
	CONF_EQ(value(fd, IPPROTO_IP, IP_TOS), value(plain, IPPROTO_IP, IP_TOS));
	CONF_EQ(value(fd, SOL_SOCKET, SO_PRIORITY), value(plain, SOL_SOCKET, SO_PRIORITY));
}

static void changes(int fd, int plain)
{
	both(fd, plain, IPPROTO_IP, IP_TOS, 8);
	CONF_NE(value(fd, SOL_SOCKET, SO_PRIORITY), 0);
	both(fd, plain, SOL_SOCKET, SO_PRIORITY, 5);
	both(fd, plain, IPPROTO_IP, IP_TOS, 8); /* the same: the priority stays */
	CONF_EQ(value(fd, SOL_SOCKET, SO_PRIORITY), 5);
	both(fd, plain, IPPROTO_IP, IP_TOS, 16);
	both(fd, plain, IPPROTO_IP, IP_TOS, 0);
	both(fd, plain, SOL_SOCKET, SO_PRIORITY, 3);
	both(fd, plain, IPPROTO_IP, IP_TOS, 8);
}

static void each(int a, int b)
{
	int plain = conf_bound(AF_INET);

	conf_exchange(a, b);
	changes(a, plain);
	conf_close2(a, b);
	CONF_OK(close(plain));
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), fd = conf_bound(AF_INET), plain = conf_bound(AF_INET), s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	conf_each_role(each);
	conf_note("set before connect");
	set(fd, IPPROTO_IP, IP_TOS, 8);
	set(plain, IPPROTO_IP, IP_TOS, 8);
	CONF_OK(connect(fd, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(fd, s);
	CONF_EQ(value(fd, SOL_SOCKET, SO_PRIORITY), value(plain, SOL_SOCKET, SO_PRIORITY));
	changes(fd, plain);
	conf_close2(fd, s);
	conf_close2(l, plain);
}

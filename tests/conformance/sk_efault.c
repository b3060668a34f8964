/* SPDX-License-Identifier: BSD-2-Clause */
/* Bad pointers to addresses, lengths and option values: EFAULT. */
#include "conf.h"

static void each(int a, int b)
{
	struct sockaddr_in sin;
	socklen_t len = sizeof(int);
	int v = 1;

	CONF_ERR(setsockopt(a, SOL_SOCKET, SO_KEEPALIVE, (void *)0x1000, sizeof(v)), EFAULT);
	CONF_ERR(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, (void *)0x1000, sizeof(v)), EFAULT);
	CONF_ERR(getsockopt(a, SOL_SOCKET, SO_TYPE, (void *)0x1000, &len), EFAULT);
	CONF_ERR(getsockopt(a, SOL_SOCKET, SO_TYPE, &v, (socklen_t *)0x1000), EFAULT);
	CONF_ERR(getsockname(a, (struct sockaddr *)&sin, (socklen_t *)0x1000), EFAULT);
	len = sizeof(sin);
	CONF_ERR(getpeername(a, (struct sockaddr *)0x1000, &len), EFAULT);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	conf_each_role(each);
	CONF_ERR(connect(c, (struct sockaddr *)0x1000, len), EFAULT);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	/* accept with a bad address takes the connection and loses it, as TCP's does. */
	len = sizeof(ss);
	CONF_ERR(accept(l, (struct sockaddr *)0x1000, &len), EFAULT);
	conf_read_eof(c);
	CONF_OK(close(c));
	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Option calls that fail: unknown ENOPROTOOPT, short EINVAL, bad values, EBADF; short reads are truncated. */
#include "conf.h"

static void each(int a, int b)
{
	int v = 1, one = 1;
	socklen_t len = sizeof(v), bad = (socklen_t)-1;
	unsigned char c = 0xff;

	CONF_ERR(getsockopt(a, SOL_SOCKET, 9999, &v, &len), ENOPROTOOPT);
	CONF_ERR(setsockopt(a, SOL_SOCKET, 9999, &v, sizeof(v)), ENOPROTOOPT);
	CONF_ERR(setsockopt(a, IPPROTO_TCP, 9999, &v, sizeof(v)), ENOPROTOOPT);
	CONF_ERR(getsockopt(a, IPPROTO_TCP, 9999, &v, &len), ENOPROTOOPT);
	CONF_ERR(setsockopt(a, SOL_SOCKET, SO_KEEPALIVE, &v, 2), EINVAL);
	CONF_ERR(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &v, 2), EINVAL);
	CONF_ERR(getsockopt(a, SOL_SOCKET, SO_TYPE, &v, &bad), EINVAL);
	CONF_ERR(setsockopt(a, SOL_SOCKET, SO_TYPE, &v, sizeof(v)), ENOPROTOOPT);
	CONF_ERR(setsockopt(a, SOL_SOCKET, SO_ERROR, &v, sizeof(v)), ENOPROTOOPT);
	v = 0;
	CONF_ERR(setsockopt(a, IPPROTO_TCP, TCP_KEEPIDLE, &v, sizeof(v)), EINVAL);
	v = 40000;
	CONF_ERR(setsockopt(a, IPPROTO_TCP, TCP_KEEPINTVL, &v, sizeof(v)), EINVAL);
	CONF_ERR(setsockopt(-1, IPPROTO_TCP, TCP_NODELAY, &v, sizeof(v)), EBADF);
	CONF_ERR(getsockopt(-1, IPPROTO_TCP, TCP_NODELAY, &v, &len), EBADF);
	CONF_OK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
	len = 1;
	CONF_OK(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &c, &len));
	CONF_EQ(len, 1);
	CONF_EQ(c, 1);
	len = 100;
	v = -1;
	CONF_OK(getsockopt(a, SOL_SOCKET, SO_TYPE, &v, &len));
	CONF_EQ(len, sizeof(int));
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

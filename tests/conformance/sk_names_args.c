/* SPDX-License-Identifier: BSD-2-Clause */
/* The address arguments of getsockname, getpeername and accept: truncated with the true length, EINVAL, EFAULT,
 * ENOTCONN. */
#include "conf.h"

static void each(int a, int b)
{
	struct sockaddr_in sin;
	socklen_t len = 4, bad = (socklen_t)-1;
	int fresh = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));

	memset(&sin, 0xff, sizeof(sin));
	CONF_OK(getpeername(a, (struct sockaddr *)&sin, &len));
	CONF_EQ(len, sizeof(sin));
	CONF_EQ(sin.sin_family, AF_INET);
	CONF_NE(sin.sin_port, 0xffff);
	CONF_EQ(sin.sin_addr.s_addr, 0xffffffff);
	len = 0;
	CONF_OK(getsockname(a, NULL, &len));
	CONF_EQ(len, sizeof(sin));
	CONF_ERR(getsockname(a, (struct sockaddr *)&sin, &bad), EINVAL);
	len = sizeof(sin);
	CONF_ERR(getpeername(fresh, (struct sockaddr *)&sin, &len), ENOTCONN);
	CONF_ERR(getpeername(-1, (struct sockaddr *)&sin, &len), EBADF);
	CONF_OK(close(fresh));
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	struct sockaddr_in sin;
	socklen_t len = 2, bad = (socklen_t)-1;
	int l = conf_listener(AF_INET, 8), c[4], s;

	conf_each_role(each);
	for (int i = 0; i < 4; i++)
		c[i] = conf_dial(l);
	s = (int)CONF_OK(accept(l, (struct sockaddr *)&sin, &len));
	CONF_EQ(len, sizeof(sin));
	CONF_EQ(sin.sin_family, AF_INET);
	conf_exchange(c[0], s);
	/* A bad address loses that connection, as on TCP: the next accept gives the next one. */
	CONF_ERR(accept(l, (struct sockaddr *)&sin, &bad), EINVAL);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c[2], s);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c[3], s);
	CONF_ERR(accept(c[3], NULL, NULL), EINVAL);
	CONF_ERR(accept4(l, NULL, NULL, 0x4000), EINVAL);
	CONF_ERR(accept(-1, NULL, NULL), EBADF);
	CONF_ERR(accept((int)CONF_OK(open("/dev/null", O_RDWR)), NULL, NULL), ENOTSOCK);
}

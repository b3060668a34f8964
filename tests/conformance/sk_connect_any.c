/* SPDX-License-Identifier: BSD-2-Clause */
/* connect to 0.0.0.0 reaches the listener on loopback, and the names then show loopback. */
#include "conf.h"

CONF_TEST(0)
{
	struct sockaddr_in any = {.sin_family = AF_INET}, got;
	socklen_t len = sizeof(got);
	int l = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), c, s;

	CONF_OK(bind(l, (struct sockaddr *)&any, sizeof(any)));
	CONF_OK(listen(l, 1));
	any.sin_port = htons((uint16_t)conf_port(l));
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_OK(connect(c, (struct sockaddr *)&any, sizeof(any)));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_OK(getpeername(c, (struct sockaddr *)&got, &len));
	CONF_EQ(got.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	CONF_OK(getsockname(s, (struct sockaddr *)&got, &len));
	CONF_EQ(got.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	/* The listener itself keeps the any address. */
	CONF_OK(getsockname(l, (struct sockaddr *)&got, &len));
	CONF_EQ(got.sin_addr.s_addr, 0);
	conf_exchange(c, s);
	conf_close2(c, s);
}

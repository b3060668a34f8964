/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket that was bound first connects from that address and port, which nobody else can have meanwhile. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s, other;
	struct sockaddr_in from = {.sin_family = AF_INET}, seen;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss), slen = sizeof(seen);
	int port, on = 1;

	from.sin_addr.s_addr = conf_addr4();
	CONF_OK(bind(c, (struct sockaddr *)&from, sizeof(from)));
	port = conf_port(c);
	CONF_NE(port, 0);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	CONF_EQ(conf_port(c), port);
	s = (int)CONF_OK(accept(l, (struct sockaddr *)&seen, &slen));
	CONF_EQ(ntohs(seen.sin_port), port);
	CONF_EQ(seen.sin_addr.s_addr, from.sin_addr.s_addr);
	conf_exchange(c, s);
	from.sin_port = htons((uint16_t)port);
	other = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_ERR(bind(other, (struct sockaddr *)&from, sizeof(from)), EADDRINUSE);
	conf_close2(s, c);
	CONF_OK(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	CONF_OK(bind(other, (struct sockaddr *)&from, sizeof(from)));
	CONF_OK(close(other));
}

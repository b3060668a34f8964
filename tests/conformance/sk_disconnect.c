/* SPDX-License-Identifier: BSD-2-Clause */
/* connect(AF_UNSPEC) dissolves the connection: the peer sees the end or a reset, and the socket connects anew. */
#include "conf.h"

CONF_TEST(0)
{
	struct sockaddr un = {.sa_family = AF_UNSPEC};
	int l = conf_listener(AF_INET, 2), c = conf_dial(l), s = (int)CONF_OK(accept(l, NULL, NULL));
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	char buf;
	ssize_t k;

	conf_exchange(c, s);
	CONF_OK(connect(c, &un, sizeof(un)));
	CONF_NE(conf_poll1(s, POLLIN, CONF_PATIENCE_MS) & POLLIN, 0);
	k = read(s, &buf, 1);
	CONF_TRUE(k == 0 || (k == -1 && errno == ECONNRESET));
	CONF_OK(close(s));
	CONF_ERR(getpeername(c, (struct sockaddr *)&ss, &(socklen_t){sizeof(ss)}), ENOTCONN);
	conf_name(l, &ss);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);
}

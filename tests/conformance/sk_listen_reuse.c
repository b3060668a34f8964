/* SPDX-License-Identifier: BSD-2-Clause */
/* A listener closed while its connections live: with SO_REUSEADDR the port listens again at once; old ones go on. */
#include "conf.h"

CONF_TEST(0)
{
	struct sockaddr_storage ss;
	int l = conf_bound(AF_INET), one = 1, c, s, c2, s2;
	socklen_t len;

	CONF_OK(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CONF_OK(listen(l, 2));
	for (int i = 0; i < 5; i++) {
		len = conf_name(l, &ss);
		c = conf_dial(l);
		s = (int)CONF_OK(accept(l, NULL, NULL));
		CONF_OK(close(l));
		l = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
		CONF_OK(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
		CONF_OK(bind(l, (struct sockaddr *)&ss, len));
		CONF_OK(listen(l, 2));
		c2 = conf_dial(l);
		s2 = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(c, s);
		conf_exchange(c2, s2);
		conf_close2(c, s);
		conf_close2(c2, s2);
	}
}

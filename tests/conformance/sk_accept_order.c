/* SPDX-License-Identifier: BSD-2-Clause */
/* Several connections that wait are accepted in the order in which they were made, each with its own peer. */
#include "conf.h"

#define N 12

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, N), c[N], s;
	struct sockaddr_in sin;

	for (int i = 0; i < N; i++) {
		c[i] = conf_dial(l);
		conf_write_all(c[i], &i, sizeof(i));
	}
	for (int i = 0; i < N; i++) {
		socklen_t len = sizeof(sin);
		int got = -1;

		s = (int)CONF_OK(accept(l, (struct sockaddr *)&sin, &len));
		conf_read_all(s, &got, sizeof(got));
		CONF_EQ(got, i);
		CONF_EQ(ntohs(sin.sin_port), conf_port(c[i]));
		conf_exchange(c[i], s);
		conf_close2(c[i], s);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A backlog of -1 is as much as the system allows: clients do not wait for accept. */
#include "conf.h"

#define N 6

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, -1), c[N], s;

	for (int i = 0; i < N; i++)
		c[i] = conf_dial(l);
	for (int i = 0; i < N; i++) {
		s = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(c[i], s);
		conf_close2(c[i], s);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* accept sleeps until somebody connects; several threads in accept get one connection each. */
#include "conf.h"

#define N 4

static int listener;

static void *acceptor(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)accept(listener, NULL, NULL);
}

CONF_TEST(0)
{
	struct conf_thread t[N];
	int c[N], s[N];
	char buf[4];

	listener = conf_listener(AF_INET, 8);
	for (int i = 0; i < N; i++) {
		conf_thread_start(&t[i], acceptor, NULL);
		conf_thread_asleep(&t[i]);
	}
	for (int i = 0; i < N; i++) {
		c[i] = conf_dial(listener);
		conf_write_all(c[i], "x", 1);
	}
	for (int i = 0; i < N; i++) {
		s[i] = (int)(intptr_t)conf_thread_join(&t[i]);
		CONF_GE(s[i], 0);
		conf_read_all(s[i], buf, 1);
		for (int j = 0; j < i; j++)
			CONF_NE(s[i], s[j]);
	}
	for (int i = 0; i < N; i++)
		conf_close2(c[i], s[i]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Four threads, each connect, PING, close many times against a poll-less server of threads: all succeed. */
#include "conf.h"

#define THREADS 4
#define ROUNDS  250

static int listener;

static void *client(void *arg)
{
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		int c = conf_dial(listener);
		char buf[4];

		conf_write_all(c, "PING", 4);
		conf_read_all(c, buf, 4);
		CONF_EQ(memcmp(buf, "PONG", 4), 0);
		CONF_OK(close(c));
	}
	return NULL;
}

static void *server(void *arg)
{
	(void)arg;
	for (int i = 0; i < THREADS * ROUNDS / 2; i++) {
		int s = (int)CONF_OK(accept(listener, NULL, NULL));
		char buf[4];

		conf_read_all(s, buf, 4);
		conf_write_all(s, "PONG", 4);
		conf_read_eof(s);
		CONF_OK(close(s));
	}
	return NULL;
}

CONF_TEST(CONF_LONG)
{
	struct conf_thread t[THREADS + 2];

	listener = conf_listener(AF_INET, 64);
	for (int i = 0; i < THREADS + 2; i++)
		conf_thread_start(&t[i], i < THREADS ? client : server, NULL);
	for (int i = 0; i < THREADS + 2; i++)
		conf_thread_join(&t[i]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Connect, PING, close in a tight loop, from one thread: all succeed, and no descriptor is left over. */
#include "conf.h"

#define ROUNDS 1000

static void *server(void *arg)
{
	int l = *(int *)arg;

	for (int i = 0; i < ROUNDS; i++) {
		int s = (int)CONF_OK(accept(l, NULL, NULL));
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
	int l = conf_listener(AF_INET, 16), before = 0;
	struct conf_thread t;

	conf_thread_start(&t, server, &l);
	for (int i = 0; i < ROUNDS; i++) {
		int c = conf_dial(l);
		char buf[4];

		conf_note("round %d", i);
		conf_write_all(c, "PING", 4);
		conf_read_all(c, buf, 4);
		CONF_EQ(memcmp(buf, "PONG", 4), 0);
		CONF_OK(close(c));
		if (i == 10) /* whatever is made once has been made */
			before = conf_count_fds();
	}
	conf_thread_join(&t);
	CONF_UNTIL(conf_count_fds() <= before + 1);
}

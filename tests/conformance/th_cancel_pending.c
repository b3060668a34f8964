/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread that has been cancelled while it was busy ends in its next call or behind it, never half-way: what it held
 * is free, and the connection goes on. */
#include "conf.h"

static int from, to;

static void *reader(void *arg)
{
	char c = 0;

	(void)arg;
	while (c != 'z')
		conf_read_all(to, &c, 1);
	return NULL;
}

static void *sender(void *arg)
{
	char c;

	(void)arg;
	pthread_cancel(pthread_self());
	for (int i = 0; i < 100; i++) {
		send(from, "y", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		recv(from, &c, 1, MSG_DONTWAIT); /* there is nothing: it looks for what has come for others */
	}
	pthread_testcancel();
	return NULL;
}

static void each(int a, int b)
{
	struct conf_thread r, s;

	from = a;
	to = b;
	for (int i = 0; i < 10; i++) {
		conf_thread_start(&r, reader, NULL);
		conf_thread_asleep(&r);
		conf_thread_start(&s, sender, NULL);
		CONF_TRUE(conf_thread_join(&s) == PTHREAD_CANCELED);
		conf_write_all(a, "z", 1);
		conf_thread_join(&r);
	}
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

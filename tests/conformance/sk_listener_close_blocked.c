/* SPDX-License-Identifier: BSD-2-Clause */
/* A bare close of a listener does not wake a thread in accept: it keeps the listener alive and gets the next
 * connection.
 */
#include "conf.h"

static int listener;

static void *acceptor(void *arg)
{
	int r = accept(listener, NULL, NULL);

	(void)arg;
	return (void *)(intptr_t)(r < 0 ? -errno : r);
}

CONF_TEST(0)
{
	struct conf_thread t;
	struct sockaddr_storage ss;
	socklen_t len;
	int c, s;

	listener = conf_listener(AF_INET, 4);
	len = conf_name(listener, &ss);
	conf_thread_start(&t, acceptor, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(listener));
	conf_thread_asleep(&t);
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)(intptr_t)conf_thread_join(&t);
	CONF_GE(s, 0);
	conf_exchange(c, s);
	conf_close2(c, s);
}

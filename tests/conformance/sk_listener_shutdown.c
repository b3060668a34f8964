/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown of a listener: a thread in accept gets EINVAL at once; poll then shows a fresh socket's OUT HUP; a bare
 * close wakes nobody.
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
	conf_thread_start(&t, acceptor, NULL);
	conf_thread_asleep(&t);
	CONF_OK(shutdown(listener, SHUT_RD));
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINVAL);
	CONF_ERR(accept(listener, NULL, NULL), EINVAL);
	CONF_STATE(listener, POLLOUT | POLLHUP);
	/* It may listen again on the same port. */
	CONF_OK(listen(listener, 4));
	c = conf_dial(listener);
	s = (int)CONF_OK(accept(listener, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);

	/* close alone: the thread in accept keeps the listener alive and gets the next connection. */
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

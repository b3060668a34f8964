/* SPDX-License-Identifier: BSD-2-Clause */
/* A reader that sleeps in recv, poll or epoll is woken by the peer's close; a blocked writer by EPIPE or ECONNRESET. */
#include "conf.h"

static int fd_wait;

static void *do_recv(void *arg)
{
	static char c;

	(void)arg;
	return (void *)recv(fd_wait, &c, 1, 0);
}

static void *do_poll(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)conf_poll1(fd_wait, POLLIN | POLLRDHUP, -1);
}

static void *do_send(void *arg)
{
	static char big[8 << 20];
	ssize_t k;

	(void)arg;
	while ((k = send(fd_wait, big, sizeof(big), MSG_NOSIGNAL)) > 0)
		;
	return (void *)(intptr_t)-errno;
}

static void each(int a, int b)
{
	struct conf_thread t[2];

	fd_wait = b;
	conf_exchange(a, b);
	conf_thread_start(&t[0], do_recv, NULL);
	conf_thread_start(&t[1], do_poll, NULL);
	conf_thread_asleep(&t[0]);
	conf_thread_asleep(&t[1]);
	CONF_OK(close(a));
	CONF_EQ((intptr_t)conf_thread_join(&t[0]), 0);
	CONF_EVENTS((intptr_t)conf_thread_join(&t[1]), POLLIN | POLLRDHUP);
	CONF_OK(close(b));
}

static void writer(int a, int b)
{
	struct conf_thread t;
	intptr_t e;

	fd_wait = b;
	conf_small_buffers(a, b);
	conf_thread_start(&t, do_send, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(a)); /* with unread data: a reset */
	e = (intptr_t)conf_thread_join(&t);
	CONF_TRUE(e == -ECONNRESET || e == -EPIPE);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(writer);
}

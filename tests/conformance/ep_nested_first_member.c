/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread sleeps on a set that holds another. A socket that is not ready, the inner set's first, is no news to it. */
#include "conf.h"

static int outer;
static bool known; /* the thread has waited on the set before */

static void *waits(void *arg)
{
	struct epoll_event ev = {.events = 0};

	for (int i = 0; known && i < 3; i++)
		CONF_EQ(epoll_wait(outer, &ev, 1, 0), 0);
	return (void *)(intptr_t)(epoll_wait(outer, &ev, 1, -1) == 1 ? (int)ev.events : -1);
}

static void each(int a, int b)
{
	struct conf_thread t;
	int inner = conf_epoll();

	outer = conf_epoll();
	conf_ep_add(outer, inner, EPOLLIN);
	conf_thread_start(&t, waits, NULL);
	conf_thread_asleep(&t);
	/* What wakes the completion channel. */
	conf_write_all(b, "x", 1);
	conf_ep_add(inner, b, EPOLLIN);
	for (int i = 0; i < 5; i++)
		CONF_EVENTS(conf_poll1(outer, POLLIN, 0), 0);
	conf_thread_asleep(&t); /* fails if it has ended */
	conf_write_all(a, "x", 1);
	CONF_EVENTS((intptr_t)conf_thread_join(&t), EPOLLIN);
	CONF_EVENTS(conf_poll1(outer, POLLIN, 0), POLLIN);
	conf_close2(a, b);
	conf_close2(outer, inner);
}

CONF_TEST(0)
{
	for (int i = 0; i < 12; i++) {
		known = i % 2;
		conf_each_role(each);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread sleeps on one of a set's two numbers, on which it has waited before. The number is closed and given out
 * again; by the other the set gets a socket: the thread reports that, and the number's new set knows nothing of it. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev[4];
	int i;

	(void)arg;
	for (i = 0; i < 3; i++)
		CONF_EQ(epoll_wait(ep, ev, 4, 0), 0);
	CONF_EQ(epoll_wait(ep, ev, 4, -1), 1);
	CONF_EVENTS(ev[0].events, EPOLLIN);
	return (void *)(intptr_t)ev[0].data.u64;
}

static void each(int a, int b)
{
	struct conf_thread t, u;
	int other[2], number, again, i;

	conf_pair(other);
	for (i = 0; i < 4; i++) {
		ep = conf_epoll();
		number = CONF_OK(dup(ep));
		conf_thread_start(&t, waiter, NULL);
		conf_thread_asleep(&t);
		if (i % 2) {
			again = conf_epoll();
			CONF_EQ(dup2(again, ep), ep);
			CONF_OK(close(again));
		} else {
			CONF_OK(close(ep));
			CONF_EQ(conf_epoll(), ep);
		}
		conf_thread_start(&u, waiter, NULL);
		conf_thread_asleep(&u);
		conf_ep_add(number, b, EPOLLIN);
		conf_ep_add(ep, other[1], EPOLLIN);
		conf_write_all(a, "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), b);
		conf_thread_asleep(&u);
		conf_write_all(other[0], "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&u), other[1]);
		conf_drain(b, 1);
		conf_drain(other[1], 1);
		conf_close2(ep, number);
	}
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

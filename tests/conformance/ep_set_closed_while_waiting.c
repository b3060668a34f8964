/* SPDX-License-Identifier: BSD-2-Clause */
/* The number of a set is closed, and given out again, while a thread sleeps in epoll_wait on it: the thread sleeps on,
 * on the set that it named, and is woken by its members. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev[4];
	int n = epoll_wait(ep, ev, 4, -1);

	(void)arg;
	CONF_EQ(n, 1);
	CONF_EVENTS(ev[0].events, EPOLLIN);
	return (void *)(intptr_t)ev[0].data.fd;
}

static void each(int a, int b)
{
	struct conf_thread t;
	int other[2], again;

	conf_pair(other);
	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	conf_thread_start(&t, waiter, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(ep));
	conf_exchange(other[0], other[1]); /* wake-ups, but not for that thread */
	conf_thread_asleep(&t);
	again = conf_epoll();
	CONF_EQ(again, ep);
	conf_ep_add(again, other[1], EPOLLIN);
	conf_write_all(other[0], "x", 1);
	CONF_EP_EXPECT(again, other[1], EPOLLIN);
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), b);
	CONF_OK(close(again));
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread sleeps in epoll_wait on an empty set while connections are busy; the first member is added: the thread
 * reports that one and nothing else. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev[4];
	int n = epoll_wait(ep, ev, 4, -1);

	(void)arg;
	CONF_EQ(n, 1);
	CONF_EVENTS(ev[0].events, EPOLLOUT);
	return (void *)(intptr_t)ev[0].data.fd;
}

static void each(int a, int b)
{
	struct conf_thread t;
	int other[2];

	conf_pair(other);
	for (int i = 0; i < 60; i++) {
		ep = conf_epoll();
		conf_thread_start(&t, waiter, NULL);
		conf_thread_asleep(&t);
		conf_write_all(other[0], "x", 1); /* nobody has looked at it yet */
		conf_ep_add(ep, b, EPOLLOUT);
		CONF_EQ((intptr_t)conf_thread_join(&t), b);
		CONF_OK(close(ep));
		conf_drain(other[1], 1);
	}
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

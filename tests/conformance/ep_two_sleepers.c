/* SPDX-License-Identifier: BSD-2-Clause */
/* Two threads sleep in epoll_wait on one set, with room for one event each. Two members become ready at about the same
 * time: both threads wake, while a third, asleep in poll on the set, wakes or not. */
#include "conf.h"

#define TURNS 20

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;

	(void)arg;
	CONF_EQ(epoll_wait(ep, &ev, 1, -1), 1);
	return (void *)(intptr_t)ev.data.fd;
}

static void *poller(void *arg)
{
	return (void *)(intptr_t)conf_poll1(*(int *)arg, POLLIN, -1);
}

static void each(int a, int b)
{
	struct conf_thread t[2], p;
	int other[2], extra[2];

	conf_pair(other);
	conf_pair(extra);
	for (int i = 0; i < TURNS; i++) {
		ep = conf_epoll();
		if (i % 2) {
			conf_ep_add(ep, b, EPOLLIN | EPOLLONESHOT);
			conf_ep_add(ep, other[1], EPOLLIN | EPOLLONESHOT);
		}
		for (int k = 0; k < 2; k++) {
			conf_thread_start(&t[k], waiter, NULL);
			conf_thread_asleep(&t[k]);
		}
		conf_thread_start(&p, poller, &ep);
		conf_thread_asleep(&p);
		conf_write_all(a, "x", 1);
		conf_write_all(other[0], "x", 1);
		if (!(i % 2)) {
			/* The same with a set that gets its first members meanwhile. */
			conf_ep_add(ep, b, EPOLLIN | EPOLLONESHOT);
			conf_ep_add(ep, other[1], EPOLLIN | EPOLLONESHOT);
		}
		CONF_EQ((intptr_t)conf_thread_join(&t[0]) + (intptr_t)conf_thread_join(&t[1]), b + other[1]);
		conf_drain(b, 1);
		conf_drain(other[1], 1);
		conf_ep_add(ep, extra[0], EPOLLOUT); /* for the third, if it is still there */
		CONF_EVENTS((intptr_t)conf_thread_join(&p), EPOLLIN);
		CONF_OK(close(ep));
	}
	conf_close2(extra[0], extra[1]);
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

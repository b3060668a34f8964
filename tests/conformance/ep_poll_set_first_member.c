/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread sleeps in poll on an empty epoll set (and a socket). The set's first members are added meanwhile: one that
 * is not ready does not make the set ready, whatever else goes on; one that is wakes the thread. */
#include "conf.h"

static int ep, other[2];

static void *waiter(void *arg)
{
	struct pollfd p[2] = {{.fd = ep, .events = POLLIN}, {.fd = other[1], .events = POLLIN}};
	int n = poll(p, arg ? 2 : 1, -1);

	return (void *)(intptr_t)(n < 0 ? -1 : p[0].revents | p[1].revents << 8);
}

static void each(int a, int b)
{
	struct conf_thread t;

	conf_pair(other);
	for (int i = 0; i < 10; i++) {
		ep = conf_epoll();
		conf_thread_start(&t, waiter, &ep);
		conf_thread_asleep(&t);
		conf_ep_add(ep, b, EPOLLIN);
		conf_write_all(other[0], "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), POLLIN << 8);
		conf_drain(other[1], 1);
		CONF_OK(close(ep));

		ep = conf_epoll();
		conf_thread_start(&t, waiter, NULL);
		conf_thread_asleep(&t);
		conf_ep_add(ep, b, EPOLLOUT);
		CONF_EQ((intptr_t)conf_thread_join(&t), POLLIN);
		CONF_OK(close(ep));
	}
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

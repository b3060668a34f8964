/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread sleeps in epoll_wait on an empty or plain set; another ADDs a ready carried descriptor: it wakes. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int n = epoll_wait(ep, &ev, 1, -1);

	(void)arg;
	return (void *)(intptr_t)(n == 1 ? ev.data.fd : -1);
}

static void each(int a, int b)
{
	struct conf_thread t;
	int p[2];

	CONF_OK(pipe(p));
	for (int plain = 0; plain < 2; plain++) {
		ep = conf_epoll();
		if (plain)
			conf_ep_add(ep, p[0], EPOLLIN);
		/* Not ready yet: the data comes after the ADD. */
		conf_thread_start(&t, waiter, NULL);
		conf_thread_asleep(&t);
		conf_ep_add(ep, b, EPOLLIN);
		conf_thread_asleep(&t);
		conf_write_all(a, "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), b);
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL));
		/* Ready already. */
		conf_thread_start(&t, waiter, NULL);
		conf_thread_asleep(&t);
		conf_ep_add(ep, b, EPOLLIN);
		CONF_EQ((intptr_t)conf_thread_join(&t), b);
		conf_drain(b, 1);
		/* A plain one, while the carried one is quiet. */
		if (plain) {
			conf_thread_start(&t, waiter, NULL);
			conf_thread_asleep(&t);
			conf_write_all(p[1], "x", 1);
			CONF_EQ((intptr_t)conf_thread_join(&t), p[0]);
			conf_drain(p[0], 1);
		}
		CONF_OK(close(ep));
	}
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

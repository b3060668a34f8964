/* SPDX-License-Identifier: BSD-2-Clause */
/* One descriptor in several sets: each reports it, each in its own mode; and in two threads that wait at the same time.
 */
#include "conf.h"

static int eps[3];

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int n = epoll_wait(eps[(intptr_t)arg], &ev, 1, CONF_PATIENCE_MS);

	return (void *)(intptr_t)(n == 1 ? (int)ev.events : -1);
}

static void each(int a, int b)
{
	struct conf_thread t[3];

	for (int i = 0; i < 3; i++)
		eps[i] = conf_epoll();
	conf_ep_add(eps[0], b, EPOLLIN);
	conf_ep_add(eps[1], b, EPOLLIN | EPOLLET);
	conf_ep_add(eps[2], b, EPOLLIN | EPOLLONESHOT);
	for (int r = 0; r < 3; r++) {
		for (int i = 0; i < 3; i++) {
			conf_thread_start(&t[i], waiter, (void *)(intptr_t)i);
			conf_thread_asleep(&t[i]);
		}
		conf_write_all(a, "x", 1);
		for (int i = 0; i < 3; i++)
			CONF_EVENTS((intptr_t)conf_thread_join(&t[i]), EPOLLIN);
		CONF_EP_EXPECT(eps[0], b, EPOLLIN);
		CONF_EP_QUIET(eps[1]);
		CONF_EP_QUIET(eps[2]);
		conf_drain(b, 1);
		CONF_EP_QUIET(eps[0]);
		conf_ep_mod(eps[2], b, EPOLLIN | EPOLLONESHOT);
	}
	for (int i = 0; i < 3; i++)
		CONF_OK(close(eps[i]));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

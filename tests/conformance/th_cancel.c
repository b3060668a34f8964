/* SPDX-License-Identifier: BSD-2-Clause */
/* pthread_cancel ends a thread that sleeps in recv, accept, poll or epoll_wait, and leaves nothing locked. */
#include "conf.h"

static int kind, fd_wait, listener, ep;

static void *sleeper(void *arg)
{
	struct pollfd p = {fd_wait, POLLIN, 0};
	struct epoll_event ev;
	char c;

	(void)arg;
	switch (kind) {
	case 0:
		return (void *)read(fd_wait, &c, 1);
	case 1:
		return (void *)recv(fd_wait, &c, 1, 0);
	case 2:
		return (void *)(intptr_t)accept(listener, NULL, NULL);
	case 3:
		return (void *)(intptr_t)poll(&p, 1, -1);
	default:
		return (void *)(intptr_t)epoll_wait(ep, &ev, 1, -1);
	}
}

static void each(int a, int b)
{
	struct conf_thread t;

	conf_exchange(a, b);
	fd_wait = b;
	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	listener = conf_listener(AF_INET, 1);
	for (kind = 0; kind < 5; kind++) {
		conf_note("call %d", kind);
		conf_thread_start(&t, sleeper, NULL);
		conf_thread_asleep(&t);
		CONF_EQ(pthread_cancel(t.thread), 0);
		CONF_TRUE(conf_thread_join(&t) == PTHREAD_CANCELED);
		conf_exchange(a, b);
		CONF_EP_QUIET(ep);
	}
	conf_close2(listener, ep);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

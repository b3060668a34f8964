/* SPDX-License-Identifier: BSD-2-Clause */
/* EPOLLEXCLUSIVE: several sets hold one stream, or one listener; an event wakes at least one sleeper, and is not lost.
 */
#include "conf.h"

#define N 4

static int ep[N], stopper;
static _Atomic int woken;

static void *waiter(void *arg)
{
	struct epoll_event ev;

	CONF_EQ(epoll_wait(ep[(intptr_t)arg], &ev, 1, -1), 1);
	if (ev.data.fd != stopper)
		atomic_fetch_add(&woken, 1);
	return NULL;
}

static void sleepers(int fd, int peer_listener, int writer)
{
	struct conf_thread t[N];
	uint64_t one = 1;
	int c = -1;

	atomic_store(&woken, 0);
	stopper = (int)CONF_OK(eventfd(0, 0));
	for (int i = 0; i < N; i++) {
		ep[i] = conf_epoll();
		conf_ep_add(ep[i], fd, EPOLLIN | EPOLLEXCLUSIVE);
		conf_ep_add(ep[i], stopper, EPOLLIN);
		conf_thread_start(&t[i], waiter, (void *)(intptr_t)i);
		conf_thread_asleep(&t[i]);
	}
	if (writer >= 0)
		conf_write_all(writer, "x", 1);
	else
		c = conf_dial(peer_listener);
	CONF_UNTIL(atomic_load(&woken) >= 1);
	CONF_EQ(write(stopper, &one, sizeof(one)), sizeof(one));
	for (int i = 0; i < N; i++)
		conf_thread_join(&t[i]);
	CONF_LE(atomic_load(&woken), N);
	/* A set that was not woken need not know of it: that is the bargain. */
	for (int i = 0; i < N; i++)
		CONF_OK(close(ep[i]));
	CONF_OK(close(stopper));
	if (c >= 0)
		conf_close2(c, (int)CONF_OK(accept(peer_listener, NULL, NULL)));
}

static void each(int a, int b)
{
	sleepers(b, -1, a);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4);

	conf_each_role(each);
	sleepers(l, l, -1);
}

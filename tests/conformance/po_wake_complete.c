/* SPDX-License-Identifier: BSD-2-Clause */
/* One change makes several things ready that a thread waits for: it wakes when all of them are. */
#include "conf.h"

#define TURNS 40

static int fd, copy, set, outer;

static void *in_poll(void *arg)
{
	struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = set, .events = POLLIN}};

	(void)arg;
	return (void *)(intptr_t)poll(p, 2, -1);
}

static void *in_epoll(void *arg)
{
	struct epoll_event ev[4];

	(void)arg;
	return (void *)(intptr_t)epoll_wait(outer, ev, 4, -1);
}

/* The socket, and a set that holds it. */
static void polled(int a, int b)
{
	struct conf_thread t;

	fd = b;
	for (int i = 0; i < TURNS; i++) {
		conf_note("poll, turn %d", i);
		set = conf_epoll();
		conf_thread_start(&t, in_poll, NULL);
		conf_thread_asleep(&t);
		conf_ep_add(set, b, EPOLLIN); /* after the thread's own watch */
		CONF_OK(shutdown(b, SHUT_RD));
		CONF_EQ((intptr_t)conf_thread_join(&t), 2);
		CONF_OK(close(set));
		conf_close2(a, b);
		if (i + 1 < TURNS) {
			int pair[2];

			conf_pair(pair);
			a = pair[i & 1];
			fd = b = pair[!(i & 1)];
		}
	}
}

/* The socket under two numbers, and a set that holds it, in one set. */
static void waited(int a, int b)
{
	struct conf_thread t;

	for (int i = 0; i < TURNS; i++) {
		conf_note("epoll_wait, turn %d", i);
		outer = conf_epoll();
		set = conf_epoll();
		copy = (int)CONF_OK(dup(b));
		conf_ep_add(outer, b, EPOLLIN | EPOLLET);
		conf_ep_add(outer, copy, EPOLLIN | EPOLLET);
		conf_ep_add(outer, set, EPOLLIN | EPOLLET);
		conf_ep_add(set, b, EPOLLIN);
		conf_thread_start(&t, in_epoll, NULL);
		conf_thread_asleep(&t);
		conf_write_all(a, "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), 3);
		conf_drain(b, 1);
		CONF_OK(close(copy));
		conf_close2(outer, set);
	}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_one_cpu();
	conf_each_role(polled);
	conf_each_role(waited);
}

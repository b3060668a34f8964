/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread that has waited on an empty set before sleeps in it with a time-out. It gets a socket that stays quiet,
 * while others are busy: the wait ends with nothing, and not before its time. */
#include "conf.h"

#define MS (300 * conf_scale())

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int64_t from;
	int i;

	for (i = 0; i < 3; i++)
		CONF_EQ(epoll_wait(ep, &ev, 1, 0), 0);
	from = conf_ns();
	CONF_EQ(arg ? epoll_pwait2(ep, &ev, 1, &(struct timespec){MS / 1000, MS % 1000 * 1000000l}, NULL)
		    : epoll_wait(ep, &ev, 1, MS),
		0);
	return (void *)(intptr_t)(conf_ns() - from);
}

static void each(int a, int b)
{
	struct conf_thread t;
	int other[2], i, k;
	intptr_t ns;

	conf_pair(other);
	for (i = 0; i < 4; i++) {
		ep = conf_epoll();
		conf_thread_start(&t, waiter, i % 2 ? &ep : NULL);
		conf_thread_asleep(&t);
		conf_ep_add(ep, b, EPOLLIN);
		for (k = 0; k < 20; k++) {
			conf_write_all(other[0], "x", 1);
			conf_pause();
			conf_drain(other[1], 1);
		}
		ns = (intptr_t)conf_thread_join(&t);
		CONF_GE(ns, MS * 1000000l - CONF_JIFFY_NS);
		CONF_LE(ns, MS * 1000000l * 8 * conf_scale());
		CONF_OK(close(ep));
	}
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

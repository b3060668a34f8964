/* SPDX-License-Identifier: BSD-2-Clause */
/* MOD changes the mask and the data, takes effect for a thread already waiting, and an unarmed mask hears only HUP. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event *ev = arg;

	return (void *)(intptr_t)epoll_wait(ep, ev, 1, -1);
}

static void each(int a, int b)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0xdeadbeefcafef00dull}, got;
	struct conf_thread t;

	ep = conf_epoll();
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev));
	conf_write_all(a, "x", 1);
	CONF_EQ(epoll_wait(ep, &got, 1, CONF_PATIENCE_MS), 1);
	CONF_EQ(got.data.u64, 0xdeadbeefcafef00dull);
	ev.data.u64 = 77;
	ev.events = 0;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev));
	CONF_EP_QUIET(ep);
	conf_thread_start(&t, waiter, &got);
	conf_thread_asleep(&t);
	ev.events = EPOLLIN;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev));
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	CONF_EQ(got.data.u64, 77);
	CONF_EVENTS(got.events, EPOLLIN);
	conf_drain(b, 1);

	/* Waiting for IN; MOD to OUT fires at once. */
	conf_thread_start(&t, waiter, &got);
	conf_thread_asleep(&t);
	ev.events = EPOLLOUT | EPOLLET;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev));
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	CONF_EVENTS(got.events, EPOLLOUT);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

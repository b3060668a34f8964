/* SPDX-License-Identifier: BSD-2-Clause */
/* A set registered one-shot in another: reported once, then silent to epoll_wait and to poll until it is armed again,
 * whichever of the members makes it ready. */
#include "conf.h"

static int outer, inner, event;

static void *waits(void *arg)
{
	struct epoll_event ev = {.events = 0};

	return (void *)(intptr_t)(epoll_wait(outer, &ev, 1, -1) == 1 ? (int)ev.events : -1);
}

static void silent(void)
{
	CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
	CONF_EP_QUIET(outer);
	CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
	CONF_EVENTS(conf_poll1(inner, POLLIN, 0), POLLIN);
}

static void arm(void)
{
	conf_ep_mod(outer, inner, EPOLLIN | EPOLLONESHOT);
}

static void ready(int a, int b)
{
	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
}

static void each(int a, int b)
{
	struct epoll_event ev = {.events = EPOLLIN};
	struct conf_thread t;
	uint64_t one = 1;

	outer = conf_epoll();
	inner = conf_epoll();
	event = (int)CONF_OK(eventfd(0, EFD_NONBLOCK));
	conf_ep_add(inner, b, EPOLLIN);
	conf_ep_add(inner, event, EPOLLIN);
	conf_ep_add(outer, inner, EPOLLIN | EPOLLONESHOT);
	CONF_EP_QUIET(outer);

	conf_note("a stream, then a descriptor of the kernel's");
	ready(a, b);
	CONF_EP_EXPECT(outer, inner, EPOLLIN);
	silent();
	CONF_OK(write(event, &one, sizeof(one)));
	silent();
	conf_drain(b, 1);
	silent();
	arm();
	CONF_EP_EXPECT(outer, inner, EPOLLIN);
	silent();

	conf_note("a descriptor of the kernel's, then a stream");
	ready(a, b);
	silent();
	CONF_OK(read(event, &one, sizeof(one)));
	silent();
	arm();
	CONF_EP_EXPECT(outer, inner, EPOLLIN);
	silent();
	conf_drain(b, 1);

	conf_note("a thread sleeps");
	CONF_EQ(conf_poll1(inner, POLLIN, 0), 0);
	arm();
	conf_thread_start(&t, waits, NULL);
	conf_thread_asleep(&t);
	ready(a, b);
	CONF_EVENTS((intptr_t)conf_thread_join(&t), EPOLLIN);
	silent();

	conf_note("the registration is still there");
	CONF_ERR(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &ev), EEXIST);
	silent();
	CONF_OK(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
	CONF_ERR(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL), ENOENT);
	CONF_ERR(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &ev), ENOENT);
	conf_ep_add(outer, inner, EPOLLIN);
	CONF_EP_EXPECT(outer, inner, EPOLLIN);
	CONF_EP_EXPECT(outer, inner, EPOLLIN);
	conf_close2(a, b);
	CONF_OK(close(event));
	conf_close2(outer, inner);
}

/* Registered while a thread sleeps on the outer set, which was plain before, and on one that was not. */
static void while_waiting(int a, int b)
{
	struct conf_thread t;

	inner = conf_epoll();
	conf_ep_add(inner, b, EPOLLIN);
	ready(a, b);
	for (int i = 0; i < 60; i++) {
		conf_note("%d", i);
		outer = conf_epoll();
		if (i & 1)
			conf_ep_add(outer, a, 0);
		conf_thread_start(&t, waits, NULL);
		conf_thread_asleep(&t);
		conf_write_all(a, "x", 1); /* what wakes a completion channel */
		conf_ep_add(outer, inner, EPOLLIN | EPOLLET | EPOLLONESHOT);
		CONF_EVENTS((intptr_t)conf_thread_join(&t), EPOLLIN);
		CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
		CONF_OK(close(outer));
	}
	conf_close2(a, b);
	CONF_OK(close(inner));
}

/* A set that becomes readable says IN alone to those that hold it: who asked for RDNORM hears when it is armed. */
static void rdnorm(int a, int b)
{
	outer = conf_epoll();
	inner = conf_epoll();
	conf_ep_add(outer, inner, EPOLLRDNORM);
	conf_ep_add(inner, b, EPOLLIN);
	ready(a, b);
	CONF_EVENTS(conf_poll1(inner, POLLIN, 0), POLLIN);
	CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
	CONF_EP_QUIET(outer);
	conf_ep_mod(outer, inner, EPOLLRDNORM);
	CONF_EP_EXPECT(outer, inner, EPOLLRDNORM);
	/* Whoever looks when it is not ready lets go of it. */
	conf_drain(b, 1);
	CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
	ready(a, b);
	CONF_EVENTS(conf_poll1(inner, POLLIN, 0), POLLIN);
	CONF_EQ(conf_poll1(outer, POLLIN, 0), 0);
	conf_close2(a, b);
	conf_close2(outer, inner);
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(rdnorm);
	conf_each_role(while_waiting);
}

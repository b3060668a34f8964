/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll in epoll in epoll; poll and select on an epoll descriptor: all report IN, until the data is read; sleepers
 * wake. */
#include "conf.h"

static int outer, middle, inner;

static void *in_outer(void *arg)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int n = epoll_wait(outer, &ev, 1, -1);

	(void)arg;
	return (void *)(intptr_t)(n == 1 && ev.data.fd == middle ? (int)ev.events : -1);
}

static void *in_poll(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)conf_poll1(inner, POLLIN | POLLOUT, -1);
}

static void *in_select(void *arg)
{
	fd_set r;

	(void)arg;
	FD_ZERO(&r);
	FD_SET(middle, &r);
	return (void *)(intptr_t)select(middle + 1, &r, NULL, NULL, NULL);
}

static void each(int a, int b)
{
	struct conf_thread t[3];
	void *(*fns[3])(void *) = {in_outer, in_poll, in_select};
	struct epoll_event ev = {.events = EPOLLIN};

	outer = conf_epoll();
	middle = conf_epoll();
	inner = conf_epoll();
	conf_ep_add(outer, middle, EPOLLIN);
	conf_ep_add(middle, inner, EPOLLIN);
	conf_ep_add(inner, b, EPOLLIN);
	CONF_EP_QUIET(outer);
	CONF_EVENTS(conf_poll1(inner, POLLIN, 0), 0);
	for (int i = 0; i < 3; i++) {
		conf_thread_start(&t[i], fns[i], NULL);
		conf_thread_asleep(&t[i]);
	}
	conf_write_all(a, "x", 1);
	CONF_EVENTS((intptr_t)conf_thread_join(&t[0]), EPOLLIN);
	CONF_EVENTS((intptr_t)conf_thread_join(&t[1]), POLLIN);
	CONF_EQ((intptr_t)conf_thread_join(&t[2]), 1);
	CONF_EP_EXPECT(outer, middle, EPOLLIN);
	CONF_EP_EXPECT(middle, inner, EPOLLIN);
	CONF_EP_EXPECT(inner, b, EPOLLIN);
	CONF_EP_EXPECT(outer, middle, EPOLLIN);
	conf_drain(b, 1);
	CONF_EP_QUIET(inner);
	CONF_EP_QUIET(outer);
	CONF_EVENTS(conf_poll1(middle, POLLIN, 0), 0);
	CONF_ERR(epoll_ctl(inner, EPOLL_CTL_ADD, outer, &ev), ELOOP);
	conf_close2(a, b);
	CONF_OK(close(inner));
	conf_close2(outer, middle);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

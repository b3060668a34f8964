/* SPDX-License-Identifier: BSD-2-Clause */
/* Closing a watched stream, or the epoll number itself, under a sleeper does not wake it; its wait ends with an event.
 */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int n = epoll_wait(ep, &ev, 1, -1);

	(void)arg;
	return (void *)(intptr_t)(n == 1 ? ev.data.fd : -1);
}

static void stream_closed(int a, int b)
{
	struct conf_thread t;
	int p[2];

	CONF_OK(pipe(p));
	ep = conf_epoll();
	conf_ep_add(ep, p[0], EPOLLIN);
	conf_ep_add(ep, b, EPOLLIN);
	conf_thread_start(&t, waiter, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	conf_read_eof(a);
	conf_thread_asleep(&t);
	conf_write_all(p[1], "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), p[0]);
	conf_close2(p[0], p[1]);
	CONF_OK(close(a));
	CONF_OK(close(ep));
}

static void set_closed(int a, int b)
{
	struct conf_thread t;

	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	conf_thread_start(&t, waiter, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(ep));
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(stream_closed);
	conf_each_role(set_closed);
}

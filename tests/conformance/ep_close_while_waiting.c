/* SPDX-License-Identifier: BSD-2-Clause */
/* Closing the epoll number, or a watched stream, under a sleeper does not wake it; the wait ends on its time or event.
 */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;

	(void)arg;
	return (void *)(intptr_t)epoll_wait(ep, &ev, 1, 400);
}

static void each(int a, int b)
{
	struct conf_thread t;
	int64_t from = conf_ms();

	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	conf_thread_start(&t, waiter, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	conf_read_eof(a);
	CONF_EQ((intptr_t)conf_thread_join(&t), 0);
	CONF_GE(conf_ms() - from, 400);
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
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(set_closed);
}

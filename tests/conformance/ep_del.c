/* SPDX-License-Identifier: BSD-2-Clause */
/* DEL: silent at once, ENOENT the second time, ADD again works; close of the last number removes it by itself. */
#include "conf.h"

static int ep;

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int n = epoll_wait(ep, &ev, 1, -1);

	(void)arg;
	return (void *)(intptr_t)(n == 1 ? ev.data.fd : -1);
}

static void each(int a, int b)
{
	struct conf_thread t;
	int p[2];

	CONF_OK(pipe(p));
	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL));
	CONF_EP_QUIET(ep);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL), ENOENT);
	conf_ep_add(ep, b, EPOLLIN);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_drain(b, 1);
	/* Removed under a sleeper: what comes afterwards does not wake it. */
	conf_thread_start(&t, waiter, NULL);
	conf_thread_asleep(&t);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL));
	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
	conf_thread_asleep(&t);
	conf_ep_add(ep, p[0], EPOLLIN);
	conf_write_all(p[1], "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), p[0]);
	conf_close2(p[0], p[1]);
	conf_ep_add(ep, b, EPOLLIN);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	CONF_OK(close(b));
	CONF_EP_QUIET(ep);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL), EBADF);
	CONF_OK(close(a));
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Traffic on carried descriptors outside the set, or masked in it, never makes epoll_wait return 0 before its time. */
#include "conf.h"

#define PAIRS 6

static int fd[PAIRS][2];
static _Atomic bool stop;

static void *noise(void *arg)
{
	char c;

	(void)arg;
	for (uint32_t rng = 9; !atomic_load(&stop);) {
		int i = (int)(conf_rand(&rng) % PAIRS);

		conf_write_all(fd[i][0], "n", 1);
		conf_read_all(fd[i][1], &c, 1);
	}
	return NULL;
}

static void each(int a, int b)
{
	int ep = conf_epoll(), p[2];
	struct conf_thread t;
	struct epoll_event ev[4];

	CONF_OK(pipe(p));
	atomic_store(&stop, false);
	for (int i = 0; i < PAIRS; i++) {
		conf_pair(fd[i]);
		if (i < 3)
			conf_ep_add(ep, fd[i][1], i == 1 ? EPOLLPRI | EPOLLET : EPOLLPRI);
	}
	conf_ep_add(ep, b, EPOLLIN);
	conf_ep_add(ep, p[0], EPOLLIN);
	conf_thread_start(&t, noise, NULL);
	for (int i = 0; i < 5; i++) {
		int64_t from = conf_ns();

		CONF_EQ(epoll_wait(ep, ev, 4, 60), 0);
		CONF_GE(conf_ns() - from, 60000000);
		conf_write_all(p[1], "x", 1);
		CONF_EP_EXPECT(ep, p[0], EPOLLIN);
		conf_drain(p[0], 1);
		conf_write_all(a, "x", 1);
		CONF_EP_EXPECT(ep, b, EPOLLIN);
		conf_drain(b, 1);
	}
	atomic_store(&stop, true);
	conf_thread_join(&t);
	for (int i = 0; i < PAIRS; i++)
		conf_close2(fd[i][0], fd[i][1]);
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

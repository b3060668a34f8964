/* SPDX-License-Identifier: BSD-2-Clause */
/* One thread only waits, another only adds, modifies and removes (valkey 8's arrangement): nothing is missed. */
#include "conf.h"

#define ROUNDS 300

static int ep, quit[2];
static _Atomic int seen;

static void *waiter(void *arg)
{
	(void)arg;
	for (;;) {
		struct epoll_event ev;

		CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
		if (ev.data.fd == quit[0])
			return NULL;
		atomic_fetch_add(&seen, 1);
	}
}

CONF_TEST(0)
{
	struct conf_thread t;
	int fd[2];

	ep = conf_epoll();
	CONF_OK(pipe(quit));
	conf_ep_add(ep, quit[0], EPOLLIN);
	conf_thread_start(&t, waiter, NULL);
	conf_pair(fd);
	for (int i = 0; i < ROUNDS; i++) {
		int before = atomic_load(&seen);

		conf_note("round %d", i);
		if (i % 3 == 0)
			conf_write_all(fd[0], "x", 1);
		conf_ep_add(ep, fd[1], EPOLLIN | EPOLLONESHOT);
		if (i % 3 == 1)
			conf_write_all(fd[0], "x", 1);
		if (i % 3 == 2) {
			conf_ep_mod(ep, fd[1], EPOLLOUT | EPOLLONESHOT);
			CONF_UNTIL(atomic_load(&seen) == before + 1);
			conf_write_all(fd[0], "x", 1);
			conf_ep_mod(ep, fd[1], EPOLLIN | EPOLLONESHOT);
			CONF_UNTIL(atomic_load(&seen) == before + 2);
		}
		CONF_UNTIL(atomic_load(&seen) >= before + 1);
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL));
		conf_drain(fd[1], 1);
	}
	conf_write_all(quit[1], "x", 1);
	conf_thread_join(&t);
}

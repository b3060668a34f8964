/* SPDX-License-Identifier: BSD-2-Clause */
/* Several threads wait on one set, level-triggered: data wakes somebody, is read once, all get their turn to end. */
#include "conf.h"

#define THREADS  4
#define PAIRS    8
#define MESSAGES 400

static int ep, fd[PAIRS][2], stopper[2];
static _Atomic int total;

static void *worker(void *arg)
{
	(void)arg;
	for (;;) {
		struct epoll_event ev;
		char buf[64];
		ssize_t k;

		CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
		if (ev.data.fd == stopper[0])
			return NULL;
		k = read(ev.data.fd, buf, sizeof(buf));
		if (k < 0) {
			CONF_EQ(errno, EAGAIN); /* another thread was quicker */
			continue;
		}
		CONF_GE(k, 1);
		atomic_fetch_add(&total, (int)k);
	}
}

CONF_TEST(0)
{
	struct conf_thread t[THREADS];
	uint32_t rng = 1;

	ep = conf_epoll();
	CONF_OK(pipe(stopper));
	for (int i = 0; i < PAIRS; i++) {
		conf_pair(fd[i]);
		conf_nonblock(fd[i][1], true);
		conf_ep_add(ep, fd[i][1], EPOLLIN);
	}
	conf_ep_add(ep, stopper[0], EPOLLIN);
	for (int i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], worker, NULL);
	for (int i = 0; i < MESSAGES; i++) {
		conf_write_all(fd[conf_rand(&rng) % PAIRS][0], "x", 1);
		if (i % 50 == 49)
			CONF_UNTIL(atomic_load(&total) == i + 1);
	}
	CONF_UNTIL(atomic_load(&total) == MESSAGES);
	conf_write_all(stopper[1], "x", 1);
	for (int i = 0; i < THREADS; i++)
		conf_thread_join(&t[i]);
}

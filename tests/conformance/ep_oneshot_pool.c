/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread pool on one set with one-shot items that workers re-arm: every message is answered, none is handled twice.
 */
#include "conf.h"

#define THREADS 4
#define PAIRS   12
#define ROUNDS  150

static int ep, fd[PAIRS][2];
static _Atomic bool stop, busy[PAIRS];

static void *worker(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		struct epoll_event ev = {0};
		char buf[256];
		ssize_t k;
		uint32_t i;

		if (CONF_OK(epoll_wait(ep, &ev, 1, 50)) == 0)
			continue;
		i = ev.data.u32;
		CONF_EQ(atomic_exchange(&busy[i], true), false);
		k = CONF_OK(read(fd[i][1], buf, sizeof(buf)));
		CONF_GE(k, 1);
		conf_write_all(fd[i][1], buf, (size_t)k);
		atomic_store(&busy[i], false);
		ev.events = EPOLLIN | EPOLLONESHOT;
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, fd[i][1], &ev));
	}
	return NULL;
}

CONF_TEST(0)
{
	struct conf_thread t[THREADS];

	ep = conf_epoll();
	for (uint32_t i = 0; i < PAIRS; i++) {
		struct epoll_event ev = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = i};

		conf_pair(fd[i]);
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i][1], &ev));
	}
	for (int i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], worker, NULL);
	for (int r = 0; r < ROUNDS; r++) {
		char out[100], in[100];

		conf_note("round %d", r);
		conf_fill(out, sizeof(out), (uint32_t)r, 0);
		for (int i = 0; i < PAIRS; i++)
			conf_write_all(fd[i][0], out, sizeof(out));
		for (int i = 0; i < PAIRS; i++) {
			conf_read_all(fd[i][0], in, sizeof(in));
			CONF_VERIFY(in, sizeof(in), (uint32_t)r, 0);
		}
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		conf_thread_join(&t[i]);
}

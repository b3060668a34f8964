/* SPDX-License-Identifier: BSD-2-Clause */
/* Several threads wait on one set: a one-shot or edge-triggered event is given to exactly one of them. */
#include "conf.h"

#define THREADS 4
#define ROUNDS  40

static int ep;
static uint32_t mode;
static _Atomic int claims;
static _Atomic bool stop;

static void *worker(void *arg)
{
	struct epoll_event ev[2];

	(void)arg;
	while (!atomic_load(&stop)) {
		int n = (int)CONF_OK(epoll_wait(ep, ev, 2, 20));

		atomic_fetch_add(&claims, n);
	}
	return NULL;
}

static void claim(int a, int b)
{
	struct conf_thread t[THREADS];

	ep = conf_epoll();
	atomic_store(&stop, false);
	atomic_store(&claims, 0);
	conf_ep_add(ep, b, EPOLLIN | mode);
	for (int i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], worker, NULL);
	for (int r = 0; r < ROUNDS; r++) {
		conf_note("mode 0x%x round %d", mode, r);
		conf_write_all(a, "x", 1);
		CONF_UNTIL(atomic_load(&claims) >= r + 1);
		conf_pause(); /* a second claim would come now */
		CONF_EQ(atomic_load(&claims), r + 1);
		conf_drain(b, 1);
		if (mode & EPOLLONESHOT)
			conf_ep_mod(ep, b, EPOLLIN | mode);
		CONF_EQ(atomic_load(&claims), r + 1);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < THREADS; i++)
		conf_thread_join(&t[i]);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	mode = EPOLLONESHOT;
	conf_each_role(claim);
	mode = EPOLLET;
	conf_each_role(claim);
	mode = EPOLLET | EPOLLONESHOT;
	conf_each_role(claim);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Activity elsewhere, or of a kind not asked for, neither ends a wait early nor stretches it. */
#include "conf.h"

static int talk[2];
static _Atomic bool stop;

static void *talker(void *arg)
{
	char c;

	(void)arg;
	while (!atomic_load(&stop)) {
		conf_write_all(talk[0], "x", 1);
		conf_read_all(talk[1], &c, 1);
		conf_pause();
	}
	return NULL;
}

static void each(int a, int b)
{
	struct epoll_event ev;
	struct conf_thread t;
	int ep = conf_epoll();
	int64_t from;

	conf_pair(talk);
	atomic_store(&stop, false);
	conf_ep_add(ep, b, EPOLLIN | EPOLLRDHUP);
	conf_ep_add(ep, talk[1], EPOLLPRI);
	conf_thread_start(&t, talker, NULL);
	for (int i = 0; i < 4; i++) {
		from = conf_ms();
		CONF_EQ(epoll_wait(ep, &ev, 1, 100), 0);
		CONF_GE(conf_ms() - from, 100);
		CONF_LE(conf_ms() - from, 1000);
		from = conf_ms();
		CONF_EVENTS(conf_poll1(b, POLLIN, 100), 0);
		CONF_GE(conf_ms() - from, 100);
		CONF_LE(conf_ms() - from, 1000);
	}
	atomic_store(&stop, true);
	conf_thread_join(&t);
	conf_close2(talk[0], talk[1]);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Fifty idle connections, half of them in a thread's epoll and half in another's poll: no CPU is burnt. */
#include "conf.h"

#include <sys/resource.h>

#define N 50

static int fd[N][2], ep;

static void *in_poll(void *arg)
{
	struct pollfd p[N];

	(void)arg;
	for (int i = 0; i < N; i++)
		p[i] = (struct pollfd){fd[i][1], POLLIN, 0};
	return (void *)(intptr_t)poll(p, N, 2000);
}

static int64_t cpu_us(void)
{
	struct rusage ru;

	CONF_OK(getrusage(RUSAGE_SELF, &ru));
	return (ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1000000LL + ru.ru_utime.tv_usec + ru.ru_stime.tv_usec;
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 64);
	struct epoll_event ev;
	struct conf_thread t;
	int64_t from;

	ep = conf_epoll();
	for (int i = 0; i < N; i++) {
		fd[i][0] = conf_dial(l);
		fd[i][1] = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(fd[i][0], fd[i][1]);
		conf_ep_add(ep, fd[i][0], EPOLLIN);
	}
	from = cpu_us();
	conf_thread_start(&t, in_poll, NULL);
	CONF_EQ(epoll_wait(ep, &ev, 1, 2000), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), 0);
	/* 2 s of wall clock; 3% is far below one spinning thread and above a slow machine's noise. */
	CONF_LE(cpu_us() - from, 60000);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that have waited on a set before sleep in it, and leave it otherwise than by returning: cancelled, ended by a
 * handler, or by a jump out of one. A handler may wait too, on this set or another. The set gets its first socket
 * before or after that: who is still there, and who comes back, reports it, and nobody runs in circles.
 */
#include "conf.h"
#include <setjmp.h>
#include <time.h>

enum way { CANCELLED, ENDED, JUMPS, WAITS, WAITS_ELSEWHERE, WAYS };

static int ep, elsewhere;
static enum way way;
static _Thread_local sigjmp_buf back;

static void handler(int sig)
{
	struct epoll_event ev;

	(void)sig;
	switch (way) {
	case ENDED:
		pthread_exit(NULL);
	case JUMPS:
		siglongjmp(back, 1);
	default:
		epoll_wait(way == WAITS ? ep : elsewhere, &ev, 1, 0);
	}
}

static void *waiter(void *arg)
{
	struct epoll_event ev;
	int i, r;

	(void)arg;
	for (i = 0; i < 3; i++)
		CONF_EQ(epoll_wait(ep, &ev, 1, 0), 0);
	if (!sigsetjmp(back, 1)) {
		r = epoll_wait(ep, &ev, 1, -1);
		CONF_EQ(r, -1);
		CONF_EQ(errno, EINTR);
	}
	for (i = 0; i < 3; i++)
		CONF_EQ(epoll_wait(elsewhere, &ev, 1, 0), 0);
	CONF_EQ(epoll_wait(ep, &ev, 1, -1), 1);
	return (void *)(intptr_t)ev.data.u64;
}

static void *stays(void *arg)
{
	struct epoll_event ev;
	int i;

	(void)arg;
	for (i = 0; i < 3; i++)
		CONF_EQ(epoll_wait(ep, &ev, 1, 0), 0);
	CONF_EQ(epoll_wait(ep, &ev, 1, -1), 1);
	return (void *)(intptr_t)ev.data.u64;
}

static int64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void leave(struct conf_thread *t)
{
	if (way == CANCELLED)
		CONF_EQ(pthread_cancel(t->thread), 0);
	else
		CONF_EQ(pthread_kill(t->thread, SIGUSR1), 0);
	if (way == CANCELLED)
		CONF_TRUE(conf_thread_join(t) == PTHREAD_CANCELED);
	else if (way == ENDED)
		conf_thread_join(t);
	else
		conf_thread_asleep(t);
}

static void one(int a, int b, bool first)
{
	struct conf_thread t, s;
	int64_t cpu, ms;

	ep = conf_epoll();
	elsewhere = conf_epoll();
	conf_thread_start(&t, waiter, NULL);
	conf_thread_start(&s, stays, NULL);
	conf_thread_asleep(&t);
	conf_thread_asleep(&s);
	if (first)
		conf_ep_add(ep, b, EPOLLIN);
	leave(&t);
	if (!first)
		conf_ep_add(ep, b, EPOLLIN);
	conf_thread_asleep(&s);
	cpu = cpu_ns();
	ms = conf_ms();
	CONF_UNTIL(conf_ms() - ms > 30);
	CONF_LE((cpu_ns() - cpu) / 1000000, 20 * conf_scale());
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&s), b);
	if (way > ENDED)
		CONF_EQ((intptr_t)conf_thread_join(&t), b);
	conf_drain(b, 1);
	conf_close2(ep, elsewhere);
}

static void each(int a, int b)
{
	for (way = 0; way < WAYS; way++)
		for (int first = 0; first < 2; first++) {
			conf_note("way %d, the socket %s", way, first ? "first" : "later");
			one(a, b, first);
		}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	struct sigaction sa = {.sa_handler = handler};

	CONF_OK(sigaction(SIGUSR1, &sa, NULL));
	conf_each_role(each);
}

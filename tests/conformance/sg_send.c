/* SPDX-License-Identifier: BSD-2-Clause */
/* A signal during a blocked write: EINTR if nothing went, else the part that did; SA_RESTART goes on. */
#include "conf.h"

#define BIG (8u << 20)

static int fd_wait;
static size_t want;
static char big[BIG];

static void *writer(void *arg)
{
	ssize_t k = write(fd_wait, big, want);

	(void)arg;
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	struct conf_thread t;
	size_t total;
	intptr_t k;

	conf_catch(SIGUSR1, 0);
	conf_small_buffers(a, b);
	fd_wait = a;
	want = BIG;
	conf_thread_start(&t, writer, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	k = (intptr_t)conf_thread_join(&t);
	CONF_GE(k, 1);
	CONF_LE(k, BIG - 1);
	total = (size_t)k + conf_stuff(a);
	want = 4096;
	conf_thread_start(&t, writer, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);

	conf_catch(SIGUSR1, SA_RESTART);
	conf_caught = 0;
	conf_thread_start(&t, writer, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_UNTIL(conf_caught == 1);
	conf_thread_asleep(&t);
	conf_drain(b, total);
	CONF_EQ((intptr_t)conf_thread_join(&t), 4096);
	conf_drain(b, 4096);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

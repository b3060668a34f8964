/* SPDX-License-Identifier: BSD-2-Clause */
/* Two handlers, one with SA_RESTART and one without: each signal has its own effect on a blocking read. */
#include "conf.h"

static int fd_wait;

static void *reader(void *arg)
{
	static char c;
	ssize_t k = read(fd_wait, &c, 1);

	(void)arg;
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	struct conf_thread t;

	fd_wait = b;
	conf_exchange(a, b);
	conf_catch(SIGUSR1, SA_RESTART);
	conf_catch(SIGUSR2, 0);
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	conf_caught = 0;
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_UNTIL(conf_caught == 1);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR2), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

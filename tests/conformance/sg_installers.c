/* SPDX-License-Identifier: BSD-2-Clause */
/* signal() restarts, siginterrupt() and sysv_signal() do not, SIG_IGN disturbs nobody: however a handler came to be. */
#include "conf.h"

static int fd_wait;

static void handler(int sig)
{
	(void)sig;
	atomic_fetch_add(&conf_caught, 1);
}

static void *reader(void *arg)
{
	static char c;
	ssize_t k = read(fd_wait, &c, 1);

	(void)arg;
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void expect(int a, bool restart)
{
	struct conf_thread t;

	conf_caught = 0;
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR2), 0);
	if (restart) {
		CONF_UNTIL(conf_caught == 1);
		conf_thread_asleep(&t);
		conf_write_all(a, "x", 1);
	}
	CONF_EQ((intptr_t)conf_thread_join(&t), restart ? 1 : -EINTR);
	CONF_EQ(conf_caught, 1);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void each(int a, int b)
{
	struct conf_thread t;

	fd_wait = b;
	conf_exchange(a, b);
	CONF_TRUE(signal(SIGUSR2, handler) != SIG_ERR);
	expect(a, true);
	CONF_OK(siginterrupt(SIGUSR2, 1));
	expect(a, false);
	CONF_OK(siginterrupt(SIGUSR2, 0));
	expect(a, true);
	CONF_OK(siginterrupt(SIGUSR2, 1));
	CONF_TRUE(signal(SIGUSR2, handler) != SIG_ERR);
	expect(a, false);
	CONF_OK(siginterrupt(SIGUSR2, 0));
	CONF_TRUE(sysv_signal(SIGUSR2, handler) != SIG_ERR);
	expect(a, false);

	/* Ignored, and default-ignored: the sleeper does not notice. */
	CONF_TRUE(signal(SIGUSR2, SIG_IGN) != SIG_ERR);
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR2), 0);
	CONF_EQ(pthread_kill(t.thread, SIGCHLD), 0);
	CONF_EQ(pthread_kill(t.thread, SIGWINCH), 0);
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

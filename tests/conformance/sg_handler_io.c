/* SPDX-License-Identifier: BSD-2-Clause */
/* A handler that itself writes to a pipe and to a carried socket while the thread sleeps in a read of that socket. */
#include "conf.h"

static int fd_carried, pipe_in;

static void handler(int sig)
{
	int e = errno;

	(void)sig;
	/* write is async-signal-safe on any descriptor. */
	if (write(pipe_in, "p", 1) == 1 && write(fd_carried, "s", 1) == 1)
		atomic_fetch_add(&conf_caught, 1);
	errno = e;
}

static void *reader(void *arg)
{
	static char c;

	(void)arg;
	return (void *)read(fd_carried, &c, 1);
}

static void each(int a, int b)
{
	struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
	struct conf_thread t;
	int p[2];
	char c;

	CONF_OK(pipe(p));
	pipe_in = p[1];
	fd_carried = b;
	conf_caught = 0;
	CONF_OK(sigaction(SIGUSR1, &sa, NULL));
	conf_thread_start(&t, reader, NULL);
	for (int i = 0; i < 5; i++) {
		conf_thread_asleep(&t);
		CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
		CONF_UNTIL(conf_caught == i + 1);
		conf_read_all(p[0], &c, 1);
		conf_read_all(a, &c, 1);
		CONF_EQ(c, 's');
	}
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

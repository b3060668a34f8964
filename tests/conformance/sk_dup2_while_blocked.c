/* SPDX-License-Identifier: BSD-2-Clause */
/* Java: another thread dup2()s a marker over the number a thread is blocked on, then signals it: EINTR, and the peer
 * sees the end. */
#include "conf.h"

static int fd_wait;

static void *do_recv(void *arg)
{
	static char c;
	ssize_t k = recv(fd_wait, &c, 1, 0);

	(void)arg;
	return (void *)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	int marker[2];
	struct conf_thread t;
	char c;

	conf_catch(SIGUSR1, 0);
	conf_exchange(a, b);
	/* As the JDK makes it: one end of a socketpair whose other end is closed. */
	CONF_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, marker));
	CONF_OK(close(marker[1]));
	fd_wait = b;
	conf_thread_start(&t, do_recv, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(dup2(marker[0], b), b);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
	CONF_EQ(read(b, &c, 1), 0);
	conf_read_eof(a);
	CONF_OK(close(marker[0]));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

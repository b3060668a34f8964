/* SPDX-License-Identifier: BSD-2-Clause */
/* With SO_RCVTIMEO a signal is EINTR even under SA_RESTART; with SO_SNDTIMEO likewise for writes. */
#include "conf.h"

static int fd_wait;

static void *reader(void *arg)
{
	static char c;
	ssize_t k = recv(fd_wait, &c, 1, 0);

	(void)arg;
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void *writer(void *arg)
{
	static char c[4096];
	ssize_t k = send(fd_wait, c, sizeof(c), 0);

	(void)arg;
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	struct timeval tv = {20, 0};
	struct conf_thread t;
	size_t total;

	conf_catch(SIGUSR1, SA_RESTART);
	conf_exchange(a, b);
	CONF_OK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	fd_wait = b;
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);

	conf_small_buffers(a, b);
	total = conf_stuff(a);
	CONF_OK(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
	fd_wait = a;
	conf_thread_start(&t, writer, NULL);
	conf_thread_asleep(&t);
	CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
	conf_drain(b, total);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

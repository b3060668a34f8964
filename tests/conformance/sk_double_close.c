/* SPDX-License-Identifier: BSD-2-Clause */
/* An error path that closes twice: EBADF, or, where another has opened meanwhile, that one's number, as in the kernel.
 * Two threads that close one number at the same time: exactly one succeeds, and the stream ends once. */
#include "conf.h"

#define ROUNDS 200

static pthread_barrier_t barrier;
static int victim;
static bool stop;

static void *closer(void *arg)
{
	_Atomic int *closed = arg;

	for (;;) {
		pthread_barrier_wait(&barrier);
		if (stop)
			return NULL;
		if (close(victim) == 0)
			atomic_fetch_add(closed, 1);
		else
			CONF_EQ(errno, EBADF);
		pthread_barrier_wait(&barrier);
	}
}

static void each(int a, int b)
{
	int other;

	CONF_OK(close(a));
	CONF_ERR(close(a), EBADF);
	other = (int)CONF_OK(open("/dev/null", O_RDWR));
	if (other != a) {
		CONF_EQ(dup2(other, a), a);
		CONF_OK(close(other));
	}
	CONF_OK(close(a));
	CONF_ERR(close(a), EBADF);
	conf_read_eof(b);
	CONF_OK(close(b));
	CONF_ERR(close(-1), EBADF);
	CONF_ERR(close(100000), EBADF);
}

CONF_TEST(0)
{
	struct conf_thread t[2];
	_Atomic int closed = 0;
	int fd[2];

	conf_each_role(each);
	CONF_EQ(pthread_barrier_init(&barrier, NULL, 3), 0);
	for (int i = 0; i < 2; i++)
		conf_thread_start(&t[i], closer, &closed);
	for (int i = 0; i < ROUNDS; i++) {
		conf_pair(fd);
		conf_write_all(fd[0], "x", 1);
		victim = fd[0];
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		CONF_EQ(closed, i + 1);
		conf_drain(fd[1], 1);
		conf_read_eof(fd[1]);
		CONF_OK(close(fd[1]));
	}
	stop = true;
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 2; i++)
		conf_thread_join(&t[i]);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads begin to wait on the number of a set that holds a pipe, which they have waited on before, at the moment when
 * dup2() makes it the number of a set with a socket. Each waits on the one set or on the other: it reports that set's
 * member when both have become ready, with the data that it was added with, and nothing else.
 */
#include "conf.h"

#define THREADS 3
#define ROUNDS  8000

static pthread_barrier_t begin, end;
static _Atomic bool stop;
static int number, pipe_fd[2], carried;

static void dawdle(uint32_t *seed)
{
	for (uint32_t n = conf_rand(seed) % 3000; n; n--)
		atomic_signal_fence(memory_order_seq_cst);
}

static void *waiter(void *arg)
{
	uint32_t seed = (uint32_t)(intptr_t)arg;
	struct epoll_event ev[4];
	int i, n;

	for (;;) {
		pthread_barrier_wait(&begin);
		if (atomic_load(&stop))
			return NULL;
		for (i = 0; i < 2; i++)
			CONF_EQ(epoll_wait(number, ev, 4, 0), 0);
		pthread_barrier_wait(&begin);
		dawdle(&seed);
		n = (int)CONF_OK(epoll_wait(number, ev, 4, -1));
		CONF_EQ(n, 1);
		CONF_EVENTS(ev[0].events, EPOLLIN);
		if ((int64_t)ev[0].data.u64 != pipe_fd[0])
			CONF_EQ((int64_t)ev[0].data.u64, carried);
		pthread_barrier_wait(&end);
	}
}

/* Completions, each of which makes every set with a socket look readable for a moment. */
static void *answers(void *arg)
{
	char c;

	while (read(*(int *)arg, &c, 1) == 1)
		conf_write_all(*(int *)arg, &c, 1);
	return NULL;
}

static void *asks(void *arg)
{
	char c = 0;

	while (!atomic_load(&stop)) {
		conf_write_all(*(int *)arg, &c, 1);
		conf_read_all(*(int *)arg, &c, 1);
	}
	return NULL;
}

CONF_TEST(CONF_LONG)
{
	int fd[2], noise[2], plain = conf_epoll(), mixed = conf_epoll(), i;
	struct conf_thread t[THREADS], ask, answer;
	uint32_t seed = 77;

	conf_pair(fd);
	conf_pair(noise);
	carried = fd[1];
	CONF_OK(pipe(pipe_fd));
	number = (int)CONF_OK(dup(plain));
	conf_ep_add(plain, pipe_fd[0], EPOLLIN);
	conf_ep_add(mixed, carried, EPOLLIN);
	CONF_EQ(pthread_barrier_init(&begin, NULL, THREADS + 1), 0);
	CONF_EQ(pthread_barrier_init(&end, NULL, THREADS + 1), 0);
	conf_thread_start(&answer, answers, &noise[1]);
	conf_thread_start(&ask, asks, &noise[0]);
	for (i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], waiter, (void *)(intptr_t)(i + 1));
	for (i = 0; i < ROUNDS; i++) {
		conf_note("round %d", i);
		if (i % 3 == 0) { /* a set that no thread has been taken by surprise in */
			CONF_OK(close(plain));
			plain = conf_epoll();
			conf_ep_add(plain, pipe_fd[0], EPOLLIN);
		}
		if (i % 3 == 1) {
			CONF_OK(close(mixed));
			mixed = conf_epoll();
			conf_ep_add(mixed, carried, EPOLLIN);
		}
		CONF_EQ(dup2(plain, number), number);
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&begin);
		dawdle(&seed);
		CONF_EQ(dup2(mixed, number), number);
		conf_write_all(fd[0], "x", 1);
		conf_write_all(pipe_fd[1], "x", 1);
		pthread_barrier_wait(&end);
		conf_drain(carried, 1);
		conf_drain(pipe_fd[0], 1);
	}
	atomic_store(&stop, true);
	pthread_barrier_wait(&begin);
	for (i = 0; i < THREADS; i++)
		conf_thread_join(&t[i]);
	conf_thread_join(&ask);
	CONF_OK(shutdown(noise[0], SHUT_RDWR));
	conf_thread_join(&answer);
}

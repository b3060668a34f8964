/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Threads that have waited on a set before, when it held nothing but a pipe, sleep in it; then a socket is added. Each
 * of them reports the socket and the pipe as they become ready, with the data that they were added with, and nothing
 * else, by any of the three calls.
 */
#include "conf.h"

#define SLEEPERS 3

static int ep, kind, pipe_fd[2];

static int wait_by(int max, struct epoll_event *ev, int timeout)
{
	struct timespec ts = {timeout / 1000, timeout % 1000 * 1000000};
	sigset_t none;

	sigemptyset(&none);
	switch (kind % 3) {
	case 0:
		return epoll_wait(ep, ev, max, timeout);
	case 1:
		return epoll_pwait(ep, ev, max, timeout, &none);
	default:
		return epoll_pwait2(ep, ev, max, timeout < 0 ? NULL : &ts, NULL);
	}
}

static void *waiter(void *arg)
{
	struct epoll_event ev[4];
	int i;

	(void)arg;
	for (i = 0; i < 3; i++)
		CONF_EQ(wait_by(4, ev, 0), 0);
	memset(ev, 0xff, sizeof(ev));
	CONF_EQ(wait_by(1 + kind % 4, ev, -1), 1);
	CONF_TRUE(ev[0].events == EPOLLIN || ev[0].events == EPOLLOUT);
	return (void *)(intptr_t)ev[0].data.u64;
}

static void each(int a, int b)
{
	struct conf_thread t[SLEEPERS];
	int other[2], i;

	conf_pair(other);
	CONF_OK(pipe(pipe_fd));
	for (kind = 0; kind < 12; kind++) {
		conf_note("way %d", kind);
		ep = conf_epoll();
		conf_ep_add(ep, pipe_fd[0], EPOLLIN);
		for (i = 0; i < SLEEPERS; i++) {
			conf_thread_start(&t[i], waiter, NULL);
			conf_thread_asleep(&t[i]);
		}
		/* A member that is not ready, and noise. */
		conf_ep_add(ep, b, EPOLLIN);
		conf_write_all(other[0], "x", 1);
		conf_drain(other[1], 1);
		for (i = 0; i < SLEEPERS; i++)
			conf_thread_asleep(&t[i]); /* fails if it has ended */
		if (kind % 2) {
			conf_write_all(pipe_fd[1], "x", 1);
			for (i = 0; i < SLEEPERS; i++)
				CONF_EQ((intptr_t)conf_thread_join(&t[i]), pipe_fd[0]);
			CONF_EQ(conf_drain(pipe_fd[0], 1), 1);
		} else if (kind % 4) {
			conf_ep_mod(ep, b, EPOLLOUT);
			for (i = 0; i < SLEEPERS; i++)
				CONF_EQ((intptr_t)conf_thread_join(&t[i]), b);
		} else {
			conf_write_all(a, "x", 1);
			for (i = 0; i < SLEEPERS; i++)
				CONF_EQ((intptr_t)conf_thread_join(&t[i]), b);
			conf_drain(b, 1);
		}
		CONF_OK(close(ep));
	}
	conf_close2(pipe_fd[0], pipe_fd[1]);
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

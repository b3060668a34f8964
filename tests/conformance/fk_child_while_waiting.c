/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads of the parent sleep in recv, poll and epoll_wait on a stream when a child begins to use it: each is woken by
 * what comes afterwards. */
#include "conf.h"

static int fd[2], ep;
static _Atomic int woken;

static void child(void *arg)
{
	(void)arg;
	conf_write_all(fd[1], "hello", 5); /* does not read */
	_exit(0);
}

static void *in_recv(void *arg)
{
	char c;

	CONF_EQ(recv(fd[1], &c, 1, MSG_PEEK), 1);
	woken++;
	return NULL;
}

static void *in_waitall(void *arg)
{
	char c[4];

	CONF_EQ(recv(fd[1], c, 4, MSG_PEEK | MSG_WAITALL), 4);
	woken++;
	return NULL;
}

static void *in_poll(void *arg)
{
	CONF_EVENTS(conf_poll1(fd[1], POLLIN, CONF_PATIENCE_MS), POLLIN);
	woken++;
	return NULL;
}

static void *in_epoll(void *arg)
{
	struct epoll_event ev;

	CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
	CONF_EVENTS(ev.events, EPOLLIN);
	CONF_EQ(ev.data.fd, fd[1]);
	woken++;
	return NULL;
}

/* Half of what it waits for is in the ring already, and goes into the pair with what follows. */
static void half_there(void)
{
	struct conf_thread t;
	char buf[8];

	conf_write_all(fd[0], "wa", 2);
	conf_wait_inq(fd[1], 2);
	conf_thread_start(&t, in_waitall, NULL);
	conf_thread_asleep(&t);
	conf_join(conf_fork(child, NULL));
	conf_read_all(fd[0], buf, 5);
	conf_write_all(fd[0], "ke", 2);
	conf_thread_join(&t);
	conf_read_all(fd[1], buf, 4);
	CONF_EQ(memcmp(buf, "wake", 4), 0);
}

CONF_TEST(0)
{
	void *(*const fn[])(void *) = {in_recv, in_waitall, in_poll, in_epoll};
	struct conf_thread t[CONF_ARRAY_SIZE(fn)];
	char buf[8];

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	ep = conf_epoll();
	conf_ep_add(ep, fd[1], EPOLLIN);
	for (size_t i = 0; i < CONF_ARRAY_SIZE(fn); i++) {
		conf_thread_start(&t[i], fn[i], NULL);
		conf_thread_asleep(&t[i]);
	}
	conf_join(conf_fork(child, NULL));
	conf_read_all(fd[0], buf, 5);
	CONF_EQ(woken, 0);
	conf_write_all(fd[0], "wake", 4);
	for (size_t i = 0; i < CONF_ARRAY_SIZE(fn); i++)
		conf_thread_join(&t[i]);
	conf_read_all(fd[1], buf, 4);
	CONF_EQ(memcmp(buf, "wake", 4), 0);
	conf_close2(fd[0], fd[1]);
	conf_pair(fd);
	half_there();
}

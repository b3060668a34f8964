/* SPDX-License-Identifier: BSD-2-Clause */
/* A child waits for an inherited stream by poll, select and an epoll set of its own; what had come before it looked is
 * there at once. The parent's own waits, begun before and after, go on. */
#include "conf.h"

static int fd[2], ep;

static void with_poll(void *arg)
{
	char buf[4];

	(void)arg;
	CONF_EVENTS(conf_poll1(fd[1], POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
	conf_read_all(fd[1], buf, 4);
	CONF_EVENTS(conf_poll1(fd[1], POLLIN | POLLOUT, 0), POLLOUT);
	conf_write_all(fd[1], "next", 4);
	CONF_EVENTS(conf_poll1(fd[1], POLLIN, CONF_PATIENCE_MS), POLLIN);
	conf_read_all(fd[1], buf, 4);
	_exit(0);
}

static int readable(int s, bool wait)
{
	struct timeval tv = {wait ? CONF_PATIENCE_MS / 1000 : 0, 0};
	fd_set r;

	FD_ZERO(&r);
	FD_SET(s, &r);
	return (int)CONF_OK(select(s + 1, &r, NULL, NULL, &tv));
}

static void with_select(void *arg)
{
	char buf[4];

	(void)arg;
	CONF_EQ(readable(fd[1], false), 1);
	conf_read_all(fd[1], buf, 4);
	CONF_EQ(readable(fd[1], false), 0);
	conf_write_all(fd[1], "next", 4);
	CONF_EQ(readable(fd[1], true), 1);
	conf_read_all(fd[1], buf, 4);
	_exit(0);
}

static void with_epoll(void *arg)
{
	int own = conf_epoll();
	char buf[4];

	(void)arg;
	conf_ep_add(own, fd[1], EPOLLIN | EPOLLET);
	CONF_EP_EXPECT(own, fd[1], EPOLLIN);
	conf_read_all(fd[1], buf, 4);
	CONF_EP_QUIET(own);
	conf_write_all(fd[1], "next", 4);
	CONF_EP_EXPECT(own, fd[1], EPOLLIN);
	conf_read_all(fd[1], buf, 4);
	CONF_OK(close(own));
	_exit(0);
}

static void *reader(void *arg)
{
	char buf[4];

	conf_read_all(fd[1], buf, 4);
	CONF_EQ(memcmp(buf, "mine", 4), 0);
	return NULL;
}

static void round_of(void (*child)(void *))
{
	struct conf_thread t;
	char buf[4];
	pid_t pid;

	conf_pair(fd);
	ep = conf_epoll();
	conf_ep_add(ep, fd[1], EPOLLIN | EPOLLOUT);
	conf_ep_add(ep, fd[0], EPOLLIN);
	CONF_EP_EXPECT(ep, fd[1], EPOLLOUT);
	conf_write_all(fd[0], "data", 4);
	conf_wait_inq(fd[1], 4);
	pid = conf_fork(child, NULL);
	conf_read_all(fd[0], buf, 4);
	CONF_EQ(memcmp(buf, "next", 4), 0);
	/* The parent's registration has come along. */
	CONF_EP_EXPECT(ep, fd[1], EPOLLOUT);
	conf_write_all(fd[0], "more", 4);
	conf_join(pid);
	conf_ep_mod(ep, fd[1], EPOLLIN);
	CONF_EP_QUIET(ep);
	conf_write_all(fd[0], "kept", 4);
	CONF_EP_EXPECT(ep, fd[1], EPOLLIN);
	CONF_EVENTS(conf_poll1(fd[1], POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
	conf_read_all(fd[1], buf, 4);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL));
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	conf_write_all(fd[0], "mine", 4);
	conf_thread_join(&t);
	CONF_OK(close(ep));
	conf_close2(fd[0], fd[1]);
}

CONF_TEST(0)
{
	round_of(with_poll);
	round_of(with_select);
	round_of(with_epoll);
}

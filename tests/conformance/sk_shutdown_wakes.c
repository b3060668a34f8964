/* SPDX-License-Identifier: BSD-2-Clause */
/* A thread blocked on a socket is woken by another's shutdown: recv 0; poll, select and epoll IN HUP; send EPIPE. */
#include "conf.h"

static int fd_wait, ep;
static struct epoll_event ev;
static struct pollfd pfd;

static void *do_recv(void *arg)
{
	static char c;

	(void)arg;
	return (void *)recv(fd_wait, &c, 1, 0);
}

static void *do_poll(void *arg)
{
	(void)arg;
	pfd = (struct pollfd){fd_wait, POLLIN | POLLRDHUP, 0};
	return (void *)(intptr_t)poll(&pfd, 1, -1);
}

static void *do_epoll(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)epoll_wait(ep, &ev, 1, -1);
}

static void *do_select(void *arg)
{
	fd_set r;

	(void)arg;
	FD_ZERO(&r);
	FD_SET(fd_wait, &r);
	return (void *)(intptr_t)select(fd_wait + 1, &r, NULL, NULL, NULL);
}

static void *do_send(void *arg)
{
	static char big[8 << 20];
	ssize_t k;

	(void)arg;
	while ((k = send(fd_wait, big, sizeof(big), MSG_NOSIGNAL)) > 0)
		;
	return (void *)(intptr_t)(k == -1 && errno == EPIPE ? 1 : -errno);
}

static void woken(void *(*fn)(void *), int a, int b, intptr_t want)
{
	struct conf_thread t;

	fd_wait = a;
	conf_exchange(a, b);
	conf_small_buffers(a, b);
	ep = conf_epoll();
	conf_ep_add(ep, a, EPOLLIN | EPOLLRDHUP);
	conf_thread_start(&t, fn, NULL);
	conf_thread_asleep(&t);
	CONF_OK(shutdown(a, SHUT_RDWR));
	CONF_EQ((intptr_t)conf_thread_join(&t), want);
	CONF_OK(close(ep));
	conf_close2(a, b);
}

static void by_recv(int a, int b)
{
	woken(do_recv, a, b, 0);
}

static void by_poll(int a, int b)
{
	woken(do_poll, a, b, 1);
	/* RDHUP is set a moment before HUP: the first wake-up may see only a part. */
	CONF_EQ(pfd.revents & POLLIN, POLLIN);
	CONF_EQ(pfd.revents & ~(POLLIN | POLLHUP | POLLRDHUP), 0);
}

static void by_epoll(int a, int b)
{
	woken(do_epoll, a, b, 1);
	CONF_EVENTS(ev.events & EPOLLIN, EPOLLIN);
}

static void by_select(int a, int b)
{
	woken(do_select, a, b, 1);
}

static void by_send(int a, int b)
{
	woken(do_send, a, b, 1);
}

CONF_TEST(0)
{
	conf_each_role(by_recv);
	conf_each_role(by_poll);
	conf_each_role(by_epoll);
	conf_each_role(by_select);
	conf_each_role(by_send);
}

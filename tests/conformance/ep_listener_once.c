/* SPDX-License-Identifier: BSD-2-Clause */
/* A listener registered one-shot or edge-triggered: a connection is reported once, whoever brings it and whoever
 * sleeps on the set. */
#include "conf.h"

int conf_plain(const char *arg, int port)
{
	struct sockaddr_in sin = {
	    .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = conf_addr4()};
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char byte;

	(void)arg;
	CONF_OK(connect(fd, (struct sockaddr *)&sin, sizeof(sin)));
	CONF_EQ(read(fd, &byte, 1), 1);
	return 0;
}

static int ep;

static void *waits(void *arg)
{
	struct epoll_event ev = {.events = 0};

	return (void *)(intptr_t)epoll_wait(ep, &ev, 1, -1);
}

/* Registered while a thread sleeps. */
static void edge(int l)
{
	struct conf_thread t;
	struct epoll_event ev;
	int a = conf_dial(l);

	CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
	for (int i = 0; i < 100; i++) {
		ep = conf_epoll();
		if (i & 1)
			conf_ep_add(ep, a, 0);
		conf_thread_start(&t, waits, NULL);
		conf_thread_asleep(&t);
		conf_ep_add(ep, l, EPOLLIN | EPOLLET);
		CONF_EQ((intptr_t)conf_thread_join(&t), 1);
		CONF_EQ(epoll_wait(ep, &ev, 1, 0), 0);
		CONF_OK(close(ep));
	}
	CONF_OK(close(a));
	CONF_OK(close((int)CONF_OK(accept(l, NULL, NULL))));
}

/* shutdown() for writing changes nothing at a listener; edge-triggered members hear of it all the same. */
static void told_anew(int l)
{
	int a = conf_dial(l);

	CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
	ep = conf_epoll();
	conf_ep_add(ep, l, EPOLLIN | EPOLLET);
	CONF_EP_EXPECT(ep, l, EPOLLIN);
	CONF_EP_QUIET(ep);
	CONF_OK(shutdown(l, SHUT_WR));
	CONF_EP_EXPECT(ep, l, EPOLLIN);
	CONF_EP_QUIET(ep);
	CONF_OK(close(ep));
	CONF_OK(close(a));
	CONF_OK(close((int)CONF_OK(accept(l, NULL, NULL))));
}

static void accept_one(int l)
{
	int fd = (int)CONF_OK(accept(l, NULL, NULL));

	conf_write_all(fd, "x", 1);
	CONF_OK(close(fd));
}

/* One client is preloaded as this program is, the other never is. */
static void one_shot(int l, bool plain_first)
{
	pid_t pid = 0;
	int a = -1;

	ep = conf_epoll();
	conf_ep_add(ep, l, EPOLLIN | EPOLLONESHOT);
	CONF_EP_QUIET(ep);
	if (plain_first)
		pid = conf_spawn_plain("plain", conf_port(l));
	else
		a = conf_dial(l);
	CONF_EP_EXPECT(ep, l, EPOLLIN);
	CONF_EP_QUIET(ep);
	if (plain_first)
		a = conf_dial(l);
	else
		pid = conf_spawn_plain("plain", conf_port(l));
	accept_one(l);
	CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
	CONF_EP_QUIET(ep);
	CONF_EQ(conf_poll1(ep, POLLIN, 0), 0);
	conf_ep_mod(ep, l, EPOLLIN | EPOLLONESHOT);
	CONF_EP_EXPECT(ep, l, EPOLLIN);
	CONF_EP_QUIET(ep);
	accept_one(l);
	conf_join(pid);
	conf_drain(a, 1);
	CONF_OK(close(a));
	CONF_OK(close(ep));
}

CONF_TEST(CONF_TCP_TOO)
{
	int l = conf_listener(AF_INET, 8);

	conf_one_cpu();
	conf_note("edge-triggered");
	edge(l);
	conf_note("shut down for writing");
	told_anew(l);
	conf_note("one-shot, the plain client last");
	one_shot(l, false);
	conf_note("one-shot, the plain client first");
	one_shot(l, true);
	CONF_OK(close(l));
}

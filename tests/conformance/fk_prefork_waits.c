/* SPDX-License-Identifier: BSD-2-Clause */
/* Workers that wait for an inherited listener by poll, select or an epoll set, non-blocking, and see who has come. The
 * parent itself takes one in between. */
#include "conf.h"

#define EACH 4

static int listener;

static void serve(int s, const struct sockaddr_storage *from)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char c;

	CONF_OK(getpeername(s, (struct sockaddr *)&ss, &len));
	CONF_EQ(len, sizeof(struct sockaddr_in));
	CONF_EQ(memcmp(&ss, from, len), 0);
	CONF_OK(getsockname(s, (struct sockaddr *)&ss, &len));
	CONF_EQ(((struct sockaddr_in *)&ss)->sin_port, htons((uint16_t)conf_port(listener)));
	CONF_EQ(fcntl(s, F_GETFL) & O_NONBLOCK, 0);
	conf_read_all(s, &c, 1);
	conf_write_all(s, &((const struct sockaddr_in *)from)->sin_port, 2);
	CONF_OK(close(s));
}

static int by_poll(int ep)
{
	return conf_poll1(listener, POLLIN, CONF_PATIENCE_MS) == POLLIN;
}

static int by_select(int ep)
{
	struct timeval tv = {CONF_PATIENCE_MS / 1000, 0};
	fd_set r;

	FD_ZERO(&r);
	FD_SET(listener, &r);
	return select(listener + 1, &r, NULL, NULL, &tv);
}

static int by_epoll(int ep)
{
	struct epoll_event ev;

	return epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS) == 1 && ev.data.fd == listener;
}

static void worker(void *arg)
{
	int (*wait)(int) = *(int (**)(int))arg;
	struct sockaddr_storage from;
	int ep = conf_epoll(), s;
	socklen_t len;

	if (wait == by_epoll)
		conf_ep_add(ep, listener, EPOLLIN);
	for (int i = 0; i < EACH;) {
		CONF_EQ(wait(ep), 1);
		len = sizeof(from);
		s = accept4(listener, (struct sockaddr *)&from, &len, SOCK_CLOEXEC);
		if (s < 0) {
			CONF_EQ(errno, EAGAIN);
			continue;
		}
		CONF_EQ(fcntl(s, F_GETFD), FD_CLOEXEC);
		CONF_EQ(len, sizeof(struct sockaddr_in));
		serve(s, &from);
		i++;
	}
	_exit(0);
}

static void client(void)
{
	struct sockaddr_storage own;
	uint16_t port;
	int c = conf_dial(listener);

	conf_name(c, &own);
	conf_write_all(c, "x", 1);
	conf_read_all(c, &port, 2);
	CONF_EQ(port, ((struct sockaddr_in *)&own)->sin_port);
	conf_read_eof(c);
	CONF_OK(close(c));
}

CONF_TEST(0)
{
	int (*wait[])(int) = {by_poll, by_select, by_epoll};
	int c, s;
	pid_t pid;

	listener = conf_listener(AF_INET, 16);
	conf_nonblock(listener, true);
	for (size_t i = 0; i < CONF_ARRAY_SIZE(wait); i++) {
		conf_note("way %zu", i);
		pid = conf_fork(worker, &wait[i]);
		conf_process_asleep(pid);
		for (int k = 0; k < EACH; k++)
			client();
		conf_join(pid);
		/* Without workers the parent is served, as ever. */
		c = conf_dial(listener);
		CONF_STATE(listener, POLLIN);
		s = (int)CONF_OK(accept(listener, NULL, NULL));
		conf_exchange(c, s);
		CONF_UNTIL(conf_shared() == 0);
		conf_close2(c, s);
	}
}

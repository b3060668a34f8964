/* SPDX-License-Identifier: BSD-2-Clause */
/* connect(AF_UNSPEC) dissolves the connection: the peer sees the end or a reset, and the socket connects anew, twice;
 * its options, flags, copies and registrations in an epoll set stay. */
#include "conf.h"

static const struct sockaddr un = {.sa_family = AF_UNSPEC};

static void ended(int s)
{
	char buf;
	ssize_t k;

	CONF_NE(conf_poll1(s, POLLIN, CONF_PATIENCE_MS) & POLLIN, 0);
	k = read(s, &buf, 1);
	CONF_TRUE(k == 0 || (k == -1 && errno == ECONNRESET));
	CONF_OK(close(s));
}

static void *reader(void *arg)
{
	char c;
	ssize_t k = read(*(int *)arg, &c, 1);

	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void again(int l, int ep)
{
	int c = conf_dial(l), copy = (int)CONF_OK(dup(c)), s = (int)CONF_OK(accept(l, NULL, NULL)), v = 0;
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 77}, got;
	struct sockaddr_storage ss;
	socklen_t len, vlen = sizeof(v);
	struct conf_thread t;

	CONF_OK(setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int)));
	CONF_OK(fcntl(c, F_SETFD, FD_CLOEXEC));
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev));
	conf_exchange(c, s);
	for (int i = 0; i < 2; i++) {
		conf_thread_start(&t, reader, &copy);
		conf_thread_asleep(&t);
		CONF_OK(connect(c, &un, sizeof(un)));
		CONF_LE((intptr_t)conf_thread_join(&t), 0);
		ended(s);
		CONF_ERR(getpeername(copy, (struct sockaddr *)&ss, &(socklen_t){sizeof(ss)}), ENOTCONN);
		if (i) { /* a connect clears it */
			CONF_OK(getsockopt(copy, SOL_SOCKET, SO_ERROR, &v, &vlen));
			CONF_EQ(v, ECONNRESET);
			CONF_ERR(write(c, "x", 1), EPIPE);
		}
		CONF_OK(getsockopt(copy, SOL_SOCKET, SO_KEEPALIVE, &v, &vlen));
		CONF_EQ(v, 1);
		CONF_EQ(fcntl(c, F_GETFD), FD_CLOEXEC);
		CONF_EQ(fcntl(copy, F_GETFD), 0);
		CONF_EQ(epoll_wait(ep, &got, 1, 0), 1); /* unconnected: HUP */
		CONF_TRUE(got.events & EPOLLHUP && got.data.u64 == 77);
		len = conf_name(l, &ss);
		CONF_OK(connect(copy, (struct sockaddr *)&ss, len));
		s = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(c, s);
		CONF_EQ(epoll_wait(ep, &got, 1, 0), 0);
		conf_write_all(s, "y", 1);
		CONF_EQ(epoll_wait(ep, &got, 1, CONF_PATIENCE_MS), 1);
		CONF_EVENTS(got.events, EPOLLIN);
		conf_read_all(copy, &v, 1);
	}
	CONF_OK(close(copy));
	conf_close2(c, s);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 2), ep = (int)CONF_OK(epoll_create1(0));

	CONF_EQ(signal(SIGPIPE, SIG_IGN) == SIG_ERR, 0);
	again(l, ep);
	again(l, ep);
	CONF_OK(close(ep));
}

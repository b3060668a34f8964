/* SPDX-License-Identifier: BSD-2-Clause */
/* recvmmsg: a pending error comes before any byte; the end fills every message with nothing; an error after some
 * messages is kept. recvmsg's flags do not echo MSG_TRUNC. */
#include "conf.h"

static struct mmsghdr v[3];
static struct iovec iov[3];
static char in[30];

static void make(void)
{
	memset(v, 0, sizeof(v));
	for (int i = 0; i < 3; i++) {
		iov[i] = (struct iovec){in + 10 * i, 10};
		v[i].msg_hdr.msg_iov = &iov[i];
		v[i].msg_hdr.msg_iovlen = 1;
		v[i].msg_len = 99;
	}
}

static void end(int a, int b)
{
	conf_write_all(a, "0123456789ab", 12);
	CONF_OK(shutdown(a, SHUT_WR));
	conf_wait_inq(b, 12);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	make();
	CONF_EQ(recvmmsg(b, v, 3, 0, NULL), 3);
	CONF_EQ(v[0].msg_len, 10);
	CONF_EQ(v[1].msg_len, 2);
	CONF_EQ(v[2].msg_len, 0);
	conf_close2(a, b);
}

static void error_first(int a, int b)
{
	CONF_OK(close(a));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EQ(send(b, "x", 1, MSG_NOSIGNAL), 1);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	make();
	CONF_ERR(recvmmsg(b, v, 3, 0, NULL), EPIPE);
	CONF_EQ(recvmmsg(b, v, 3, 0, NULL), 3);
	CONF_EQ(v[0].msg_len, 0);
	CONF_OK(close(b));
}

static void error_after_some(int a, int b)
{
	int err = 0;
	socklen_t len = sizeof(err);

	conf_write_all(a, "0123456789ab", 12);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(b, 12);
	conf_wait_inq(a, 6);
	CONF_OK(close(a));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_OK(getsockopt(b, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, ECONNRESET);
	make();
	CONF_EQ(recvmmsg(b, v, 3, 0, NULL), 3);
	CONF_EQ(v[1].msg_len, 2);
	CONF_OK(close(b));
}

static void flags(int a, int b)
{
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 1};

	make();
	conf_write_all(a, "0123456789ab", 12);
	conf_wait_inq(b, 12);
	CONF_EQ(recvmsg(b, &m, MSG_TRUNC), 10);
	CONF_EQ(m.msg_flags, 0);
	CONF_EQ(recvmsg(b, &m, MSG_CMSG_CLOEXEC), 2);
	CONF_EQ(m.msg_flags, MSG_CMSG_CLOEXEC);
	conf_close2(a, b);
}

static void *reader(void *arg)
{
	make();
	return (void *)(intptr_t)recvmmsg(*(int *)arg, v, 3, 0, NULL);
}

/* The number may go meanwhile: the call goes on, on the socket that it named. */
static void closed_meanwhile(int a, int b)
{
	struct conf_thread t;

	conf_thread_start(&t, reader, &b);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	conf_write_all(a, "0123456789ab", 12);
	conf_thread_asleep(&t); /* two messages are there, the third is waited for */
	CONF_OK(close(a));
	CONF_EQ((intptr_t)conf_thread_join(&t), 3);
	CONF_EQ(v[0].msg_len + v[1].msg_len + v[2].msg_len, 12);
}

CONF_TEST(0)
{
	conf_each_role(closed_meanwhile);
	conf_each_role(end);
	conf_each_role(error_first);
	conf_each_role(error_after_some);
	conf_each_role(flags);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Zero bytes are no way round the state: a send of none reports a pending error or EPIPE, and a recv of none waits for
 * bytes, the end or an error as any recv does (read and readv of none do not look). */
#include "conf.h"

static void *reader(void *arg)
{
	char buf[1];

	return (void *)(intptr_t)recv(*(int *)arg, buf, 0, 0);
}

static void reads(int a, int b)
{
	struct iovec iov = {NULL, 0};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct conf_thread t;
	char buf[1];

	CONF_ERR(recv(b, buf, 0, MSG_DONTWAIT), EAGAIN);
	CONF_ERR(recv(b, buf, 0, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
	CONF_ERR(recvmsg(b, &m, MSG_DONTWAIT), EAGAIN);
	CONF_EQ(read(b, buf, 0), 0);
	CONF_EQ(readv(b, &iov, 1), 0);
	conf_thread_start(&t, reader, &b);
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 0);
	CONF_EQ(recv(b, buf, 0, 0), 0);
	conf_drain(b, 1);
	CONF_ERR(recv(b, buf, 0, MSG_DONTWAIT), EAGAIN);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EQ(recv(b, buf, 0, 0), 0);
	conf_close2(a, b);
}

static void shut(int a, int b)
{
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_ERR(send(a, NULL, 0, MSG_NOSIGNAL), EPIPE);
	CONF_EQ(writev(a, &(struct iovec){NULL, 0}, 1), 0); /* does not look */
	conf_close2(a, b);
}

static void reset(int a, int b)
{
	char buf[1];

	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
	CONF_OK(close(b)); /* with a byte unread: a reset */
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_ERR(send(a, NULL, 0, MSG_NOSIGNAL), ECONNRESET);
	CONF_ERR(send(a, NULL, 0, MSG_NOSIGNAL), EPIPE);
	CONF_EQ(recv(a, buf, 0, 0), 0);
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	conf_each_role(reads);
	conf_each_role(shut);
	conf_each_role(reset);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Bytes for a socket that was shut down both ways have no reader: the connection is reset at both ends. Shut down for
 * reading alone it still takes them. */
#include "conf.h"

static void each(int a, int b)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char buf[8];

	CONF_OK(shutdown(a, SHUT_RDWR));
	CONF_OK(getpeername(a, (struct sockaddr *)&ss, &len)); /* the other end is still there */
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EQ(send(b, "late", 4, MSG_NOSIGNAL), 4);
	CONF_STATE(a, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_ERR(getpeername(a, (struct sockaddr *)&ss, &len), ENOTCONN);
	CONF_ERR(read(a, buf, sizeof(buf)), ECONNRESET);
	CONF_EQ(read(a, buf, sizeof(buf)), 0);
	CONF_ERR(send(b, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	conf_close2(a, b);
}

static void unread_first(int a, int b)
{
	char buf[8];

	conf_write_all(b, "ab", 2);
	conf_wait_inq(a, 2);
	CONF_OK(shutdown(a, SHUT_RDWR));
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	CONF_EQ(send(b, "late", 4, MSG_NOSIGNAL), 4);
	CONF_STATE(b, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_EQ(read(a, buf, sizeof(buf)), 2); /* what was there before */
	CONF_ERR(read(a, buf, sizeof(buf)), ECONNRESET);
	conf_close2(a, b);
}

static void reading_only(int a, int b)
{
	char buf[8];

	CONF_OK(shutdown(a, SHUT_RD));
	conf_write_all(b, "late", 4);
	conf_wait_inq(a, 4);
	CONF_EQ(read(a, buf, sizeof(buf)), 4);
	CONF_EQ(read(a, buf, sizeof(buf)), 0);
	conf_write_all(a, "back", 4);
	conf_read_all(b, buf, 4);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(unread_first);
	conf_each_role(reading_only);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* MSG_PEEK shows bytes and leaves them: twice the same, across several writes, less than asked, and not at EOF. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[16];
	struct iovec iov[2] = {{buf, 2}, {buf + 2, 14}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

	CONF_ERR(recv(b, buf, 4, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
	conf_write_all(a, "abc", 3);
	conf_write_all(a, "defg", 4);
	conf_wait_inq(b, 7);
	for (int i = 0; i < 2; i++) {
		CONF_EQ(recv(b, buf, 5, MSG_PEEK), 5);
		CONF_EQ(memcmp(buf, "abcde", 5), 0);
	}
	CONF_EQ(recvfrom(b, buf, 16, MSG_PEEK, NULL, NULL), 7);
	CONF_EQ(memcmp(buf, "abcdefg", 7), 0);
	memset(buf, 0, sizeof(buf));
	CONF_EQ(recvmsg(b, &m, MSG_PEEK), 7);
	CONF_EQ(memcmp(buf, "abcdefg", 7), 0);
	CONF_STATE(b, POLLIN | POLLOUT);
	CONF_EQ(recv(b, buf, 2, 0), 2);
	CONF_EQ(recv(b, buf, 16, MSG_PEEK), 5);
	CONF_EQ(memcmp(buf, "cdefg", 5), 0);
	CONF_EQ(recv(b, buf, 16, 0), 5);
	CONF_ERR(recv(b, buf, 16, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(recv(b, buf, 16, MSG_PEEK), 0);
	CONF_EQ(recv(b, buf, 16, MSG_PEEK), 0);
	CONF_EQ(recv(b, buf, 16, 0), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

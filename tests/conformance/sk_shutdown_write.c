/* SPDX-License-Identifier: BSD-2-Clause */
/* A shuts down writing: B sees IN OUT RDHUP, reads 0 and still sends; A reads that; A's send gives EPIPE. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[8];

	conf_write_all(a, "last", 4);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_STATE(a, POLLOUT);
	conf_read_all(b, buf, 4);
	CONF_EQ(read(b, buf, 8), 0);
	CONF_EQ(read(b, buf, 8), 0);
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	conf_write_all(b, "answer", 6);
	conf_read_all(a, buf, 6);
	CONF_EQ(memcmp(buf, "answer", 6), 0);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(a, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_EQ(read(a, buf, 8), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer closes: data first, then 0; the first send succeeds, after it EPIPE, with SIGPIPE unless MSG_NOSIGNAL. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[8];

	conf_catch(SIGPIPE, 0);
	conf_caught = 0;
	conf_write_all(a, "end", 3);
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	conf_read_all(b, buf, 3);
	CONF_EQ(recv(b, buf, 8, 0), 0);
	CONF_EQ(send(b, "x", 1, MSG_NOSIGNAL), 1);
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLRDHUP | POLLHUP);
	CONF_ERR(send(b, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_EQ(conf_caught, 0);
	CONF_ERR(send(b, "x", 1, 0), EPIPE);
	CONF_EQ(conf_caught, 1);
	CONF_EQ(recv(b, buf, 8, 0), 0);
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

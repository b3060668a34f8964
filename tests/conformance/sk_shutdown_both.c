/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown(SHUT_RDWR): all bits but ERR here, EOF there after the data, EPIPE for writes, ENOTCONN once both have
 * ended. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[8];

	conf_write_all(a, "last", 4);
	CONF_OK(shutdown(a, SHUT_RDWR));
	CONF_STATE(a, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_EQ(read(a, buf, 8), 0);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	conf_read_all(b, buf, 4);
	CONF_EQ(read(b, buf, 8), 0);
	CONF_OK(shutdown(b, SHUT_RDWR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	/* b, which ended last, is closed at once; a waits in TIME_WAIT or is gone. */
	CONF_UNTIL(shutdown(b, SHUT_WR) == -1 && errno == ENOTCONN);
	CONF_OK(close(a));
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

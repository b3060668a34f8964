/* SPDX-License-Identifier: BSD-2-Clause */
/* MSG_TRUNC on TCP discards: the count is what was thrown away, the buffer is not touched (NULL is fine). With MSG_PEEK
 * nothing is thrown away. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[16] = "untouched";

	conf_write_all(a, "0123456789", 10);
	conf_wait_inq(b, 10);
	CONF_EQ(recv(b, buf, 16, MSG_TRUNC | MSG_PEEK), 10);
	CONF_EQ(recv(b, NULL, 4, MSG_TRUNC | MSG_PEEK | MSG_WAITALL), 4);
	CONF_EQ(recv(b, buf, 4, MSG_TRUNC), 4);
	CONF_EQ(memcmp(buf, "untouched", 9), 0);
	CONF_EQ(recv(b, NULL, 2, MSG_TRUNC), 2);
	CONF_EQ(recv(b, buf, 16, 0), 4);
	CONF_EQ(memcmp(buf, "6789", 4), 0);
	CONF_ERR(recv(b, buf, 4, MSG_TRUNC | MSG_DONTWAIT), EAGAIN);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(recv(b, NULL, 4, MSG_TRUNC | MSG_PEEK), 0);
	CONF_EQ(recv(b, NULL, 4, MSG_TRUNC), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

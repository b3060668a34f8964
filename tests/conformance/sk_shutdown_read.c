/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown(SHUT_RD): IN OUT RDHUP here, reads are 0 but what came before and comes after is read; the peer notices
 * nothing. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[8];

	conf_write_all(a, "old", 3);
	conf_wait_inq(b, 3);
	CONF_OK(shutdown(b, SHUT_RD));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(read(b, buf, 8), 3);
	CONF_EQ(memcmp(buf, "old", 3), 0);
	CONF_EQ(read(b, buf, 8), 0);
	CONF_STATE(a, POLLOUT);
	conf_write_all(b, "out", 3);
	conf_read_all(a, buf, 3);
	CONF_EQ(memcmp(buf, "out", 3), 0);
	/* Linux goes on receiving after SHUT_RD. */
	conf_write_all(a, "new", 3);
	conf_wait_inq(b, 3);
	CONF_EQ(read(b, buf, 8), 3);
	CONF_EQ(memcmp(buf, "new", 3), 0);
	CONF_EQ(read(b, buf, 8), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

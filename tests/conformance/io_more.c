/* SPDX-License-Identifier: BSD-2-Clause */
/* MSG_MORE and TCP_CORK hold bytes back at most for a while: without any further write they arrive, in order. */
#include "conf.h"

static void each(int a, int b)
{
	int on = 1, off = 0;
	char buf[16];

	for (int i = 0; i < 3; i++) {
		CONF_EQ(send(a, "head", 4, MSG_MORE), 4);
		CONF_EQ(send(a, "body", 4, 0), 4);
		conf_read_all(b, buf, 8);
		CONF_EQ(memcmp(buf, "headbody", 8), 0);
	}
	CONF_EQ(send(a, "alone", 5, MSG_MORE), 5);
	conf_read_all(b, buf, 5);
	CONF_EQ(memcmp(buf, "alone", 5), 0);
	CONF_OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
	conf_write_all(a, "ab", 2);
	conf_write_all(a, "cd", 2);
	CONF_OK(setsockopt(a, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
	conf_read_all(b, buf, 4);
	CONF_EQ(memcmp(buf, "abcd", 4), 0);
	/* What is held back goes out with the close. */
	CONF_EQ(send(a, "end", 3, MSG_MORE), 3);
	CONF_OK(close(a));
	conf_read_all(b, buf, 3);
	conf_read_eof(b);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

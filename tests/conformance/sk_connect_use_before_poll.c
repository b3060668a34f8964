/* SPDX-License-Identifier: BSD-2-Clause */
/* Straight after a non-blocking connect, without a wait: reads and writes are EAGAIN until it is done, then work. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 8), s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	for (int i = 0; i < 20; i++) {
		int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		char buf[4];

		CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
		CONF_UNTIL(write(c, "abc", 3) == 3 || (errno != EAGAIN && (conf_fail(CONF_WHERE, "write: %m"), 0)));
		CONF_ERR(read(c, buf, 1), EAGAIN);
		s = (int)CONF_OK(accept(l, NULL, NULL));
		conf_read_all(s, buf, 3);
		CONF_EQ(memcmp(buf, "abc", 3), 0);
		conf_close2(c, s);
	}
}

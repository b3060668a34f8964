/* SPDX-License-Identifier: BSD-2-Clause */
/* Zero bytes: a write takes nothing and sends nothing; a read returns 0 at once, data there or not. */
#include "conf_io.h"

static void each(int a, int b)
{
	char buf[8];

	for (size_t i = 0; i < conf_n_writers; i++) {
		conf_note("%s", conf_writers[i].name);
		CONF_EQ(conf_writers[i].fn(a, buf, 0), 0);
	}
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_QUIET_MS), 0);
	conf_write_all(a, "data", 4);
	conf_wait_inq(b, 4);
	for (size_t i = 0; i < conf_n_readers; i++) {
		conf_note("%s", conf_readers[i].name);
		CONF_EQ(conf_readers[i].fn(b, buf, 0), 0);
	}
	conf_read_all(b, buf, 4);
	CONF_EQ(memcmp(buf, "data", 4), 0);
	/* With nothing there: read(fd, buf, 0) is 0 without looking, on a blocking socket too. */
	CONF_EQ(read(b, buf, 0), 0);
	conf_nonblock(b, true);
	CONF_EQ(read(b, buf, 0), 0);
	CONF_EQ(write(a, NULL, 0), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A bad data pointer is EFAULT through every call, and harms neither the stream nor the bytes that wait in it. */
#include "conf_io.h"

static void *const bad = (void *)0x1000;

static void each(int a, int b)
{
	char buf[64];

	for (size_t i = 0; i < conf_n_readers; i++) {
		conf_note("%s", conf_readers[i].name);
		conf_write_all(a, "keep", 4);
		conf_wait_inq(b, 4);
		CONF_ERR(conf_readers[i].fn(b, bad, 16), EFAULT);
		CONF_EQ(conf_readers[i].fn(b, buf, sizeof(buf)), 4);
		CONF_EQ(memcmp(buf, "keep", 4), 0);
	}
	for (size_t i = 0; i < conf_n_writers; i++) {
		conf_note("%s", conf_writers[i].name);
		if (conf_writers[i].can_fault)
			CONF_ERR(conf_writers[i].fn(a, bad, 16), EFAULT);
	}
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

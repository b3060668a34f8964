/* SPDX-License-Identifier: BSD-2-Clause */
/* After the peer's orderly close every way to read gives the data first and then 0, again and again. */
#include "conf_io.h"

static const struct conf_reader *reader;

static void each(int a, int b)
{
	char buf[64];

	conf_write_all(a, "last", 4);
	CONF_OK(close(a));
	CONF_EQ(reader->fn(b, buf, sizeof(buf)), 4);
	for (int i = 0; i < 3; i++)
		CONF_EQ(reader->fn(b, buf, sizeof(buf)), 0);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	for (size_t i = 0; i < conf_n_readers; i++) {
		reader = &conf_readers[i];
		conf_each_role(each);
	}
}

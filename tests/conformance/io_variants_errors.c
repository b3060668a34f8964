/* SPDX-License-Identifier: BSD-2-Clause */
/* Numbers that are no descriptor, through every call: EBADF, and a carried stream beside it is not disturbed. */
#include "conf_io.h"

static void each(int a, int b)
{
	char buf[64];

	for (size_t i = 0; i < conf_n_readers; i++) {
		conf_note("%s", conf_readers[i].name);
		CONF_ERR(conf_readers[i].fn(-1, buf, sizeof(buf)), EBADF);
		CONF_ERR(conf_readers[i].fn(999, buf, sizeof(buf)), EBADF);
	}
	for (size_t i = 0; i < conf_n_writers; i++) {
		conf_note("%s", conf_writers[i].name);
		CONF_ERR(conf_writers[i].fn(-1, buf, sizeof(buf)), EBADF);
		CONF_ERR(conf_writers[i].fn(999, buf, sizeof(buf)), EBADF);
	}
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

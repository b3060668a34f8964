/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to write after shutdown(SHUT_WR) gives EPIPE and SIGPIPE, each time. */
#include "conf_io.h"

static void each(int a, int b)
{
	conf_exchange(a, b);
	conf_catch(SIGPIPE, 0);
	CONF_OK(shutdown(a, SHUT_WR));
	for (size_t i = 0; i < conf_n_writers; i++)
		for (int again = 0; again < 2; again++) {
			conf_note("%s", conf_writers[i].name);
			conf_caught = 0;
			CONF_ERR(conf_writers[i].fn(a, "x", 1), EPIPE);
			CONF_EQ(conf_caught, 1);
		}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

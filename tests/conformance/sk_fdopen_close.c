/* SPDX-License-Identifier: BSD-2-Clause */
/* fclose of a stream that was fdopened on a carried socket closes it: the peer sees EOF. */
#include "conf.h"

static void each(int a, int b)
{
	FILE *f;

	conf_exchange(a, b);
	f = fdopen(a, "r+");
	CONF_TRUE(f != NULL);
	CONF_EQ(fileno(f), a);
	CONF_EQ(fclose(f), 0);
	CONF_ERR(fcntl(a, F_GETFD), EBADF);
	conf_read_eof(b);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* close returns at once though the peer reads nothing; all that was written still arrives, then EOF. */
#include "conf.h"

static void each(int a, int b)
{
	char *out = malloc(1 << 20), *in = malloc(1 << 20);
	int64_t from;
	ssize_t k;

	conf_fill(out, 1 << 20, 9, 0);
	conf_nonblock(a, true);
	k = CONF_OK(write(a, out, 1 << 20));
	conf_nonblock(a, false);
	from = conf_ms();
	CONF_OK(close(a));
	CONF_LE(conf_ms() - from, 500);
	conf_read_all(b, in, (size_t)k);
	CONF_VERIFY(in, (size_t)k, 9, 0);
	conf_read_eof(b);
	CONF_OK(close(b));
	free(out);
	free(in);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

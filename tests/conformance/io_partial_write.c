/* SPDX-License-Identifier: BSD-2-Clause */
/* A non-blocking write larger than the room takes a part and says how much; that part, and only it, arrives. */
#include "conf.h"

#define SIZE (64u << 20)

static void each(int a, int b)
{
	char *out = malloc(SIZE), *in = malloc(SIZE);
	ssize_t k;

	conf_small_buffers(a, b);
	conf_fill(out, SIZE, 6, 0);
	conf_nonblock(a, true);
	k = write(a, out, SIZE);
	CONF_GE(k, 1);
	CONF_LE(k, SIZE - 1);
	conf_read_all(b, in, (size_t)k);
	CONF_VERIFY(in, (size_t)k, 6, 0);
	CONF_ERR(recv(b, in, 1, MSG_DONTWAIT), EAGAIN);
	free(out);
	free(in);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

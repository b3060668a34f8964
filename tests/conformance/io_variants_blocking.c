/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to write times every way to read, on blocking sockets: the bytes arrive, whole and in order. */
#include "conf_io.h"

#define SIZE 3001

static void all_pairs(int a, int b)
{
	char out[SIZE], in[SIZE];
	uint64_t off = 0;

	for (size_t w = 0; w < conf_n_writers; w++)
		for (size_t r = 0; r < conf_n_readers; r++) {
			size_t got = 0;

			conf_note("%s to %s", conf_writers[w].name, conf_readers[r].name);
			conf_fill(out, SIZE, 1, off);
			CONF_EQ(conf_writers[w].fn(a, out, SIZE), SIZE);
			while (got < SIZE) {
				ssize_t k = conf_readers[r].fn(b, in + got, SIZE - got);

				CONF_GE(k, 1);
				got += (size_t)k;
			}
			CONF_VERIFY(in, SIZE, 1, off);
			off += SIZE;
		}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(all_pairs);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Values of every awkward size go round intact: around powers of two, around a MiB, in one write each. */
#include "conf.h"

#define MAX ((4u << 20) + 1)

struct side {
	int fd;
	char *buf;
};

static const uint32_t sizes[] = {1,     2,      31,     32,     33,     63,      64,      255,     256,   1023,  1024,
				 1448,  4095,   4096,   4097,   16383,  16384,   32767,   32768,   32769, 65535, 65536,
				 65537, 131072, 262143, 262144, 262145, 1048575, 1048576, 1048577, MAX};

static void *echo(void *p)
{
	struct side *s = p;

	for (size_t i = 0; i < CONF_ARRAY_SIZE(sizes); i++) {
		conf_read_all(s->fd, s->buf, sizes[i]);
		conf_write_all(s->fd, s->buf, sizes[i]);
	}
	return NULL;
}

static void each(int a, int b)
{
	struct side s = {.fd = b, .buf = malloc(MAX)};
	char *buf = malloc(MAX);
	struct conf_thread t;

	conf_thread_start(&t, echo, &s);
	for (size_t i = 0; i < CONF_ARRAY_SIZE(sizes); i++) {
		conf_note("size %u", sizes[i]);
		conf_fill(buf, sizes[i], sizes[i], 0);
		conf_write_all(a, buf, sizes[i]);
		memset(buf, 0, sizes[i]);
		conf_read_all(a, buf, sizes[i]);
		CONF_VERIFY(buf, sizes[i], sizes[i], 0);
	}
	conf_thread_join(&t);
	free(s.buf);
	free(buf);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

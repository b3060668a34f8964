/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to write 8 MiB on a blocking socket sleeps while the peer does not read, and then takes the whole. */
#include "conf_io.h"

#define SIZE (8u << 20)

struct job {
	int fd;
	const struct conf_writer *w;
	char *buf;
	ssize_t got;
};

static void *writer(void *p)
{
	struct job *j = p;

	j->got = j->w->fn(j->fd, j->buf, SIZE);
	return NULL;
}

static void each(int a, int b)
{
	char *out = malloc(SIZE), *in = malloc(SIZE);

	conf_small_buffers(a, b);
	conf_fill(out, SIZE, 3, 0);
	for (size_t i = 0; i < conf_n_writers; i++) {
		struct job j = {.fd = a, .w = &conf_writers[i], .buf = out};
		struct conf_thread t;

		conf_note("%s", j.w->name);
		conf_thread_start(&t, writer, &j);
		conf_thread_asleep(&t);
		conf_read_all(b, in, SIZE);
		conf_thread_join(&t);
		CONF_EQ(j.got, SIZE);
		CONF_VERIFY(in, SIZE, 3, 0);
	}
	free(out);
	free(in);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to read waits, asleep, when nothing is there, and returns what arrives without waiting for more. */
#include "conf_io.h"

struct job {
	int fd;
	const struct conf_reader *r;
	ssize_t got;
	char buf[100];
};

static void *reader(void *p)
{
	struct job *j = p;

	j->got = j->r->fn(j->fd, j->buf, sizeof(j->buf));
	return NULL;
}

static void each(int a, int b)
{
	for (size_t i = 0; i < conf_n_readers; i++) {
		struct job j = {.fd = b, .r = &conf_readers[i]};
		struct conf_thread t;

		conf_note("%s", j.r->name);
		conf_thread_start(&t, reader, &j);
		conf_thread_asleep(&t);
		conf_write_all(a, "hello", 5);
		conf_thread_join(&t);
		CONF_EQ(j.got, 5);
		CONF_EQ(memcmp(j.buf, "hello", 5), 0);
	}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

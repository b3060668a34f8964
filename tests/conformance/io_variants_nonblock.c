/* SPDX-License-Identifier: BSD-2-Clause */
/* Every way to read and write on O_NONBLOCK sockets: EAGAIN (never another errno) when empty or full, and on again. */
#include "conf_io.h"

static void readers(int a, int b)
{
	char buf[64];

	for (size_t i = 0; i < conf_n_readers; i++) {
		const struct conf_reader *r = &conf_readers[i];

		conf_note("%s", r->name);
		CONF_ERR(r->fn(b, buf, sizeof(buf)), EAGAIN);
		conf_write_all(a, "xyz", 3);
		CONF_NE(conf_poll1(b, POLLIN, CONF_PATIENCE_MS) & POLLIN, 0);
		CONF_EQ(r->fn(b, buf, sizeof(buf)), 3);
		CONF_ERR(r->fn(b, buf, sizeof(buf)), EAGAIN);
	}
}

static void writers(int a, int b)
{
	static char junk[4096];

	for (size_t i = 0; i < conf_n_writers; i++) {
		const struct conf_writer *w = &conf_writers[i];
		size_t total = conf_stuff(a);

		conf_note("%s", w->name);
		CONF_ERR(w->fn(a, junk, sizeof(junk)), EAGAIN);
		CONF_EVENTS(conf_poll1(a, POLLOUT, 0), 0);
		conf_drain(b, total);
		CONF_EVENTS(conf_poll1(a, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
		CONF_EQ(w->fn(a, junk, sizeof(junk)), sizeof(junk));
		conf_drain(b, sizeof(junk));
	}
}

static void each(int a, int b)
{
	conf_small_buffers(a, b);
	conf_nonblock(a, true);
	conf_nonblock(b, true);
	readers(a, b);
	writers(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

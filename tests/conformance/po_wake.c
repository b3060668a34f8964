/* SPDX-License-Identifier: BSD-2-Clause */
/* A sleeper in poll, ppoll, select and pselect is woken by data, by room, by a connection, by a plain descriptor. */
#include "conf.h"

struct wait {
	int kind, fd, other;
	bool write;
};

static int sleep_by(const struct wait *w)
{
	struct pollfd pf[2] = {{w->fd, w->write ? POLLOUT : POLLIN, 0}, {w->other, POLLIN, 0}};
	fd_set r, wr;
	int max = (w->fd > w->other ? w->fd : w->other) + 1;

	FD_ZERO(&r);
	FD_ZERO(&wr);
	FD_SET(w->fd, w->write ? &wr : &r);
	FD_SET(w->other, &r);
	switch (w->kind) {
	case 0:
		return poll(pf, 2, -1);
	case 1:
		return ppoll(pf, 2, NULL, NULL);
	case 2:
		return select(max, &r, &wr, NULL, NULL);
	default:
		return pselect(max, &r, &wr, NULL, NULL, NULL);
	}
}

static void *sleeper(void *p)
{
	return (void *)(intptr_t)CONF_OK(sleep_by(p));
}

static void each(int a, int b)
{
	int p[2], l = conf_listener(AF_INET, 4), c;
	struct conf_thread t;
	size_t total;

	CONF_OK(pipe(p));
	conf_small_buffers(a, b);
	for (int kind = 0; kind < 4; kind++) {
		struct wait w = {kind, b, p[0], false};

		conf_note("call %d", kind);
		conf_thread_start(&t, sleeper, &w);
		conf_thread_asleep(&t);
		conf_write_all(a, "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), 1);
		conf_drain(b, 1);

		conf_thread_start(&t, sleeper, &w);
		conf_thread_asleep(&t);
		conf_write_all(p[1], "x", 1);
		CONF_EQ((intptr_t)conf_thread_join(&t), 1);
		conf_drain(p[0], 1);

		w = (struct wait){kind, a, p[0], true};
		total = conf_stuff(a);
		conf_thread_start(&t, sleeper, &w);
		conf_thread_asleep(&t);
		conf_drain(b, total);
		CONF_EQ((intptr_t)conf_thread_join(&t), 1);

		w = (struct wait){kind, l, p[0], false};
		conf_thread_start(&t, sleeper, &w);
		conf_thread_asleep(&t);
		c = conf_dial(l);
		CONF_EQ((intptr_t)conf_thread_join(&t), 1);
		conf_close2(c, (int)CONF_OK(accept(l, NULL, NULL)));
	}
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
	CONF_OK(close(l));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

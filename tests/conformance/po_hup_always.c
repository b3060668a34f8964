/* SPDX-License-Identifier: BSD-2-Clause */
/* events = 0 still reports HUP and ERR, and wakes a sleeper for them only. */
#include "conf.h"

static int fd_wait;

static void *sleeper(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)conf_poll1(fd_wait, 0, -1);
}

static void each(int a, int b)
{
	struct conf_thread t;

	fd_wait = b;
	conf_exchange(a, b);
	conf_thread_start(&t, sleeper, NULL);
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT);
	conf_thread_asleep(&t);
	conf_drain(b, 1);
	CONF_OK(close(a));
	CONF_EVENTS((intptr_t)conf_thread_join(&t), POLLHUP);
	CONF_EVENTS(conf_poll1(b, 0, 0), POLLHUP);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_LINGER with 0 resets; with a time, close waits for delivery only as long; the option is answered. */
#include "conf.h"

static void reset(int a, int b)
{
	struct linger lg = {1, 0};
	char c;

	conf_exchange(a, b);
	CONF_OK(setsockopt(a, SOL_SOCKET, SO_LINGER, &lg, sizeof(lg)));
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_ERR(read(b, &c, 1), ECONNRESET);
	CONF_EQ(read(b, &c, 1), 0);
	CONF_OK(close(b));
}

static void bounded(int a, int b)
{
	struct linger lg = {1, 1}, got = {0, 0};
	socklen_t len = sizeof(got);
	int64_t from;

	conf_small_buffers(a, b);
	CONF_OK(setsockopt(a, SOL_SOCKET, SO_LINGER, &lg, sizeof(lg)));
	CONF_OK(getsockopt(a, SOL_SOCKET, SO_LINGER, &got, &len));
	CONF_EQ(got.l_onoff, 1);
	CONF_EQ(got.l_linger, 1);
	conf_stuff(a);
	from = conf_ms();
	CONF_OK(close(a));
	CONF_GE(conf_ms() - from, 990);
	CONF_LE(conf_ms() - from, 3000);
	CONF_OK(close(b));
}

static void delivered(int a, int b)
{
	struct linger lg = {1, 5};
	int64_t from = conf_ms();
	char buf[4];

	CONF_OK(setsockopt(a, SOL_SOCKET, SO_LINGER, &lg, sizeof(lg)));
	conf_write_all(a, "data", 4);
	CONF_OK(close(a));
	CONF_LE(conf_ms() - from, 3000);
	conf_read_all(b, buf, 4);
	conf_read_eof(b);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(reset);
	conf_each_role(bounded);
	conf_each_role(delivered);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* close by another thread does not wake a blocked recv: the sleeper keeps the stream, gets the data, and then it ends.
 */
#include "conf.h"

static int fd_wait;

static void *do_recv(void *arg)
{
	static char c;

	(void)arg;
	return (void *)recv(fd_wait, &c, 1, 0);
}

static void each(int a, int b)
{
	struct conf_thread t;

	conf_exchange(a, b);
	fd_wait = b;
	conf_thread_start(&t, do_recv, NULL);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	CONF_ERR(fcntl(b, F_GETFD), EBADF);
	conf_thread_asleep(&t);
	CONF_STATE(a, POLLOUT);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	conf_read_eof(a);
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* dup, F_DUPFD, dup2 and dup3 of a carried socket: every number is the stream; EOF comes only after the last close. */
#include "conf.h"

static void each(int a, int b)
{
	int d[4], low;

	d[0] = (int)CONF_OK(dup(a));
	d[1] = (int)CONF_OK(fcntl(a, F_DUPFD, 200));
	CONF_GE(d[1], 200);
	d[2] = (int)CONF_OK(dup2(a, 300));
	CONF_EQ(d[2], 300);
	d[3] = (int)CONF_OK(dup3(a, 301, O_CLOEXEC));
	CONF_EQ(fcntl(d[2], F_GETFD), 0);
	CONF_EQ(fcntl(d[3], F_GETFD), FD_CLOEXEC);
	CONF_EQ(dup2(a, a), a);
	CONF_ERR(dup3(a, a, 0), EINVAL);
	CONF_ERR(dup3(a, 302, O_APPEND), EINVAL);
	CONF_ERR(dup2(-1, a), EBADF);
	CONF_ERR(dup2(a, -1), EBADF);
	CONF_ERR(fcntl(a, F_DUPFD, -1), EINVAL);
	for (int i = 0; i < 4; i++)
		conf_exchange(d[i], b);
	low = a;
	CONF_OK(close(a));
	for (int i = 0; i < 4; i++) {
		CONF_STATE(b, POLLOUT);
		conf_exchange(d[i], b);
		CONF_OK(close(d[i]));
		CONF_ERR(write(d[i], "x", 1), EBADF);
	}
	CONF_ERR(read(low, &low, 1), EBADF);
	conf_read_eof(b);
	CONF_OK(close(b));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown with nonsense: EINVAL, EBADF, ENOTSOCK, ENOTCONN; the stream is untouched. */
#include "conf.h"

static void each(int a, int b)
{
	CONF_ERR(shutdown(a, 3), EINVAL);
	CONF_ERR(shutdown(a, -1), EINVAL);
	conf_exchange(a, b);
	conf_close2(a, b);
	CONF_ERR(shutdown(a, SHUT_WR), EBADF);
}

CONF_TEST(0)
{
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), p[2];

	CONF_OK(pipe(p));
	CONF_ERR(shutdown(fd, SHUT_WR), ENOTCONN);
	CONF_ERR(shutdown(p[0], SHUT_WR), ENOTSOCK);
	CONF_ERR(shutdown(-1, SHUT_WR), EBADF);
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A daemon's start: close(fd) for every number up to the limit. Carried ones end; new connections work afterwards. */
#include "conf.h"

CONF_TEST(0)
{
	int fd[2], p[2];
	char c;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(pipe(p));
	for (int i = 3; i < 4096; i++) {
		int r = close(i);

		if (r < 0)
			CONF_EQ(errno, EBADF);
	}
	CONF_ERR(read(fd[0], &c, 1), EBADF);
	CONF_ERR(read(fd[1], &c, 1), EBADF);
	CONF_ERR(read(p[0], &c, 1), EBADF);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	conf_close2(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* closefrom: carried numbers from there on are closed, those below and the library's inner workings are not. */
#include "conf.h"

CONF_TEST(0)
{
	int keep[2], fd[2], again[2];

	conf_pair(keep);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(dup2(fd[0], 500));
	CONF_OK(close(fd[0]));
	closefrom(500);
	CONF_ERR(fcntl(500, F_GETFD), EBADF);
	conf_read_eof(fd[1]);
	conf_exchange(keep[0], keep[1]);
	conf_pair(again);
	conf_exchange(again[0], again[1]);
}

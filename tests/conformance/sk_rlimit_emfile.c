/* SPDX-License-Identifier: BSD-2-Clause */
/* EMFILE comes at the program's own limit, for socket, open, dup and accept; a connection is not lost by it. */
#include "conf.h"

#include <sys/resource.h>

#define LIMIT 160

CONF_TEST(CONF_TCP_TOO) /* a connection for which there is no spare descriptor is TCP, by design */
{
	struct rlimit rl;
	int l = conf_listener(AF_INET, 64), fd[LIMIT], n = 0, pairs[LIMIT][2], k = 0;

	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	rl.rlim_cur = LIMIT;
	CONF_OK(setrlimit(RLIMIT_NOFILE, &rl));
	for (; k < 50; k++) {
		pairs[k][0] = conf_dial(l);
		pairs[k][1] = (int)CONF_OK(accept(l, NULL, NULL));
		CONF_LE(pairs[k][0], LIMIT - 1);
		CONF_LE(pairs[k][1], LIMIT - 1);
	}
	while (n < LIMIT && (fd[n] = socket(AF_INET, SOCK_STREAM, 0)) >= 0)
		CONF_LE(fd[n++], LIMIT - 1);
	CONF_LE(n, LIMIT - 1 - 2 * k);
	CONF_GE(n, LIMIT - 2 * k - 20);
	CONF_EQ(errno, EMFILE);
	CONF_ERR(open("/dev/null", O_RDONLY), EMFILE);
	CONF_ERR(dup(0), EMFILE);
	for (int i = 0; i < k; i++)
		conf_exchange(pairs[i][0], pairs[i][1]);
	/* accept with the table full: EMFILE, and the connection is not lost. */
	CONF_OK(close(fd[--n]));
	fd[n] = conf_dial(l);
	CONF_ERR(accept(l, NULL, NULL), EMFILE);
	CONF_OK(close(pairs[0][0]));
	CONF_OK(close(pairs[0][1]));
	pairs[0][0] = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(pairs[0][0], fd[n]);
}

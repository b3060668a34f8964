/* SPDX-License-Identifier: BSD-2-Clause */
/* Three hundred connections at once, all in use, closed from either end: no descriptor is left over. */
#include "conf.h"

#define N 300

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 64), before, fd[N][2];

	conf_pair(fd[0]);
	conf_exchange(fd[0][0], fd[0][1]);
	/* What a thread sleeps with is made once; without this it would be when a later call first has to wait. */
	CONF_EQ(conf_poll1(fd[0][0], POLLIN, 20), 0);
	conf_close2(fd[0][0], fd[0][1]);
	before = conf_count_fds();
	for (int i = 0; i < N; i++) {
		fd[i][0] = conf_dial(l);
		fd[i][1] = (int)CONF_OK(accept(l, NULL, NULL));
	}
	for (int r = 0; r < 3; r++)
		for (int i = 0; i < N; i++)
			conf_exchange(fd[i][r & 1], fd[i][!(r & 1)]);
	for (int i = 0; i < N; i++) {
		CONF_OK(close(fd[i][i & 1]));
		conf_read_eof(fd[i][!(i & 1)]);
		CONF_OK(close(fd[i][!(i & 1)]));
	}
	CONF_UNTIL(conf_count_fds() <= before);
}

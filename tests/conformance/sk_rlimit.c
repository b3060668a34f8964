/* SPDX-License-Identifier: BSD-2-Clause */
/* RLIMIT_NOFILE is shown as the program set it; fifty connections under a limit of 160 work. */
#include "conf.h"

#include <sys/resource.h>

#define LIMIT 160

CONF_TEST(CONF_TCP_TOO) /* a connection for which there is no spare descriptor is TCP, by design */
{
	struct rlimit rl, got;
	int l = conf_listener(AF_INET, 64), pairs[LIMIT][2], k = 0;

	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	rl.rlim_cur = LIMIT;
	CONF_OK(setrlimit(RLIMIT_NOFILE, &rl));
	CONF_OK(getrlimit(RLIMIT_NOFILE, &got));
	CONF_EQ(got.rlim_cur, LIMIT);
	CONF_EQ(got.rlim_max, rl.rlim_max);
	CONF_EQ(sysconf(_SC_OPEN_MAX), LIMIT);
	CONF_EQ(getdtablesize(), LIMIT);
	CONF_OK(prlimit(0, RLIMIT_NOFILE, NULL, &got));
	CONF_EQ(got.rlim_cur, LIMIT);
	for (; k < 50; k++) {
		pairs[k][0] = conf_dial(l);
		pairs[k][1] = (int)CONF_OK(accept(l, NULL, NULL));
		CONF_LE(pairs[k][0], LIMIT - 1);
		CONF_LE(pairs[k][1], LIMIT - 1);
	}
	for (int i = 0; i < k; i++)
		conf_exchange(pairs[i][0], pairs[i][1]);
}

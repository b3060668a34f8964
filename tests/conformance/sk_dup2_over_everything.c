/* SPDX-License-Identifier: BSD-2-Clause */
/* dup2 of a pipe onto every number up to 1,100, whoever holds it: carried streams elsewhere and new ones still work. */
#include "conf.h"

#include <sys/resource.h>

CONF_TEST(0)
{
	struct rlimit rl;
	int keep[2], fd[2], p[2];

	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	if (rl.rlim_cur < 1200)
		conf_skip("RLIMIT_NOFILE is %llu", (unsigned long long)rl.rlim_cur);
	conf_pair(keep);
	conf_exchange(keep[0], keep[1]);
	CONF_OK(pipe(p));
	for (int i = 3; i < 1100; i++)
		if (i != keep[0] && i != keep[1] && i != p[0] && i != p[1])
			CONF_EQ(dup2(p[0], i), i);
	conf_exchange(keep[0], keep[1]);
	conf_exchange(keep[1], keep[0]);
	for (int i = 3; i < 1100; i++)
		if (i != keep[0] && i != keep[1] && i != p[0] && i != p[1])
			CONF_OK(close(i));
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	conf_exchange(keep[0], keep[1]);
}

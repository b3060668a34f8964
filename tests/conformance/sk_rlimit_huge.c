/* SPDX-License-Identifier: BSD-2-Clause */
/* A hard limit as large as the system allows: nothing is sized by it; starting up and a connection stay quick. */
#include "conf.h"

#include <sys/resource.h>

CONF_TEST(0)
{
	struct rlimit rl;
	int64_t from = conf_ms();
	long pages = 0;
	int fd[2];
	FILE *f = fopen("/proc/sys/fs/nr_open", "re");
	unsigned long long nr = 0;

	CONF_TRUE(f && fscanf(f, "%llu", &nr) == 1);
	fclose(f);
	rl.rlim_cur = rl.rlim_max = nr;
	if (setrlimit(RLIMIT_NOFILE, &rl) < 0) {
		CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
		rl.rlim_cur = nr = rl.rlim_max;
		CONF_OK(setrlimit(RLIMIT_NOFILE, &rl));
	}
	conf_pair(fd);
	CONF_OK(dup2(fd[0], (int)nr - 1));
	conf_exchange((int)nr - 1, fd[1]);
	CONF_OK(close((int)nr - 1));
	conf_exchange(fd[0], fd[1]);
	CONF_LE(conf_ms() - from, 3000);
	f = fopen("/proc/self/statm", "re");
	CONF_TRUE(f && fscanf(f, "%*d %ld", &pages) == 1);
	fclose(f);
	CONF_LE(pages, 64 * 256); /* 64 MiB resident */
}

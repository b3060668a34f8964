/* SPDX-License-Identifier: BSD-2-Clause */
/* Children that merely inherit streams, and end or exec with them closed on exec, change nothing: the connections go on
 * by the same way as before. One that a child does read from is the exception. */
#include "conf.h"

#define PAIRS 20

static int fd[PAIRS][2];

static void idle(void *arg)
{
	(void)arg;
	_exit(0);
}

static void execs(void *arg)
{
	char *argv[] = {(char *)"true", NULL};

	(void)arg;
	for (int i = 0; i < PAIRS; i++)
		for (int j = 0; j < 2; j++)
			CONF_OK(fcntl(fd[i][j], F_SETFD, FD_CLOEXEC));
	execv("/bin/true", argv);
	_exit(1);
}

static void closes(void *arg)
{
	(void)arg;
	for (int i = 0; i < PAIRS; i++)
		conf_close2(fd[i][0], fd[i][1]);
	_exit(0);
}

static void reads(void *arg)
{
	char c;

	(void)arg;
	conf_read_all(fd[3][1], &c, 1);
	_exit(0);
}

CONF_TEST(0)
{
	void (*const child[])(void *) = {idle, execs, closes};

	for (int i = 0; i < PAIRS; i++)
		conf_pair(fd[i]);
	for (size_t k = 0; k < CONF_ARRAY_SIZE(child); k++) {
		conf_join(conf_fork(child[k], NULL));
		for (int i = 0; i < PAIRS; i++)
			conf_exchange(fd[i][0], fd[i][1]);
		CONF_EQ(conf_shared(), 0);
	}
	conf_write_all(fd[3][0], "x", 1);
	conf_join(conf_fork(reads, NULL));
	for (int i = 0; i < PAIRS; i++)
		conf_exchange(fd[i][0], fd[i][1]);
	CONF_EQ(conf_shared(), conf_carried() ? 1 : 0);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Parent and child take turns on one inherited stream: one byte stream, in order. */
#include "conf.h"

#define TURNS 20

static int fd[2], turn[2][2];

static void child(void *arg)
{
	char c;

	(void)arg;
	for (int i = 0; i < TURNS; i++) {
		CONF_EQ(read(turn[0][0], &c, 1), 1);
		c = (char)('A' + i);
		conf_write_all(fd[1], &c, 1);
		CONF_EQ(write(turn[1][1], "x", 1), 1);
	}
	_exit(0);
}

CONF_TEST(0)
{
	pid_t pid;
	char c;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(pipe(turn[0]));
	CONF_OK(pipe(turn[1]));
	pid = conf_fork(child, NULL);
	for (int i = 0; i < TURNS; i++) {
		c = (char)('a' + i);
		conf_write_all(fd[1], &c, 1);
		CONF_EQ(write(turn[0][1], "x", 1), 1);
		CONF_EQ(read(turn[1][0], &c, 1), 1);
		conf_read_all(fd[0], &c, 1);
		CONF_EQ(c, 'a' + i);
		conf_read_all(fd[0], &c, 1);
		CONF_EQ(c, 'A' + i);
	}
	conf_join(pid);
	conf_exchange(fd[1], fd[0]);
}

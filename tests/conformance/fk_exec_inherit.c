/* SPDX-License-Identifier: BSD-2-Clause */
/* A connection is standard input and output of another program (inetd), preloaded or not: cat echoes over it. */
#include "conf.h"

extern char **environ;

static void echo(char **env)
{
	char *argv[] = {(char *)"cat", NULL}, buf[8];
	int fd[2], status;
	pid_t pid;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	pid = (pid_t)CONF_OK(fork());
	if (pid == 0) {
		dup2(fd[1], 0);
		dup2(fd[1], 1);
		closefrom(3);
		execve("/bin/cat", argv, env);
		_exit(1);
	}
	CONF_OK(close(fd[1]));
	conf_write_all(fd[0], "echo me", 7);
	conf_read_all(fd[0], buf, 7);
	CONF_EQ(memcmp(buf, "echo me", 7), 0);
	CONF_OK(shutdown(fd[0], SHUT_WR));
	conf_read_eof(fd[0]);
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_EQ(status, 0);
}

CONF_TEST(0)
{
	char *none[] = {NULL};

	echo(environ);
	echo(none);
}

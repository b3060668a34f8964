/* SPDX-License-Identifier: BSD-2-Clause */
/* accept, fork, the child answers on the inherited stream, the parent closes: the client gets it, then EOF at the
 * child's end (inetd, dual-channel replication). */
#include "conf.h"

static int fd[2];

static void child(void *arg)
{
	char buf[8];

	(void)arg;
	close(fd[0]);
	conf_read_all(fd[1], buf, 3);
	CONF_EQ(memcmp(buf, "ask", 3), 0);
	conf_write_all(fd[1], "answer", 6);
	CONF_OK(close(fd[1]));
	_exit(0);
}

CONF_TEST(0)
{
	char buf[8];
	pid_t pid;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	pid = conf_fork(child, NULL);
	CONF_OK(close(fd[1]));
	conf_write_all(fd[0], "ask", 3);
	conf_read_all(fd[0], buf, 6);
	CONF_EQ(memcmp(buf, "answer", 6), 0);
	conf_read_eof(fd[0]);
	conf_join(pid);
}

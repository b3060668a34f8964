/* SPDX-License-Identifier: BSD-2-Clause */
/* The parent closes while a child still holds a copy: the peer sees the end only when the child has gone. */
#include "conf.h"

static int fd[2], hold[2];

static void child(void *arg)
{
	char c;

	(void)arg;
	close(fd[1]);
	close(hold[1]);
	CONF_EQ(read(hold[0], &c, 1), 0);
	_exit(0);
}

CONF_TEST(0)
{
	pid_t pid;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(pipe(hold));
	pid = conf_fork(child, NULL);
	CONF_OK(close(hold[0]));
	conf_write_all(fd[0], "last", 4);
	CONF_OK(close(fd[0]));
	conf_drain(fd[1], 4);
	CONF_EVENTS(conf_poll1(fd[1], POLLIN | POLLRDHUP, 3 * CONF_QUIET_MS), 0);
	CONF_OK(close(hold[1]));
	conf_join(pid);
	conf_read_eof(fd[1]);
}

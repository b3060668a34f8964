/* SPDX-License-Identifier: BSD-2-Clause */
/* A forked child opens flagged connections of its own, as client and as server, while the parent's live on. */
#include "conf.h"

static int fd[2], listener;

static void child(void *arg)
{
	int mine[2], c;

	(void)arg;
	close(fd[0]);
	close(fd[1]);
	conf_pair(mine);
	conf_exchange(mine[0], mine[1]);
	conf_close2(mine[0], mine[1]);
	c = conf_dial(listener);
	close(listener);
	conf_write_all(c, "from child", 10);
	conf_read_eof(c);
	close(c);
}

CONF_TEST(CONF_TCP_TOO) /* a child may be on TCP, with the reason */
{
	char buf[10];
	pid_t pid;
	int s;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	listener = conf_listener(AF_INET, 4);
	for (int i = 0; i < 2; i++) {
		pid = conf_fork(child, NULL);
		s = (int)CONF_OK(accept(listener, NULL, NULL));
		conf_exchange(fd[0], fd[1]);
		conf_read_all(s, buf, 10);
		CONF_EQ(memcmp(buf, "from child", 10), 0);
		CONF_OK(close(s));
		conf_join(pid);
	}
	conf_exchange(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* vfork and exec, vfork and _exit, beside carried streams with data under way: nothing of the parent changes. */
#include "conf.h"

CONF_TEST(0)
{
	char *argv[] = {(char *)"true", NULL};
	int fd[2], status;

	conf_pair(fd);
	for (int i = 0; i < 20; i++) {
		pid_t pid;

		conf_write_all(fd[0], "under way", 9);
		pid = vfork();
		if (pid == 0) {
			/* As subprocess modules do it: descriptors are closed in the child before exec. */
			close(fd[0]);
			close(fd[1]);
			if (i & 1)
				execv("/bin/true", argv);
			_exit(0);
		}
		CONF_GE(pid, 1);
		CONF_EQ(waitpid(pid, &status, 0), pid);
		CONF_EQ(status, 0);
		conf_drain(fd[1], 9);
		conf_exchange(fd[0], fd[1]);
	}
	CONF_OK(close(fd[0]));
	conf_read_eof(fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* _Fork and a bare fork system call run no handlers: the child ends, closes, execs; the parent's streams live on. */
#include "conf.h"

static int fd[2];

static pid_t make(int how)
{
	switch (how) {
	case 0:
		return _Fork();
	default:
		return (pid_t)syscall(SYS_fork);
	}
}

CONF_TEST(0)
{
	char *argv[] = {(char *)"true", NULL};
	int status;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	for (int i = 0; i < 6; i++) {
		pid_t pid = make(i % 2);

		conf_note("round %d", i);
		if (pid == 0) {
			if (i >= 2) {
				close(fd[0]);
				close(fd[1]);
			}
			if (i >= 4)
				execv("/bin/true", argv);
			_exit(0);
		}
		CONF_GE(pid, 1);
		conf_exchange(fd[0], fd[1]);
		CONF_EQ(waitpid(pid, &status, 0), pid);
		CONF_EQ(status, 0);
		conf_exchange(fd[1], fd[0]);
	}
	CONF_OK(close(fd[0]));
	conf_read_eof(fd[1]);
}

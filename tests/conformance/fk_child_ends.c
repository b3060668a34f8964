/* SPDX-License-Identifier: BSD-2-Clause */
/* A child that inherits streams and ends (exit, _exit, quick_exit, a signal, exec) leaves the parent's connections be.
 */
#include "conf.h"

static int fd[2];

static void child(int how)
{
	char *argv[] = {(char *)"true", NULL};

	switch (how) {
	case 0:
		exit(0);
	case 1:
		_exit(0);
	case 2:
		quick_exit(0);
	case 3:
		raise(SIGKILL);
		break;
	case 4:
		execv("/bin/true", argv);
		break;
	case 5:
		syscall(SYS_exit_group, 0);
		break;
	default:
		close(fd[0]);
		close(fd[1]);
		_exit(0);
	}
	_exit(1);
}

CONF_TEST(0)
{
	int status;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	for (int how = 0; how < 7; how++) {
		pid_t pid;

		conf_note("way %d", how);
		conf_write_all(fd[0], "under way", 9);
		pid = (pid_t)CONF_OK(fork());
		if (pid == 0)
			child(how);
		CONF_EQ(waitpid(pid, &status, 0), pid);
		CONF_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), how == 3 ? -SIGKILL : 0);
		conf_drain(fd[1], 9);
		CONF_STATE(fd[0], POLLOUT);
		CONF_STATE(fd[1], POLLOUT);
		conf_exchange(fd[0], fd[1]);
	}
	CONF_OK(close(fd[0]));
	conf_read_eof(fd[1]);
	CONF_OK(close(fd[1]));
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A connection as standard input and output of programs started by posix_spawn, vfork and exec, popen and system. */
#include "conf.h"

#include <spawn.h>

extern char **environ;

static char *cat[] = {(char *)"cat", NULL};

static void echo(int peer, const char *what)
{
	char buf[16];
	size_t n = strlen(what);

	conf_write_all(peer, what, n);
	conf_read_all(peer, buf, n);
	CONF_EQ(memcmp(buf, what, n), 0);
}

static void ends(int peer, pid_t pid)
{
	int status;

	CONF_OK(shutdown(peer, SHUT_WR));
	conf_read_eof(peer);
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_EQ(status, 0);
	CONF_OK(close(peer));
}

static void by_spawn(int peer, int fd)
{
	posix_spawn_file_actions_t fa;
	pid_t pid;

	CONF_OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
	CONF_OK(fcntl(peer, F_SETFD, FD_CLOEXEC));
	CONF_EQ(posix_spawn_file_actions_init(&fa), 0);
	CONF_EQ(posix_spawn_file_actions_adddup2(&fa, fd, 0), 0);
	CONF_EQ(posix_spawn_file_actions_adddup2(&fa, fd, 1), 0);
	CONF_EQ(posix_spawn(&pid, "/bin/cat", &fa, NULL, cat, environ), 0);
	posix_spawn_file_actions_destroy(&fa);
	echo(peer, "spawn");
	CONF_OK(close(fd));
	ends(peer, pid);
}

static void by_vfork(int peer, int fd)
{
	pid_t pid;

	CONF_OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
	CONF_OK(fcntl(peer, F_SETFD, FD_CLOEXEC));
	pid = vfork();
	if (pid == 0) {
		dup2(fd, 0);
		dup2(fd, 1);
		execv("/bin/cat", cat);
		_exit(1);
	}
	echo(peer, "vfork");
	CONF_OK(close(fd));
	ends(peer, pid);
}

static void by_system(int peer, int fd)
{
	char cmd[64], buf[16];
	FILE *f;

	CONF_OK(fcntl(peer, F_SETFD, FD_CLOEXEC));
	snprintf(cmd, sizeof(cmd), "read line <&%d; echo got $line >&%d", fd, fd);
	conf_write_all(peer, "one\n", 4);
	CONF_EQ(system(cmd), 0);
	conf_read_all(peer, buf, 8);
	CONF_EQ(memcmp(buf, "got one\n", 8), 0);
	conf_write_all(peer, "two\n", 4);
	f = popen(cmd, "r");
	CONF_TRUE(f != NULL);
	conf_read_all(peer, buf, 8);
	CONF_EQ(memcmp(buf, "got two\n", 8), 0);
	CONF_EQ(pclose(f), 0);
	conf_close2(peer, fd);
}

CONF_TEST(0)
{
	void (*const way[])(int, int) = {by_spawn, by_vfork, by_system};
	int fd[2];

	for (size_t i = 0; i < CONF_ARRAY_SIZE(way); i++) {
		conf_note("way %zu", i);
		conf_pair(fd);
		conf_exchange(fd[0], fd[1]);
		way[i](fd[0], fd[1]);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* posix_spawn with file actions (close, dup2, closefrom), system and popen, beside carried streams. */
#include "conf.h"

#include <spawn.h>

extern char **environ;

static void spawn_cat(int fd0, int fd1)
{
	posix_spawn_file_actions_t fa;
	char *argv[] = {(char *)"cat", NULL}, buf[16] = "";
	int in[2], out[2], status;
	pid_t pid;

	CONF_OK(pipe2(in, O_CLOEXEC));
	CONF_OK(pipe2(out, O_CLOEXEC));
	CONF_EQ(posix_spawn_file_actions_init(&fa), 0);
	CONF_EQ(posix_spawn_file_actions_addclose(&fa, fd0), 0);
	CONF_EQ(posix_spawn_file_actions_adddup2(&fa, in[0], 0), 0);
	CONF_EQ(posix_spawn_file_actions_adddup2(&fa, out[1], 1), 0);
	CONF_EQ(posix_spawn_file_actions_addclosefrom_np(&fa, 3), 0);
	CONF_EQ(posix_spawn(&pid, "/bin/cat", &fa, NULL, argv, environ), 0);
	CONF_OK(close(in[0]));
	CONF_OK(close(out[1]));
	conf_exchange(fd0, fd1);
	conf_write_all(in[1], "through cat", 11);
	CONF_OK(close(in[1]));
	conf_read_all(out[0], buf, 11);
	CONF_EQ(memcmp(buf, "through cat", 11), 0);
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_EQ(status, 0);
	CONF_OK(close(out[0]));
	posix_spawn_file_actions_destroy(&fa);
	conf_exchange(fd1, fd0);
}

CONF_TEST(0)
{
	char line[32] = "";
	int fd[2];
	FILE *f;

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	for (int i = 0; i < 5; i++) {
		spawn_cat(fd[0], fd[1]);
		CONF_EQ(system("exit 7"), 7 << 8);
		conf_exchange(fd[0], fd[1]);
		f = popen("echo popen", "r");
		CONF_TRUE(f && fgets(line, sizeof(line), f));
		CONF_EQ(strcmp(line, "popen\n"), 0);
		CONF_EQ(pclose(f), 0);
		conf_exchange(fd[0], fd[1]);
	}
}

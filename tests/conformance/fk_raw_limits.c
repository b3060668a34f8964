/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Children made without handlers while another thread spawns: RLIMIT_NOFILE is the program's in them too, no lock is
 * left behind, and what the library needs of it is there again.
 */
#include "conf.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define LIMIT 160

static atomic_bool stop;

static void *spawner(void *arg)
{
	char *argv[] = {(char *)"true", NULL};
	pid_t pid;

	while (!stop) {
		CONF_EQ(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ), 0);
		CONF_EQ(waitpid(pid, NULL, 0), pid);
	}
	return NULL;
}

/* As the kernel has it, not the library. */
static unsigned long soft_in_the_kernel(void)
{
	char text[4096];
	unsigned long soft;
	int fd = open("/proc/self/limits", O_RDONLY);
	ssize_t n = read(fd, text, sizeof(text) - 1);
	const char *at;

	close(fd);
	if (n <= 0)
		return 0;
	text[n] = 0;
	at = strstr(text, "Max open files");
	return at && sscanf(at, "Max open files %lu", &soft) == 1 ? soft : 0;
}

static int child(const struct rlimit *want, unsigned long raised)
{
	struct rlimit seen;

	if (getrlimit(RLIMIT_NOFILE, &seen) || seen.rlim_cur != want->rlim_cur || seen.rlim_max != want->rlim_max)
		return 1;
	/* It was read by a call of the library's before, that is, after the child was found to be one. */
	if (soft_in_the_kernel() != raised)
		return 2;
	return 0;
}

CONF_TEST(0)
{
	struct rlimit rl;
	pthread_t t;
	int fd[2], status;
	unsigned long raised;
	pid_t pid;

	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	rl.rlim_cur = LIMIT;
	CONF_OK(setrlimit(RLIMIT_NOFILE, &rl));
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	raised = soft_in_the_kernel();
	if (conf_carried())
		CONF_NE(raised, LIMIT);
	CONF_EQ(pthread_create(&t, NULL, spawner, NULL), 0);
	for (int i = 0; i < 200; i++) {
		pid = _Fork();
		if (pid == 0) {
			alarm(20); /* a lock that nobody will give back */
			_exit(child(&rl, raised));
		}
		CONF_GE(pid, 1);
		CONF_EQ(waitpid(pid, &status, 0), pid);
		CONF_EQ(status, 0);
	}
	stop = true;
	pthread_join(t, NULL);
	conf_exchange(fd[0], fd[1]);
}

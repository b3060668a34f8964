/* SPDX-License-Identifier: BSD-2-Clause */
/* A process writes by stdio, or a child of it does, and ends at once: what was written arrives. */
#include "conf.h"

#define SIZE (1u << 20)

static char buf[SIZE];

static void child(int fd)
{
	FILE *f;

	conf_drain(fd, 1);
	f = fdopen(fd, "w");
	CONF_TRUE(f != NULL);
	conf_fill(buf, SIZE, 1, 0);
	CONF_EQ(fwrite(buf, 1, SIZE, f), SIZE);
	CONF_EQ(fflush(f), 0);
	exit(0);
}

static void grandchild(int fd)
{
	pid_t pid;
	int status;

	conf_drain(fd, 1);
	pid = (pid_t)CONF_OK(fork());
	if (pid == 0) {
		conf_fill(buf, SIZE, 1, 0);
		conf_write_all(fd, buf, SIZE);
		_exit(0);
	}
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_EQ(status, 0);
	_exit(0);
}

static void parent(int fd, pid_t pid)
{
	conf_write_all(fd, "x", 1);
	conf_read_all(fd, buf, SIZE);
	CONF_VERIFY(buf, SIZE, 1, 0);
	conf_join(pid);
	CONF_OK(close(fd));
}

/* In a process of its own: what forks has no socket, nor has it had one. */
static void first(void *arg)
{
	(void)arg;
	conf_two(parent, child);
}

CONF_TEST(0)
{
	conf_join(conf_fork(first, NULL));
	conf_two(parent, grandchild);
}

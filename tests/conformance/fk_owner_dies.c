/* SPDX-License-Identifier: BSD-2-Clause */
/* The process that made a connection ends while a child of it uses the connection. TCP goes on; carried, the connection
 * belongs to that process, and its heirs see the end (docs/semantics.md): never a hang. */
#include "conf.h"

static int up[2];

static void heir(int fd)
{
	char buf[16];
	ssize_t n;

	conf_write_all(fd, "heir", 4);
	CONF_EQ(write(up[1], "u", 1), 1);
	do
		n = read(fd, buf, sizeof(buf));
	while (n > 0);
	CONF_TRUE(n == 0 || errno == ECONNRESET);
	n = send(fd, buf, 1, MSG_NOSIGNAL);
	CONF_TRUE(n == 1 || errno == EPIPE || errno == ECONNRESET);
	CONF_EQ(write(up[1], "e", 1), 1);
	_exit(0);
}

static void child(int fd)
{
	if (fork() == 0)
		heir(fd);
	for (;;)
		pause();
}

static void parent(int fd, pid_t pid)
{
	char buf[4], c;
	int status;

	conf_read_all(fd, buf, 4);
	CONF_EQ(memcmp(buf, "heir", 4), 0);
	CONF_EQ(read(up[0], &c, 1), 1);
	conf_write_all(fd, "more", 4);
	CONF_OK(kill(pid, SIGKILL));
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_EQ(WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGKILL);
	if (!conf_carried())
		CONF_OK(shutdown(fd, SHUT_WR)); /* TCP's heir would stay */
	CONF_EQ(read(up[0], &c, 1), 1);
	CONF_EQ(c, 'e');
	CONF_OK(close(fd));
}

CONF_TEST(0)
{
	CONF_OK(pipe(up));
	conf_two(parent, child);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer is killed while we sleep in a read: we get what it had sent, then EOF or a reset, within seconds; writes
 * fail in the end. */
#include "conf.h"

static void child(int fd)
{
	char buf[16];

	conf_write_all(fd, "alive", 5);
	conf_read_all(fd, buf, 2);
	for (;;)
		pause();
}

static void parent(int fd, pid_t pid)
{
	int64_t from;
	char buf[16];
	ssize_t k;
	int status;

	conf_read_all(fd, buf, 5);
	conf_write_all(fd, "go", 2);
	conf_process_asleep(pid);
	CONF_OK(kill(pid, SIGKILL));
	from = conf_ms();
	CONF_NE(conf_poll1(fd, POLLIN | POLLRDHUP, CONF_PATIENCE_MS), 0);
	CONF_LE(conf_ms() - from, 5000);
	k = read(fd, buf, sizeof(buf));
	CONF_TRUE(k == 0 || (k == -1 && errno == ECONNRESET));
	CONF_UNTIL(send(fd, "x", 1, MSG_NOSIGNAL) == -1);
	CONF_TRUE(errno == EPIPE || errno == ECONNRESET);
	CONF_OK(close(fd));
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_TRUE(WIFSIGNALED(status));
}

CONF_TEST(0)
{
	conf_two(parent, child);
}

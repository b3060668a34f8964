/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer is killed in the middle of a large transfer: every byte that comes is right, then EOF or a reset. */
#include "conf.h"

static void child(int fd)
{
	static char buf[65536];
	char c;

	conf_read_all(fd, &c, 1);
	for (uint64_t off = 0;; off += sizeof(buf)) {
		conf_fill(buf, sizeof(buf), 3, off);
		conf_write_all(fd, buf, sizeof(buf));
	}
}

static void parent(int fd, pid_t pid)
{
	static char buf[30000];
	uint64_t off = 0;
	int status;
	ssize_t k;

	conf_write_all(fd, "g", 1);
	while ((k = read(fd, buf, sizeof(buf))) > 0) {
		CONF_VERIFY(buf, (size_t)k, 3, off);
		off += (uint64_t)k;
		if (off > 4000000 && off < 4000000 + sizeof(buf))
			CONF_OK(kill(pid, SIGKILL));
	}
	CONF_TRUE(k == 0 || errno == ECONNRESET);
	CONF_GE(off, 4000000);
	CONF_OK(close(fd));
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_TRUE(WIFSIGNALED(status));
}

CONF_TEST(0)
{
	conf_two(parent, child);
}

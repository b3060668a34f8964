/* SPDX-License-Identifier: BSD-2-Clause */
/* Two processes, one writes 32 MiB as fast as it can and closes; the other reads it all, then EOF. */
#include "conf.h"

#define TOTAL (32u << 20)

static void child(int fd)
{
	static char buf[65536];

	conf_read_all(fd, buf, 1);
	for (uint64_t off = 0; off < TOTAL; off += sizeof(buf)) {
		conf_fill(buf, sizeof(buf), 8, off);
		conf_write_all(fd, buf, sizeof(buf));
	}
	CONF_OK(close(fd));
}

static void parent(int fd, pid_t pid)
{
	static char buf[100000];
	uint64_t off = 0;
	ssize_t k;

	conf_write_all(fd, "g", 1);
	while ((k = CONF_OK(recv(fd, buf, sizeof(buf), 0))) > 0) {
		CONF_VERIFY(buf, (size_t)k, 8, off);
		off += (uint64_t)k;
	}
	CONF_EQ(off, TOTAL);
	CONF_OK(close(fd));
	conf_join(pid);
}

CONF_TEST(0)
{
	conf_two(parent, child);
}

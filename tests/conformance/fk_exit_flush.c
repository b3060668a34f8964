/* SPDX-License-Identifier: BSD-2-Clause */
/* What was written just before exit, _exit, quick_exit or exit_group arrives, though the writer is gone. */
#include "conf.h"

#define SIZE 30000 /* what a receiver takes while its program reads nothing */

static int way;

static void child(int fd)
{
	static char buf[SIZE];

	conf_fill(buf, SIZE, 7, 0);
	conf_write_all(fd, buf, SIZE);
	switch (way) {
	case 0:
		exit(conf_end());
	case 1:
		_exit(conf_end());
	case 2:
		quick_exit(conf_end());
	default:
		syscall(SYS_exit_group, conf_end());
	}
}

static void parent(int fd, pid_t pid)
{
	static char buf[SIZE];

	/* Read only once the writer has gone. */
	conf_join(pid);
	conf_read_all(fd, buf, SIZE);
	CONF_VERIFY(buf, SIZE, 7, 0);
	conf_read_eof(fd);
	CONF_OK(close(fd));
}

static void one_way(void *arg)
{
	way = (int)(intptr_t)arg;
	conf_two(parent, child);
	_exit(0);
}

CONF_TEST(CONF_NO_RDMA) /* by this process: its children check theirs */
{
	for (intptr_t i = 0; i < 4; i++) {
		conf_note("way %d", (int)i);
		conf_join(conf_fork(one_way, (void *)i));
	}
}

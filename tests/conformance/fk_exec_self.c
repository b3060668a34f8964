/* SPDX-License-Identifier: BSD-2-Clause */
/* exec by the process that owns carried connections: what it wrote is delivered, and the peer sees the end if the
 * number was close-on-exec. */
#include "conf.h"

int conf_plain(const char *arg, int port)
{
	(void)arg;
	return port == 5 ? 0 : 1;
}

static void child(int fd)
{
	char *argv[] = {(char *)"conf-plain", (char *)"--plain", (char *)"x", (char *)"5", NULL};
	static char buf[30000];

	conf_drain(fd, 2);
	conf_fill(buf, sizeof(buf), 1, 0);
	CONF_OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
	conf_write_all(fd, buf, sizeof(buf));
	execv("/proc/self/exe", argv);
	_exit(1);
}

static void parent(int fd, pid_t pid)
{
	static char buf[30000];

	conf_write_all(fd, "go", 2);
	conf_join(pid);
	conf_read_all(fd, buf, sizeof(buf));
	CONF_VERIFY(buf, sizeof(buf), 1, 0);
	conf_read_eof(fd);
	CONF_OK(close(fd));
}

CONF_TEST(0)
{
	conf_two(parent, child);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A server that execs its successor leaves it a listener that blocks, if it did. An exec that fails costs nothing. */
#include "conf.h"

int conf_plain(const char *arg, int port)
{
	int fd = (int)CONF_OK(accept(atoi(arg), NULL, NULL));

	conf_write_all(fd, "ok", 2);
	return port == 5 ? 0 : 1;
}

static void child(int fd)
{
	char number[16], *argv[] = {(char *)"conf-plain", (char *)"--plain", number, (char *)"5", NULL};
	int l = conf_listener(AF_INET, 8), port = conf_port(l);

	conf_drain(fd, 2);
	CONF_OK(fcntl(fd, F_SETFD, FD_CLOEXEC));
	CONF_ERR(execv("/", argv), EACCES);
	conf_write_all(fd, &port, sizeof(port));
	snprintf(number, sizeof(number), "%d", l);
	execv("/proc/self/exe", argv);
	_exit(1);
}

static void parent(int fd, pid_t pid)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = conf_addr4()};
	int port, c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char buf[2];

	conf_write_all(fd, "go", 2);
	conf_read_all(fd, &port, sizeof(port));
	conf_read_eof(fd);
	conf_process_asleep(pid);
	sin.sin_port = htons((uint16_t)port);
	CONF_OK(connect(c, (struct sockaddr *)&sin, sizeof(sin)));
	conf_read_all(c, buf, sizeof(buf));
	conf_join(pid);
	CONF_OK(close(c));
	CONF_OK(close(fd));
}

CONF_TEST(CONF_TCP_TOO)
{
	conf_two(parent, child);
}

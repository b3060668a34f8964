/* SPDX-License-Identifier: BSD-2-Clause */
/* A program built with _FORTIFY_SOURCE reads and polls through other names: they act the same, and catch overruns. */
#include "conf_io.h"

static void each(int a, int b)
{
	struct pollfd p = {.fd = b, .events = POLLIN};
	struct timespec now = {0};
	char buf[16];

	CONF_EQ(__poll_chk(&p, 1, 0, sizeof(p)), 0);
	conf_write_all(a, "fortified", 9);
	CONF_EQ(__poll_chk(&p, 1, CONF_PATIENCE_MS, sizeof(p)), 1);
	CONF_EVENTS(p.revents, POLLIN);
	p.revents = 0;
	CONF_EQ(__ppoll_chk(&p, 1, &now, NULL, sizeof(p)), 1);
	CONF_EVENTS(p.revents, POLLIN);
	CONF_EQ(__recv_chk(b, buf, 4, sizeof(buf), MSG_PEEK), 4);
	CONF_EQ(__read_chk(b, buf, 4, sizeof(buf)), 4);
	CONF_EQ(memcmp(buf, "fort", 4), 0);
	CONF_EQ(__recv_chk(b, buf, 2, sizeof(buf), 0), 2);
	CONF_EQ(__recvfrom_chk(b, buf, sizeof(buf), sizeof(buf), MSG_DONTWAIT, NULL, NULL), 3);
	CONF_EQ(memcmp(buf, "ied", 3), 0);
	CONF_ERR(__recv_chk(b, buf, sizeof(buf), sizeof(buf), MSG_DONTWAIT), EAGAIN);
	conf_close2(a, b);
}

static int fd[2];

static void overrun(void *arg)
{
	char buf[4];

	(void)arg;
	/* "*** buffer overflow detected ***" goes to the terminal or stderr: not ours to show. */
	CONF_OK(dup2((int)CONF_OK(open("/dev/null", O_WRONLY)), 2));
	__read_chk(fd[1], buf, 8, sizeof(buf));
	_exit(1);
}

CONF_TEST(0)
{
	int status = 0;
	pid_t pid;

	conf_each_role(each);
	conf_pair(fd);
	pid = conf_fork(overrun, NULL);
	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_TRUE(WIFSIGNALED(status));
	CONF_EQ(WTERMSIG(status), SIGABRT);
	conf_exchange(fd[0], fd[1]);
}

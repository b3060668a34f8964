/* SPDX-License-Identifier: BSD-2-Clause */
/* SCM_RIGHTS: a connected stream is handed to another process, which uses it; the sender closes its own copy. */
#include "conf.h"

static int sp[2];

static int receive(int s)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u;
	char c;
	struct iovec iov = {&c, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	int fd;

	CONF_EQ(recvmsg(s, &m, 0), 1);
	CONF_TRUE(CMSG_FIRSTHDR(&m) != NULL);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	return fd;
}

static void child(void *arg)
{
	int fd = receive(sp[1]);
	char buf[4];

	(void)arg;
	conf_read_all(fd, buf, 3);
	conf_write_all(fd, "yes", 3);
	close(fd);
	_exit(0);
}

static void pass(bool first)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u = {{0}};
	struct iovec iov = {(char[]){'f'}, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	int fd[2];
	char buf[4];
	pid_t pid;

	CONF_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, sp));
	pid = conf_fork(child, NULL);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	u.h.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&u.h), &fd[1], sizeof(int));
	CONF_EQ(sendmsg(sp[0], &m, 0), 1);
	/* The sender closes its copy before or after the receiver has used its own. */
	if (first)
		CONF_OK(close(fd[1]));
	conf_write_all(fd[0], "any", 3);
	conf_read_all(fd[0], buf, 3);
	CONF_EQ(memcmp(buf, "yes", 3), 0);
	if (!first)
		CONF_OK(close(fd[1]));
	conf_read_eof(fd[0]);
	conf_join(pid);
}

CONF_TEST(0)
{
	pass(true);
	pass(false);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Names and options of an inherited stream are those of TCP, in the child too. */
#include "conf.h"

static int fd[2];
static struct sockaddr_storage name[2];

static void check(int s, int i)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	int v;

	CONF_EQ(conf_name(s, &ss), sizeof(struct sockaddr_in));
	CONF_EQ(memcmp(&ss, &name[i], sizeof(struct sockaddr_in)), 0);
	CONF_OK(getpeername(s, (struct sockaddr *)&ss, &len));
	CONF_EQ(len, sizeof(struct sockaddr_in));
	CONF_EQ(memcmp(&ss, &name[!i], sizeof(struct sockaddr_in)), 0);
	len = sizeof(v);
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_DOMAIN, &v, &len));
	CONF_EQ(v, AF_INET);
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_TYPE, &v, &len));
	CONF_EQ(v, SOCK_STREAM);
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_ERROR, &v, &len));
	CONF_EQ(v, 0);
	CONF_OK(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &v, &len));
	CONF_EQ(v, 1);
	v = 1;
	CONF_OK(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof(v)));
	CONF_ERR(listen(s, 1), EINVAL);
	CONF_ERR(accept(s, NULL, NULL), EINVAL);
}

static void both(void *arg)
{
	(void)arg;
	check(fd[0], 0);
	check(fd[1], 1);
}

static void child(void *arg)
{
	char c;

	both(NULL);
	conf_write_all(fd[1], "x", 1);
	conf_read_all(fd[0], &c, 1);
	both(NULL);
	CONF_EQ(sendto(fd[1], "y", 1, 0, (struct sockaddr *)&name[0], sizeof(name[0])), 1);
	conf_read_all(fd[0], &c, 1);
	CONF_ERR(recv(fd[1], &c, 1, MSG_DONTWAIT), EAGAIN);
	_exit(0);
}

CONF_TEST(0)
{
	int one = 1;

	conf_pair(fd);
	for (int i = 0; i < 2; i++) {
		conf_name(fd[i], &name[i]);
		CONF_OK(setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
	}
	conf_exchange(fd[0], fd[1]);
	conf_join(conf_fork(child, NULL));
	both(NULL);
}

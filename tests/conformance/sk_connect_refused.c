/* SPDX-License-Identifier: BSD-2-Clause */
/* A closed port: blocking connect is ECONNREFUSED; non-blocking shows IN OUT ERR HUP RDHUP and SO_ERROR once. */
#include "conf.h"

static int so_error(int fd)
{
	int err = -1;
	socklen_t len = sizeof(err);

	CONF_OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
	return err;
}

CONF_TEST(CONF_TCP_TOO)
{
	const uint32_t all = POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP;
	struct sockaddr_in sin;
	int fd[2], c, r;

	conf_dead_addr(&sin);
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), ECONNREFUSED);
	CONF_EQ(so_error(c), 0);
	CONF_OK(close(c));

	conf_dead_addr(&sin);
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	r = connect(c, (struct sockaddr *)&sin, sizeof(sin));
	CONF_EQ(r, -1);
	CONF_EQ(errno, EINPROGRESS);
	CONF_STATE(c, all);
	CONF_EQ(so_error(c), ECONNREFUSED);
	CONF_EQ(so_error(c), 0);
	CONF_STATE(c, all & ~(uint32_t)POLLERR);
	CONF_OK(close(c));

	conf_dead_addr(&sin);
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), EINPROGRESS);
	CONF_STATE(c, all);
	/* The second connect takes the error, as read and write would. */
	CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), ECONNREFUSED);
	CONF_EQ(so_error(c), 0);
	CONF_OK(close(c));

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A connect in progress whose socket is made blocking meanwhile: its failure is seen by poll and told by SO_ERROR; its
 * success by poll. */
#include "conf.h"

static int begin(const struct sockaddr *sa, socklen_t len)
{
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));

	CONF_ERR(connect(fd, sa, len), EINPROGRESS);
	conf_nonblock(fd, false);
	return fd;
}

CONF_TEST(CONF_TCP_TOO)
{
	struct sockaddr_storage ss;
	struct sockaddr_in sin;
	socklen_t len = sizeof(int);
	int err = 0, l, c, s;

	conf_dead_addr(&sin);
	c = begin((struct sockaddr *)&sin, sizeof(sin));
	CONF_STATE(c, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, ECONNREFUSED);
	CONF_OK(close(c));

	l = conf_listener(AF_INET, 4);
	len = conf_name(l, &ss);
	c = begin((struct sockaddr *)&ss, len);
	CONF_STATE(c, EPOLLOUT);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);
}

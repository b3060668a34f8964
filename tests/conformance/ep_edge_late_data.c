/* SPDX-License-Identifier: BSD-2-Clause */
/* Bytes for a socket that was shut down both ways reset the connection: an edge, and one only, however many of them
 * were on their way. */
#include "conf.h"

static int go[2], done[2];

static void tell(int fd)
{
	CONF_EQ(write(fd, "g", 1), 1);
}

static void hear(int fd)
{
	char c;

	CONF_EQ(read(fd, &c, 1), 1);
}

static void sends(int fd)
{
	int i;

	hear(go[0]);
	conf_read_eof(fd);
	CONF_EQ(send(fd, "late", 4, MSG_NOSIGNAL), 4);
	for (i = 0; i < 5; i++) {
		hear(go[0]);
		send(fd, "later", 5, MSG_NOSIGNAL); /* it may have heard of the reset */
		tell(done[1]);
	}
	hear(go[0]);
	CONF_OK(close(fd));
}

static void waits(int fd, pid_t child)
{
	int ep = conf_epoll(), i;

	conf_ep_add(ep, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	CONF_OK(shutdown(fd, SHUT_RDWR));
	CONF_EP_EXPECT(ep, fd, EPOLLIN | EPOLLOUT | EPOLLHUP | EPOLLRDHUP);
	tell(go[1]);
	CONF_EP_EXPECT(ep, fd, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	for (i = 0; i < 5; i++) {
		tell(go[1]);
		hear(done[0]);
	}
	CONF_EP_QUIET(ep);
	tell(go[1]);
	CONF_OK(close(ep));
	CONF_OK(close(fd));
	conf_join(child);
}

CONF_TEST(CONF_NO_SEND)
{
	CONF_OK(pipe(go));
	CONF_OK(pipe(done));
	conf_two(waits, sends);
}

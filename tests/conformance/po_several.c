/* SPDX-License-Identifier: BSD-2-Clause */
/* poll and select of several sockets, one of them ready: the others are reported as they are, full or still connecting,
 * and not as a descriptor of another kind would be. */
#include "conf.h"

static void full(int a, int b)
{
	struct pollfd p[2];
	fd_set w;
	int other[2];

	conf_pair(other);
	conf_small_buffers(a, b);
	conf_nonblock(a, true);
	conf_stuff(a);
	CONF_STATE(a, 0);
	p[0] = (struct pollfd){.fd = other[0], .events = POLLOUT};
	p[1] = (struct pollfd){.fd = a, .events = POLLIN | POLLOUT};
	CONF_EQ(poll(p, 2, 1000), 1);
	CONF_EVENTS(p[0].revents, POLLOUT);
	CONF_EVENTS(p[1].revents, 0);
	FD_ZERO(&w);
	FD_SET(other[0], &w);
	FD_SET(a, &w);
	CONF_EQ(select((a > other[0] ? a : other[0]) + 1, NULL, &w, NULL, NULL), 1);
	CONF_TRUE(!FD_ISSET(a, &w));
	conf_close2(other[0], other[1]);
	conf_close2(a, b);
}

static void connecting(int a, int b)
{
	struct sockaddr_storage ss;
	struct pollfd p[2];
	int l = conf_listener(AF_INET, 16), fd;
	socklen_t len = conf_name(l, &ss);

	for (int i = 0; i < 10; i++) {
		fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(fd, (struct sockaddr *)&ss, len), EINPROGRESS);
		p[0] = (struct pollfd){.fd = a, .events = POLLOUT};
		p[1] = (struct pollfd){.fd = fd, .events = POLLIN | POLLOUT};
		do {
			CONF_GE(poll(p, 2, 1000), 1);
			CONF_EVENTS(p[1].revents & ~POLLOUT, 0);
		} while (!p[1].revents);
		CONF_STATE(fd, POLLOUT);
		CONF_OK(close(fd));
	}
	CONF_OK(close(l));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(full);
	conf_each_role(connecting);
}

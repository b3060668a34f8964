/* SPDX-License-Identifier: BSD-2-Clause */
/* A carried number is closed and reused by a pipe, a file, an eventfd, a UDP socket: plain things act plainly. */
#include "conf.h"

static int reopen(int number, int fd)
{
	if (fd == number)
		return fd;
	CONF_EQ(dup2(fd, number), number);
	CONF_OK(close(fd));
	return number;
}

static void each(int a, int b)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	uint64_t v = 3;
	int ep = conf_epoll(), p[2], n = a;
	char buf[8];

	conf_ep_add(ep, a, EPOLLIN);
	conf_exchange(a, b);
	CONF_OK(close(a));
	conf_read_eof(b);
	CONF_OK(close(b));
	CONF_OK(pipe(p));
	if (p[1] == n)
		p[1] = (int)CONF_OK(dup(n));
	p[0] = reopen(n, p[0]);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, n, NULL), ENOENT);
	conf_ep_add(ep, n, EPOLLIN);
	CONF_EVENTS(conf_poll1(n, POLLIN, 0), 0);
	conf_write_all(p[1], "p", 1);
	CONF_EVENTS(conf_poll1(n, POLLIN, 0), POLLIN);
	CONF_EP_EXPECT(ep, n, EPOLLIN);
	CONF_EQ(read(n, buf, 8), 1);
	conf_close2(p[0], p[1]);
	n = reopen(n, (int)CONF_OK(eventfd(0, EFD_NONBLOCK)));
	CONF_ERR(read(n, &v, 8), EAGAIN);
	CONF_EQ(write(n, &v, 8), 8);
	CONF_EQ(read(n, &v, 8), 8);
	CONF_OK(close(n));
	n = reopen(n, (int)CONF_OK(socket(AF_INET, SOCK_DGRAM, 0)));
	CONF_OK(bind(n, (struct sockaddr *)&sin, sizeof(sin)));
	CONF_OK(getsockname(n, (struct sockaddr *)&sin, &len));
	CONF_OK(connect(n, (struct sockaddr *)&sin, sizeof(sin)));
	CONF_EQ(send(n, "udp", 3, 0), 3);
	CONF_EQ(recv(n, buf, 8, 0), 3);
	conf_close2(n, ep);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

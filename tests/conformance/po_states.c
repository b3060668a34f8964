/* SPDX-License-Identifier: BSD-2-Clause */
/* poll's masks through a connection's life: fresh, listening, connected, data, full, half closed, closed. */
#include "conf.h"

static void each(int a, int b)
{
	size_t total;
	char buf[4];

	CONF_STATE(a, POLLOUT);
	conf_write_all(a, "data", 4);
	CONF_STATE(b, POLLIN | POLLOUT);
	CONF_EVENTS(conf_poll1(b, POLLIN | POLLRDNORM | POLLWRNORM | POLLPRI, 0), POLLIN | POLLRDNORM | POLLWRNORM);
	CONF_EVENTS(conf_poll1(b, POLLRDBAND | POLLWRBAND, 0) & ~(uint32_t)POLLWRBAND, 0);
	conf_read_all(b, buf, 4);
	CONF_STATE(b, POLLOUT);
	conf_small_buffers(a, b);
	total = conf_stuff(a);
	CONF_STATE(a, 0);
	CONF_STATE(b, POLLIN | POLLOUT);
	conf_drain(b, total);
	CONF_STATE(a, POLLOUT);
	CONF_STATE(b, POLLOUT);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EVENTS(conf_poll1(b, POLLIN, 0), POLLIN);
	CONF_EVENTS(conf_poll1(b, POLLRDHUP, 0), POLLRDHUP);
	CONF_EVENTS(conf_poll1(b, 0, 0), 0);
	CONF_OK(close(b));
	CONF_STATE(a, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));

	CONF_STATE(fd, POLLOUT | POLLHUP);
	CONF_OK(close(fd));
	fd = conf_listener(AF_INET, 1);
	CONF_STATE(fd, 0);
	CONF_OK(close(fd));
	conf_each_role(each);
}

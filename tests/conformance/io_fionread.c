/* SPDX-License-Identifier: BSD-2-Clause */
/* FIONREAD counts what a read would deliver: 0, after several writes, after a partial read, and at EOF. */
#include "conf.h"

static int inq(int fd)
{
	int n = -1;

	CONF_OK(ioctl(fd, FIONREAD, &n));
	return n;
}

static void each(int a, int b)
{
	char buf[100] = "";

	CONF_EQ(inq(b), 0);
	conf_write_all(a, buf, 10);
	conf_write_all(a, buf, 1);
	conf_write_all(a, buf, 89);
	conf_wait_inq(b, 100);
	CONF_EQ(recv(b, buf, 40, MSG_PEEK), 40);
	CONF_EQ(inq(b), 100);
	CONF_EQ(read(b, buf, 40), 40);
	CONF_EQ(inq(b), 60);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(inq(b), 60);
	CONF_EQ(read(b, buf, 100), 60);
	CONF_EQ(inq(b), 0);
	CONF_EQ(read(b, buf, 100), 0);
	CONF_EQ(inq(b), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), n;

	CONF_ERR(ioctl(l, FIONREAD, &n), EINVAL);
	close(l);
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* splice between a pipe and the socket, both ways; tee, two sockets and offsets are refused as on any socket. */
#include "conf.h"

static void each(int a, int b)
{
	int p[2];
	char buf[16] = "";
	loff_t off = 0;

	CONF_OK(pipe(p));
	conf_write_all(p[1], "through", 7);
	CONF_EQ(splice(p[0], NULL, a, NULL, 7, 0), 7);
	conf_read_all(b, buf, 7);
	CONF_EQ(memcmp(buf, "through", 7), 0);
	conf_write_all(a, "return", 6);
	conf_wait_inq(b, 6);
	CONF_EQ(splice(b, NULL, p[1], NULL, 100, 0), 6);
	conf_read_all(p[0], buf, 6);
	CONF_EQ(memcmp(buf, "return", 6), 0);
	conf_nonblock(b, true);
	CONF_ERR(splice(b, NULL, p[1], NULL, 100, 0), EAGAIN);
	conf_nonblock(b, false);
	CONF_ERR(splice(b, &off, p[1], NULL, 1, 0), EINVAL);
	conf_write_all(p[1], "x", 1);
	CONF_ERR(splice(p[0], NULL, a, &off, 1, 0), EINVAL);
	CONF_ERR(splice(a, NULL, b, NULL, 1, 0), EINVAL);
	CONF_ERR(tee(p[0], a, 1, 0), EINVAL);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_EQ(splice(b, NULL, p[1], NULL, 100, 0), 0);
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

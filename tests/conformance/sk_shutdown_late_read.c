/* SPDX-License-Identifier: BSD-2-Clause */
/* A has shut down writing, B has read to the end, answered and closed, and its listener closes: A reads the answer and
 * the end whenever it likes. */
#include "conf.h"

static void hear(int fd)
{
	char buf[5000];
	int err = -1;
	socklen_t len = sizeof(err);

	conf_read_all(fd, buf, sizeof(buf));
	CONF_VERIFY(buf, sizeof(buf), 1, 0);
	conf_read_eof(fd);
	CONF_OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
	CONF_EQ(err, 0);
	CONF_STATE(fd, POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CONF_OK(close(fd));
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 64), a[2], b, i;
	char buf[5000];

	conf_fill(buf, sizeof(buf), 1, 0);
	for (i = 0; i < 2; i++) {
		a[i] = conf_dial(l);
		b = CONF_OK(accept(l, NULL, NULL));
		CONF_OK(shutdown(a[i], SHUT_WR));
		conf_read_eof(b);
		conf_write_all(b, buf, sizeof(buf));
		CONF_OK(close(b));
		conf_wait_inq(a[i], sizeof(buf));
	}
	/* What the ends do behind these calls. */
	conf_poll1(a[0], POLLERR, CONF_QUIET_MS);
	hear(a[0]);
	CONF_OK(close(l));
	conf_poll1(a[1], POLLERR, CONF_QUIET_MS);
	hear(a[1]);
}

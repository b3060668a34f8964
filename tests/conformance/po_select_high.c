/* SPDX-License-Identifier: BSD-2-Clause */
/* Bits of the sets above nfds: cleared up to the end of their long, untouched beyond; never looked at. */
#include "conf.h"

static void each(int a, int b)
{
	struct timeval tv = {0};
	fd_set r;
	int n, dead;

	/* Put b low in a long, so that there is something above it. */
	n = (int)CONF_OK(fcntl(b, F_DUPFD, 130));
	CONF_EQ(n % 64 < 60, 1);
	dead = n + 2;
	CONF_ERR(fcntl(dead, F_GETFD), EBADF);
	conf_write_all(a, "x", 1);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
	FD_ZERO(&r);
	FD_SET(n, &r);
	FD_SET(dead, &r);
	FD_SET(500, &r);
	CONF_EQ(select(n + 1, &r, NULL, NULL, &tv), 1);
	CONF_TRUE(FD_ISSET(n, &r));
	CONF_TRUE(!FD_ISSET(dead, &r));
	CONF_TRUE(FD_ISSET(500, &r));
	CONF_OK(close(n));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* select: counts bits not descriptors, clears what is not ready, leaves the rest of time, EBADF, EINVAL. */
#include "conf.h"

static void each(int a, int b)
{
	struct timeval tv = {2, 0}, neg = {-1, 0};
	fd_set r, w, e;
	int max = (a > b ? a : b) + 1, dead = (int)CONF_OK(dup(a));

	conf_write_all(a, "x", 1);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&e);
	FD_SET(a, &r);
	FD_SET(b, &r);
	FD_SET(a, &w);
	FD_SET(b, &w);
	FD_SET(a, &e);
	FD_SET(b, &e);
	CONF_EQ(select(max, &r, &w, &e, &tv), 3);
	CONF_TRUE(!FD_ISSET(a, &r) && FD_ISSET(b, &r) && FD_ISSET(a, &w) && FD_ISSET(b, &w));
	CONF_TRUE(!FD_ISSET(a, &e) && !FD_ISSET(b, &e));
	CONF_GE(tv.tv_sec, 1);
	conf_drain(b, 1);
	FD_SET(b, &r);
	tv = (struct timeval){0, 50000};
	CONF_EQ(select(max, &r, NULL, NULL, &tv), 0);
	CONF_EQ(tv.tv_sec * 1000000 + tv.tv_usec, 0);
	CONF_TRUE(!FD_ISSET(b, &r));

	/* On error the sets are left as they were. */
	CONF_OK(close(dead));
	FD_SET(b, &r);
	FD_SET(dead, &r);
	max = dead > max ? dead + 1 : max + 1;
	CONF_ERR(select(max, &r, NULL, NULL, NULL), EBADF);
	CONF_TRUE(FD_ISSET(b, &r));
	CONF_ERR(select(-1, NULL, NULL, NULL, NULL), EINVAL);
	FD_CLR(dead, &r);
	CONF_ERR(select(max, &r, NULL, NULL, &neg), EINVAL);
	/* RDHUP alone counts as readable; a reset as readable, writable and not exceptional. */
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	FD_ZERO(&e);
	FD_SET(b, &r);
	FD_SET(b, &e);
	tv = (struct timeval){0};
	CONF_EQ(select(max, &r, NULL, &e, &tv), 1);
	CONF_TRUE(FD_ISSET(b, &r));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

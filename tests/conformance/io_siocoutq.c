/* SPDX-License-Identifier: BSD-2-Clause */
/* SIOCOUTQ: 0 when all has been delivered, more than 0 and at most what was written while the peer takes nothing. */
#include "conf.h"

#include <linux/sockios.h>

static int outq(int fd)
{
	int n = -1;

	CONF_OK(ioctl(fd, SIOCOUTQ, &n));
	return n;
}

static void each(int a, int b)
{
	size_t total;

	CONF_EQ(outq(a), 0);
	conf_exchange(a, b);
	CONF_UNTIL(outq(a) == 0);
	conf_small_buffers(a, b);
	total = conf_stuff(a);
	CONF_GE(outq(a), 1);
	CONF_LE(outq(a), total);
	conf_drain(b, total);
	CONF_UNTIL(outq(a) == 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), n;

	CONF_ERR(ioctl(l, SIOCOUTQ, &n), EINVAL);
	close(l);
	conf_each_role(each);
}

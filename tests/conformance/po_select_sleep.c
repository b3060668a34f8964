/* SPDX-License-Identifier: BSD-2-Clause */
/* select, poll and pselect with no descriptors are sleeps that return on time. */
#include "conf.h"

CONF_TEST(0)
{
	struct timeval tv = {0, 40000};
	struct timespec ts = {0, 40000000};
	int fd[2];
	int64_t from = conf_ns();

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	from = conf_ns();
	CONF_EQ(select(0, NULL, NULL, NULL, &tv), 0);
	CONF_GE(conf_ns() - from, 40000000);
	from = conf_ns();
	CONF_EQ(pselect(0, NULL, NULL, NULL, &ts, NULL), 0);
	CONF_GE(conf_ns() - from, 40000000);
	from = conf_ns();
	CONF_EQ(poll(NULL, 0, 40), 0);
	CONF_GE(conf_ns() - from, 40000000);
	CONF_LE(conf_ns() - from, 2000000000);
	conf_close2(fd[0], fd[1]);
}

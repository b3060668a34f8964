/* SPDX-License-Identifier: BSD-2-Clause */
/* Sleeping and waking between two processes: twenty thousand turns, alternating between a blocking read and poll. */
#include "conf.h"

#define TURNS (20000u / (unsigned)conf_scale())

static void child(int fd)
{
	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t got;

		if (i & 1)
			CONF_NE(conf_poll1(fd, POLLIN, CONF_PATIENCE_MS), 0);
		conf_read_all(fd, &got, sizeof(got));
		CONF_EQ(got, i);
		conf_write_all(fd, &got, sizeof(got));
	}
}

static void parent(int fd, pid_t pid)
{
	int ep = conf_epoll();

	conf_ep_add(ep, fd, EPOLLIN);
	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t got = 0;

		conf_write_all(fd, &i, sizeof(i));
		if (i % 3 == 0)
			CONF_EP_EXPECT(ep, fd, EPOLLIN);
		conf_read_all(fd, &got, sizeof(got));
		CONF_EQ(got, i);
	}
	conf_join(pid);
	conf_close2(fd, ep);
}

CONF_TEST(CONF_LONG)
{
	conf_two(parent, child);
}

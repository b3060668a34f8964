/* SPDX-License-Identifier: BSD-2-Clause */
/* poll's arguments: a closed number is NVAL, a negative one is skipped, the same twice, no entries, EINVAL. */
#include "conf.h"

#include <sys/resource.h>

static void each(int a, int b)
{
	struct pollfd p[6];
	struct rlimit rl;
	struct timespec bad = {.tv_nsec = 1000000000}, zero = {0};
	int dead = (int)CONF_OK(dup(a));

	CONF_OK(close(dead));
	conf_write_all(a, "x", 1);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
	p[0] = (struct pollfd){b, POLLIN, 99};
	p[1] = (struct pollfd){dead, POLLIN, 99};
	p[2] = (struct pollfd){-1, POLLIN, 99};
	p[3] = (struct pollfd){b, POLLOUT, 99};
	p[4] = (struct pollfd){-b - 1, POLLIN | POLLOUT, 99};
	p[5] = (struct pollfd){a, POLLIN, 99};
	CONF_EQ(poll(p, 6, -1), 3);
	CONF_EVENTS(p[0].revents, POLLIN);
	CONF_EVENTS(p[1].revents, POLLNVAL);
	CONF_EVENTS(p[2].revents, 0);
	CONF_EVENTS(p[3].revents, POLLOUT);
	CONF_EVENTS(p[4].revents, 0);
	CONF_EVENTS(p[5].revents, 0);
	CONF_EQ(p[0].events, POLLIN);
	/* NVAL comes at once though nothing else is ready. */
	p[0] = (struct pollfd){a, POLLIN, 0};
	CONF_EQ(poll(p, 2, -1), 1);
	CONF_EQ(poll(NULL, 0, 0), 0);
	CONF_EQ(poll(NULL, 0, 1), 0);
	CONF_ERR(ppoll(p, 1, &bad, NULL), EINVAL);
	CONF_EQ(ppoll(p, 1, &zero, NULL), 0);
	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	CONF_ERR(poll(p, rl.rlim_cur + 1, 0), EINVAL);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	struct rlimit rl;

	/* Lower than the library needs it: the limit that counts is the program's own. */
	CONF_OK(getrlimit(RLIMIT_NOFILE, &rl));
	rl.rlim_cur = 200;
	CONF_OK(setrlimit(RLIMIT_NOFILE, &rl));
	conf_each_role(each);
}

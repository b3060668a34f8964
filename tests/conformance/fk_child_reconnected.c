/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket that was disconnected by connect(AF_UNSPEC) and connected again, many times: a child uses the connection
 * that it has now, and nothing is left of the earlier ones. */
#include "conf.h"

#define TIMES 10

static int c;

static void child(void *arg)
{
	(void)arg;
	conf_write_all(c, "child", 5);
	_exit(0);
}

CONF_TEST(0)
{
	const struct sockaddr un = {.sa_family = AF_UNSPEC};
	struct sockaddr_storage ss;
	int l = conf_listener(AF_INET, 4), s, fds = 0;
	socklen_t len = conf_name(l, &ss);
	char buf[8];

	c = conf_dial(l);
	for (int i = 0; i < TIMES; i++) {
		s = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(c, s);
		if (i == 0) /* what a thread sleeps with is made once: now */
			CONF_EQ(conf_poll1(c, POLLIN, 20), 0);
		CONF_OK(connect(c, &un, sizeof(un)));
		CONF_OK(close(s));
		CONF_OK(connect(c, (struct sockaddr *)&ss, len));
		if (i == 0)
			fds = conf_count_fds();
	}
	CONF_UNTIL(conf_count_fds() <= fds);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_join(conf_fork(child, NULL));
	conf_read_all(s, buf, 5);
	CONF_EQ(memcmp(buf, "child", 5), 0);
	conf_exchange(c, s);
	CONF_EQ(conf_shared(), conf_carried() ? 1 : 0);
}

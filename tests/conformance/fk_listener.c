/* SPDX-License-Identifier: BSD-2-Clause */
/* A child closes the inherited listener, or ends with it: the parent goes on accepting; also with a client waiting. */
#include "conf.h"

static int listener;

static void closes(void *arg)
{
	(void)arg;
	CONF_OK(close(listener));
	_exit(0);
}

static void ends(void *arg)
{
	(void)arg;
	_exit(0);
}

CONF_TEST(0)
{
	int c, s;

	listener = conf_listener(AF_INET, 4);
	for (int i = 0; i < 4; i++) {
		c = i & 2 ? conf_dial(listener) : -1;
		conf_join(conf_fork(i & 1 ? closes : ends, NULL));
		if (c < 0)
			c = conf_dial(listener);
		s = (int)CONF_OK(accept(listener, NULL, NULL));
		conf_exchange(c, s);
		conf_close2(c, s);
	}
}

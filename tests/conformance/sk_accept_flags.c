/* SPDX-License-Identifier: BSD-2-Clause */
/* accept from a non-blocking listener gives a blocking socket; the listener's own flag stays as set; EAGAIN when empty.
 */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), c, s;

	conf_nonblock(l, true);
	CONF_ERR(accept(l, NULL, NULL), EAGAIN);
	CONF_ERR(accept4(l, NULL, NULL, SOCK_CLOEXEC), EAGAIN);
	c = conf_dial(l);
	CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EQ(fcntl(s, F_GETFL) & O_NONBLOCK, 0);
	CONF_EQ(fcntl(s, F_GETFD), 0);
	CONF_EQ(fcntl(l, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	CONF_ERR(accept(l, NULL, NULL), EAGAIN);
	conf_exchange(c, s);
	conf_close2(c, s);
	/* A blocking listener shows no O_NONBLOCK, whatever a library does with it underneath. */
	conf_nonblock(l, false);
	CONF_EQ(fcntl(l, F_GETFL) & O_NONBLOCK, 0);
	c = conf_dial(l);
	s = (int)CONF_OK(accept4(l, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
	CONF_EQ(fcntl(s, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	CONF_EQ(fcntl(s, F_GETFD), FD_CLOEXEC);
	CONF_EQ(fcntl(l, F_GETFL) & O_NONBLOCK, 0);
	conf_exchange(c, s);
	conf_close2(c, s);
}

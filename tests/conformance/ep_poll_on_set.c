/* SPDX-License-Identifier: BSD-2-Clause */
/* poll on an epoll set says IN only when a wait on the set would report something: bytes for a member that is not
 * registered for them do not. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll();

	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
	conf_ep_add(ep, b, EPOLLRDHUP | EPOLLET);
	CONF_EVENTS(conf_poll1(ep, POLLIN, 0), 0);
	for (int i = 2; i < 20; i++) {
		conf_write_all(a, "x", 1);
		conf_wait_inq(b, i);
		CONF_EVENTS(conf_poll1(ep, i % 2 ? POLLIN : POLLRDNORM, 0), 0);
		CONF_EP_QUIET(ep);
	}
	conf_ep_mod(ep, b, EPOLLIN);
	CONF_EVENTS(conf_poll1(ep, POLLIN, 0), EPOLLIN);
	CONF_OK(close(ep));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

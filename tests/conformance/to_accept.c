/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_RCVTIMEO on a listener bounds accept; a connection in time is accepted; it is inherited by what is accepted. */
#include "conf.h"

CONF_TEST(0)
{
	struct timeval tv = {.tv_usec = 80000}, got;
	socklen_t len = sizeof(got);
	int l = conf_listener(AF_INET, 4), c, s;
	int64_t from = conf_ns();

	CONF_OK(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	CONF_ERR(accept(l, NULL, NULL), EAGAIN);
	CONF_GE(conf_ns() - from, 80000000 - CONF_JIFFY_NS);
	from = conf_ns();
	CONF_ERR(accept4(l, NULL, NULL, SOCK_NONBLOCK), EAGAIN);
	CONF_GE(conf_ns() - from, 80000000 - CONF_JIFFY_NS);
	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_OK(getsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	CONF_EQ(got.tv_usec, 80000);
	conf_exchange(c, s);
	conf_close2(c, s);
}

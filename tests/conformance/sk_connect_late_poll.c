/* SPDX-License-Identifier: BSD-2-Clause */
/* Non-blocking connect, then no call of the program at all for a second: it has completed meanwhile, poll(0) says OUT.
 */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), c, s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	struct timespec second = {.tv_sec = 1};

	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	/* The pause is the behaviour under test: nobody calls into the library. */
	nanosleep(&second, NULL);
	CONF_EVENTS(conf_poll1(c, POLLIN | POLLOUT, 0), POLLOUT);
	CONF_EVENTS(conf_poll1(l, POLLIN, 0), POLLIN);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);
}

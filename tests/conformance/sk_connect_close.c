/* SPDX-License-Identifier: BSD-2-Clause */
/* A non-blocking connect that is abandoned by close at once: nothing hangs, the listener survives, later ones work. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 64), c, s, before;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	/* What a thread sleeps with is made once; without this it would be when a later call first has to wait. */
	CONF_EQ(conf_poll1(s, POLLIN, 20), 0);
	conf_close2(c, s);
	before = conf_count_fds();
	for (int i = 0; i < 30; i++) {
		c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
		CONF_OK(close(c));
	}
	c = conf_dial(l);
	conf_write_all(c, "mark", 4);
	/* Whatever of the abandoned ones got through shows EOF or a reset; ours comes. */
	for (;;) {
		char buf[4];
		ssize_t k;

		s = (int)CONF_OK(accept(l, NULL, NULL));
		k = recv(s, buf, 4, MSG_WAITALL);
		if (k == 4)
			break;
		CONF_TRUE(k == 0 || (k < 0 && errno == ECONNRESET));
		CONF_OK(close(s));
	}
	conf_exchange(c, s);
	conf_close2(c, s);
	CONF_UNTIL(conf_count_fds() <= before);
}

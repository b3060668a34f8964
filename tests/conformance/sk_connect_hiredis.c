/* SPDX-License-Identifier: BSD-2-Clause */
/* hiredis: non-blocking connect gives EINPROGRESS, poll OUT, then a second connect that expects EISCONN (or 0). */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 8), err = -1;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss), elen = sizeof(err);

	for (int i = 0; i < 6; i++) {
		int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s, r;

		conf_nonblock(c, true);
		CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
		CONF_EVENTS(conf_poll1(c, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
		r = connect(c, (struct sockaddr *)&ss, len);
		/* Linux: the first call after the handshake may finish the connect (0); from then on EISCONN. */
		CONF_TRUE(r == 0 || errno == EISCONN);
		CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EISCONN);
		CONF_OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &err, &elen));
		CONF_EQ(err, 0);
		conf_nonblock(c, false);
		s = (int)CONF_OK(accept(l, NULL, NULL));
		conf_exchange(c, s);
		conf_close2(c, s);
	}
}

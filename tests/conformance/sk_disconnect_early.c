/* SPDX-License-Identifier: BSD-2-Clause */
/* connect(AF_UNSPEC) ends an attempt that is under way: whatever the listener sees of it ends too, while the socket
 * lives on and connects anew. */
#include "conf.h"

/* True if the connection is the one that speaks; one of those that were given up comes to its end. */
static bool speaks(int s)
{
	char buf = 0;
	ssize_t k;

	CONF_NE(conf_poll1(s, POLLIN, CONF_PATIENCE_MS) & POLLIN, 0);
	k = read(s, &buf, 1);
	if (k == 1)
		return true;
	CONF_TRUE(k == 0 || (k == -1 && errno == ECONNRESET));
	CONF_OK(close(s));
	return false;
}

CONF_TEST(0)
{
	static const struct sockaddr un = {.sa_family = AF_UNSPEC};
	int l = conf_listener(AF_INET, 8), c, s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	for (int i = 0; i < 3; i++) {
		CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
		CONF_OK(connect(c, &un, sizeof(un)));
	}
	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	CONF_EVENTS(conf_poll1(c, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
	conf_write_all(c, "x", 1);
	do {
		CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
		s = (int)CONF_OK(accept(l, NULL, NULL));
	} while (!speaks(s));
	conf_exchange(c, s);
	conf_close2(c, s);
}

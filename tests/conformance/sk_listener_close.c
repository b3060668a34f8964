/* SPDX-License-Identifier: BSD-2-Clause */
/* A listener is closed with connections waiting: the clients see a reset or the end, and the port refuses after it. */
#include "conf.h"

CONF_TEST(CONF_TCP_TOO)
{
	int l = conf_listener(AF_INET, 8), c[4], fd[2], d;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	char buf;

	for (int i = 0; i < 4; i++)
		c[i] = conf_dial(l);
	CONF_OK(close(l));
	for (int i = 0; i < 4; i++) {
		ssize_t k;

		CONF_NE(conf_poll1(c[i], POLLIN, CONF_PATIENCE_MS) & POLLIN, 0);
		k = read(c[i], &buf, 1);
		CONF_TRUE(k == 0 || (k == -1 && errno == ECONNRESET));
		CONF_OK(close(c[i]));
	}
	d = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_ERR(connect(d, (struct sockaddr *)&ss, len), ECONNREFUSED);
	CONF_OK(close(d));
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A full backlog holds others back; accepting makes room, and everybody who waits gets served in the end. */
#include "conf.h"

#define N 12

CONF_TEST(CONF_TCP_TOO) /* who meets a full backlog may come over TCP */
{
	int l = conf_listener(AF_INET, 3), c[N], s, served = 0;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	bool seen[N] = {false};

	for (int i = 0; i < N; i++) {
		c[i] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(c[i], (struct sockaddr *)&ss, len), EINPROGRESS);
	}
	while (served < N) {
		unsigned char who;

		CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
		s = (int)CONF_OK(accept(l, NULL, NULL));
		for (int i = 0; i < N; i++)
			if (c[i] >= 0 && !seen[i] && conf_poll1(c[i], POLLOUT, 0) == POLLOUT) {
				conf_write_all(c[i], &(unsigned char){(unsigned char)i}, 1);
				seen[i] = true;
			}
		/* Accepted means established at both ends; its own first byte may only be written in a later round. */
		while (conf_poll1(s, POLLIN, 1) == 0)
			for (int i = 0; i < N; i++)
				if (!seen[i] && conf_poll1(c[i], POLLOUT, 0) == POLLOUT) {
					conf_write_all(c[i], &(unsigned char){(unsigned char)i}, 1);
					seen[i] = true;
				}
		conf_read_all(s, &who, 1);
		CONF_LE(who, N - 1);
		conf_exchange(s, c[who]);
		CONF_OK(close(s));
		served++;
	}
}

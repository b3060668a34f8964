/* SPDX-License-Identifier: BSD-2-Clause */
/* poll of 400 carried descriptors of which few are ready: exactly those are reported, wherever they are in the array.
 */
#include "conf.h"

#define N 200

CONF_TEST(0)
{
	int fd[N][2], l = conf_listener(AF_INET, 64);
	struct pollfd p[2 * N];
	uint32_t rng = 3;

	for (int i = 0; i < N; i++) {
		fd[i][0] = conf_dial(l);
		fd[i][1] = (int)CONF_OK(accept(l, NULL, NULL));
	}
	for (int round = 0; round < 40; round++) {
		bool hot[2 * N] = {false};
		int n = 0;

		for (int k = 0; k < 5; k++) {
			int i = (int)(conf_rand(&rng) % (2 * N));

			if (hot[i])
				continue;
			hot[i] = true;
			n++;
			conf_write_all(fd[i / 2][!(i & 1)], "x", 1);
			CONF_EVENTS(conf_poll1(fd[i / 2][i & 1], POLLIN, CONF_PATIENCE_MS), POLLIN);
		}
		for (int i = 0; i < 2 * N; i++)
			p[i] = (struct pollfd){fd[i / 2][i & 1], POLLIN, 0};
		CONF_EQ(poll(p, 2 * N, 0), n);
		for (int i = 0; i < 2 * N; i++) {
			CONF_EVENTS(p[i].revents, hot[i] ? POLLIN : 0);
			if (hot[i])
				conf_drain(p[i].fd, 1);
		}
		CONF_EQ(poll(p, 2 * N, 0), 0);
	}
}

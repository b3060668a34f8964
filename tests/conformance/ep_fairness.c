/* SPDX-License-Identifier: BSD-2-Clause */
/* maxevents 1 (and 3) with many ready, level-triggered: every one is reported, none is starved. */
#include "conf.h"

#define N 24

CONF_TEST(0)
{
	int fd[N][2], p[N][2], l = conf_listener(AF_INET, N), ep = conf_epoll();
	struct epoll_event ev[3];

	for (int i = 0; i < N; i++) {
		fd[i][0] = conf_dial(l);
		fd[i][1] = (int)CONF_OK(accept(l, NULL, NULL));
		conf_write_all(fd[i][0], "x", 1);
		CONF_EVENTS(conf_poll1(fd[i][1], POLLIN, CONF_PATIENCE_MS), POLLIN);
		CONF_OK(pipe(p[i]));
		conf_write_all(p[i][1], "x", 1);
		ev[0] = (struct epoll_event){.events = EPOLLIN, .data.u32 = (uint32_t)i};
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i][1], &ev[0]));
		ev[0].data.u32 = (uint32_t)(N + i);
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, p[i][0], &ev[0]));
	}
	for (int max = 1; max <= 3; max += 2) {
		int seen[2 * N] = {0}, all = 0, waits = 0;
		int64_t end = conf_ms() + 2000;

		while (all < 2 * N) {
			int n = (int)CONF_OK(epoll_wait(ep, ev, max, CONF_PATIENCE_MS));

			CONF_GE(n, 1);
			CONF_LE(n, max);
			for (int i = 0; i < n; i++) {
				uint32_t who = ev[i].data.u32;

				CONF_LE(who, 2 * N - 1);
				if (seen[who]++ == 0)
					all++;
			}
			waits++;
			conf_note("maxevents %d: %d of %d after %d waits", max, all, 2 * N, waits);
			CONF_LE(conf_ms(), end);
		}
		CONF_GE(waits, 2 * N / max);
	}
}

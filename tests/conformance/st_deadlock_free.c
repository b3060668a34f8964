/* SPDX-License-Identifier: BSD-2-Clause */
/* Both sides write more than all buffers hold before reading, non-blocking with level-triggered epoll: it flows. */
#include "conf.h"

#define TOTAL (24u << 20)

static void *side(void *p)
{
	int fd = *(int *)p, ep = conf_epoll();
	static __thread char buf[65536];
	size_t sent = 0, got = 0;

	conf_nonblock(fd, true);
	conf_ep_add(ep, fd, EPOLLIN | EPOLLOUT);
	while (got < TOTAL || sent < TOTAL) {
		struct epoll_event ev;
		ssize_t k;

		conf_note("sent %zu got %zu", sent, got);
		CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
		if (ev.events & EPOLLOUT && sent < TOTAL) {
			k = write(fd, buf, TOTAL - sent < sizeof(buf) ? TOTAL - sent : sizeof(buf));
			if (k > 0)
				sent += (size_t)k;
			if (sent == TOTAL)
				conf_ep_mod(ep, fd, EPOLLIN);
			continue; /* reading waits until writing is refused */
		}
		if (ev.events & EPOLLIN) {
			k = CONF_OK(read(fd, buf, sizeof(buf)));
			CONF_GE(k, 1);
			got += (size_t)k;
		}
	}
	CONF_OK(close(ep));
	return NULL;
}

CONF_TEST(0)
{
	struct conf_thread t[2];
	int fd[2];

	conf_pair(fd);
	for (int i = 0; i < 2; i++)
		conf_thread_start(&t[i], side, &fd[i]);
	for (int i = 0; i < 2; i++)
		conf_thread_join(&t[i]);
	conf_close2(fd[0], fd[1]);
}

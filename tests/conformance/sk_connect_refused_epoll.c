/* SPDX-License-Identifier: BSD-2-Clause */
/* A refused non-blocking connect in epoll: registered before or after the connect, every bit in one event, data kept.
 */
#include "conf.h"

CONF_TEST(CONF_TCP_TOO)
{
	const uint32_t all = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP;
	struct sockaddr_in sin;
	int fd[2], ep = conf_epoll();

	for (int before = 0; before < 2; before++) {
		int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		struct epoll_event ev;
		uint32_t got = 0;

		conf_note("registered %s connect", before ? "before" : "after");
		conf_dead_addr(&sin);
		if (before)
			conf_ep_add(ep, c, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
		CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), EINPROGRESS);
		if (!before)
			conf_ep_add(ep, c, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
		for (int64_t end = conf_ms() + CONF_PATIENCE_MS; got != all && conf_ms() < end;) {
			int n = (int)CONF_OK(epoll_wait(ep, &ev, 1, 50));

			got = n ? ev.events : 0;
		}
		CONF_EVENTS(got, all);
		CONF_EQ(ev.data.fd, c);
		CONF_OK(close(c));
		CONF_EP_QUIET(ep);
	}
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

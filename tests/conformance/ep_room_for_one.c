/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_wait with room for one event and no time to wait finds the member that is ready, whatever else the library has
 * to look at in the set meanwhile. */
#include "conf.h"

#define TURNS 2000

static void *echo(void *arg)
{
	int fd = *(int *)arg;
	char c;

	for (int i = 0; i < TURNS; i++) {
		CONF_EVENTS(conf_poll1(fd, POLLIN, CONF_PATIENCE_MS), POLLIN);
		CONF_EQ(read(fd, &c, 1), 1);
		conf_write_all(fd, &c, 1);
	}
	return NULL;
}

CONF_TEST(0)
{
	int ep = conf_epoll(), quiet[2], busy[2], p[2];
	struct epoll_event ev;
	struct conf_thread t;
	char c;

	conf_pair(quiet);
	conf_pair(busy);
	CONF_OK(pipe(p));
	conf_ep_add(ep, quiet[0], EPOLLIN);
	conf_ep_add(ep, p[0], EPOLLIN);
	CONF_EQ(write(p[1], "x", 1), 1);
	conf_thread_start(&t, echo, &busy[1]);
	for (int i = 0; i < TURNS; i++) {
		conf_note("turn %d", i);
		conf_write_all(busy[0], "y", 1);
		/* Until the answer is there: its way wakes whoever sleeps. */
		do {
			CONF_EQ(epoll_wait(ep, &ev, 1, 0), 1);
			CONF_EQ(ev.data.fd, p[0]);
		} while (recv(busy[0], &c, 1, MSG_DONTWAIT) < 0);
	}
	conf_thread_join(&t);
	conf_exchange(quiet[0], quiet[1]);
	conf_close2(quiet[0], quiet[1]);
	conf_close2(busy[0], busy[1]);
	conf_close2(p[0], p[1]);
	CONF_OK(close(ep));
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* fork with a live epoll set; the child waits on it and DELs: what it does to the shared set is as on Linux (the item
 * goes for both), and the parent can add it again. */
#include "conf.h"

static int fd[2], ep;

static void child(void *arg)
{
	struct epoll_event ev;

	(void)arg;
	CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
	CONF_EQ(ev.data.fd, fd[1]);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL));
	CONF_EQ(epoll_wait(ep, &ev, 1, 20), 0);
	_exit(0);
}

CONF_TEST(0)
{
	conf_pair(fd);
	ep = conf_epoll();
	conf_ep_add(ep, fd[1], EPOLLIN);
	conf_write_all(fd[0], "x", 1);
	CONF_EP_EXPECT(ep, fd[1], EPOLLIN);
	conf_join(conf_fork(child, NULL));
	CONF_TRUE(epoll_ctl(ep, EPOLL_CTL_DEL, fd[1], NULL) == 0 || errno == ENOENT);
	conf_ep_add(ep, fd[1], EPOLLIN);
	CONF_EP_EXPECT(ep, fd[1], EPOLLIN);
	conf_drain(fd[1], 1);
	conf_exchange(fd[0], fd[1]);
}

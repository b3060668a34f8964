/* SPDX-License-Identifier: BSD-2-Clause */
/* EPOLLEXCLUSIVE: only with ADD and a few bits; no MOD of such an item, nor to it; not for an epoll descriptor. */
#include "conf.h"

static void each(int a, int b)
{
	int ep = conf_epoll(), inner = conf_epoll();
	struct epoll_event ev = {.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, .data.fd = b};

	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev), EINVAL);
	ev.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP;
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev), EINVAL);
	ev.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLPRI;
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev), EINVAL);
	ev.events = EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev));
	CONF_EP_EXPECT(ep, b, EPOLLOUT);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev), EINVAL);
	ev.events = EPOLLIN;
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev), EINVAL);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, b, NULL));
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, b, &ev));
	ev.events = EPOLLIN | EPOLLEXCLUSIVE;
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_MOD, b, &ev), EINVAL);
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, inner, &ev), EINVAL);
	conf_write_all(a, "x", 1);
	CONF_EP_EXPECT(ep, b, EPOLLIN);
	conf_close2(a, b);
	conf_close2(ep, inner);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Timeouts of every wait are kept (elapsed >= asked, and not wildly more), and zero returns at once. */
#include "conf.h"

enum { POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, KINDS };

static int wait_kind(int kind, int fd, int ep, int ms)
{
	struct pollfd p = {fd, POLLIN, 0};
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};
	struct timeval tv = {ms / 1000, ms % 1000 * 1000L};
	struct epoll_event ev[3];
	fd_set r;

	FD_ZERO(&r);
	FD_SET(fd, &r);
	switch (kind) {
	case POLL:
		return poll(&p, 1, ms);
	case PPOLL:
		return ppoll(&p, 1, &ts, NULL);
	case SELECT:
		return select(fd + 1, &r, NULL, NULL, &tv);
	case PSELECT:
		return pselect(fd + 1, &r, NULL, NULL, &ts, NULL);
	case EPOLL_WAIT:
		return epoll_wait(ep, ev, 3, ms);
	case EPOLL_PWAIT:
		return epoll_pwait(ep, ev, 3, ms, NULL);
	default:
		return epoll_pwait2(ep, ev, 3, &ts, NULL);
	}
}

static void each(int a, int b)
{
	static const int times[] = {0, 1, 7, 30, 110};
	int ep = conf_epoll();

	conf_exchange(a, b);
	conf_ep_add(ep, b, EPOLLIN);
	for (int kind = 0; kind < KINDS; kind++)
		for (size_t i = 0; i < CONF_ARRAY_SIZE(times); i++) {
			int64_t from = conf_ns(), took;

			conf_note("call %d, %d ms", kind, times[i]);
			CONF_EQ(wait_kind(kind, b, ep, times[i]), 0);
			took = conf_ns() - from;
			CONF_GE(took, times[i] * 1000000LL);
			/* The machine may be busy; a wait that is rounded up to seconds is still found. */
			CONF_LE(took, (times[i] + 900) * 1000000LL);
		}
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

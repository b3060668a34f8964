/* SPDX-License-Identifier: BSD-2-Clause */
/* A signal during epoll_wait, poll, select and their kin is EINTR whatever SA_RESTART says. */
#include "conf.h"

static int kind, fd_wait, ep;

static void *waiter(void *arg)
{
	struct pollfd p = {fd_wait, POLLIN, 0};
	struct epoll_event ev;
	struct timespec ts = {20, 0};
	fd_set r;
	int k;

	(void)arg;
	FD_ZERO(&r);
	FD_SET(fd_wait, &r);
	switch (kind) {
	case 0:
		k = epoll_wait(ep, &ev, 1, -1);
		break;
	case 1:
		k = epoll_pwait(ep, &ev, 1, 20000, NULL);
		break;
	case 2:
		k = epoll_pwait2(ep, &ev, 1, &ts, NULL);
		break;
	case 3:
		k = poll(&p, 1, -1);
		break;
	case 4:
		k = ppoll(&p, 1, &ts, NULL);
		break;
	case 5:
		k = select(fd_wait + 1, &r, NULL, NULL, NULL);
		break;
	default:
		k = pselect(fd_wait + 1, &r, NULL, NULL, &ts, NULL);
		break;
	}
	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	static const int flags[] = {0, SA_RESTART};
	struct conf_thread t;

	conf_exchange(a, b);
	ep = conf_epoll();
	conf_ep_add(ep, b, EPOLLIN);
	fd_wait = b;
	for (kind = 0; kind < 7; kind++)
		for (int f = 0; f < 2; f++) {
			conf_note("call %d flags 0x%x", kind, flags[f]);
			conf_catch(SIGUSR1, flags[f]);
			conf_thread_start(&t, waiter, NULL);
			conf_thread_asleep(&t);
			CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
			CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
		}
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

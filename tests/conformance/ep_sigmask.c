/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_pwait and epoll_pwait2: pending and unmasked is EINTR; masked stays pending; ready beats the signal. */
#include "conf.h"

static int wait_with(int kind, int ep, int ms, const sigset_t *mask)
{
	struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};
	struct epoll_event ev;

	return kind ? epoll_pwait2(ep, &ev, 1, &ts, mask) : epoll_pwait(ep, &ev, 1, ms, mask);
}

static void each(int a, int b)
{
	sigset_t none, usr1, old;
	int ep = conf_epoll();

	conf_ep_add(ep, b, EPOLLIN);
	conf_catch(SIGUSR1, SA_RESTART);
	sigemptyset(&none);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	CONF_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &old), 0);
	for (int kind = 0; kind < 2; kind++) {
		conf_note("call %d", kind);
		conf_caught = 0;
		CONF_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
		CONF_EQ(wait_with(kind, ep, 20, &usr1), 0);
		CONF_EQ(wait_with(kind, ep, 20, NULL), 0);
		CONF_EQ(conf_caught, 0);
		CONF_ERR(wait_with(kind, ep, 5000, &none), EINTR);
		CONF_EQ(conf_caught, 1);
		conf_write_all(a, "x", 1);
		CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
		CONF_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
		CONF_EQ(wait_with(kind, ep, 5000, &none), 1);
		CONF_EQ(conf_caught, 1);
		conf_drain(b, 1);
		CONF_EQ(pthread_sigmask(SIG_UNBLOCK, &usr1, NULL), 0);
		CONF_EQ(conf_caught, 2);
		CONF_EQ(pthread_sigmask(SIG_BLOCK, &usr1, NULL), 0);
	}
	CONF_EQ(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

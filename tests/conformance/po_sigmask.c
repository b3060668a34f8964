/* SPDX-License-Identifier: BSD-2-Clause */
/* ppoll and pselect: the mask holds during the wait only; a pending unmasked signal is EINTR; ready wins or not as
 * Linux does. */
#include "conf.h"

static void each(int a, int b)
{
	sigset_t none, usr1, old;
	struct pollfd p = {b, POLLIN, 0};
	struct timespec ts = {5, 0}, brief = {0, 20000000};
	fd_set r;

	conf_catch(SIGUSR1, 0);
	sigemptyset(&none);
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	CONF_EQ(pthread_sigmask(SIG_BLOCK, &usr1, &old), 0);

	/* Pending, and let in by the mask: EINTR, the handler has run. */
	for (int i = 0; i < 2; i++) {
		conf_caught = 0;
		CONF_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
		FD_ZERO(&r);
		FD_SET(b, &r);
		if (i)
			CONF_ERR(pselect(b + 1, &r, NULL, NULL, &ts, &none), EINTR);
		else
			CONF_ERR(ppoll(&p, 1, &ts, &none), EINTR);
		CONF_EQ(conf_caught, 1);
	}
	/* Afterwards it is blocked again; a mask that blocks it keeps it pending. */
	conf_caught = 0;
	CONF_EQ(pthread_kill(pthread_self(), SIGUSR1), 0);
	CONF_EQ(ppoll(&p, 1, &brief, &usr1), 0);
	CONF_EQ(ppoll(&p, 1, &brief, NULL), 0);
	CONF_EQ(conf_caught, 0);
	/* Ready: the result is reported, and the signal waits its turn. */
	conf_write_all(a, "x", 1);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
	CONF_EQ(ppoll(&p, 1, &ts, &none), 1);
	CONF_EQ(conf_caught, 0);
	CONF_EQ(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	CONF_EQ(conf_caught, 1);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket that is in epoll sets already begins to listen: both sets report each connection, whichever way it comes. */
#include "conf.h"

static void *dials(void *arg)
{
	return (void *)(intptr_t)conf_dial((int)(intptr_t)arg);
}

CONF_TEST(CONF_TCP_TOO)
{
	int ep[2] = {conf_epoll(), conf_epoll()}, l = conf_bound(AF_INET), a, b, i;
	struct conf_thread t;

	conf_ep_add(ep[0], l, EPOLLIN);
	conf_ep_add(ep[1], l, EPOLLIN);
	CONF_OK(listen(l, 8));
	for (i = 0; i < 2; i++) {
		conf_thread_start(&t, dials, (void *)(intptr_t)l);
		CONF_EP_EXPECT(ep[0], l, EPOLLIN);
		CONF_EP_EXPECT(ep[1], l, EPOLLIN);
		b = (int)CONF_OK(accept(l, NULL, NULL));
		a = (int)(intptr_t)conf_thread_join(&t);
		conf_exchange(a, b);
		conf_close2(a, b);
	}
	conf_close2(ep[0], ep[1]);
	CONF_OK(close(l));
}

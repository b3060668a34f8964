/* SPDX-License-Identifier: BSD-2-Clause */
/* A nested set watched edge-triggered: one event an arrival, also when the inner set is asked by nobody. */
#include "conf.h"

static void each(int a, int b)
{
	int outer = conf_epoll(), inner = conf_epoll();

	conf_ep_add(inner, b, EPOLLIN);
	conf_ep_add(outer, inner, EPOLLIN | EPOLLET);
	CONF_EP_QUIET(outer);
	for (int i = 0; i < 3; i++) {
		conf_write_all(a, "x", 1);
		CONF_EP_EXPECT(outer, inner, EPOLLIN);
		CONF_EP_QUIET(outer);
		CONF_EP_EXPECT(inner, b, EPOLLIN);
		conf_drain(b, 1);
		/* Asking it once more tells the inner set that it is empty. */
		CONF_EP_QUIET(inner);
	}
	conf_close2(outer, inner);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* ADD of a descriptor that is ready already reports it, also edge-triggered and one-shot, also when the data is old. */
#include "conf.h"

static void each(int a, int b)
{
	static const uint32_t modes[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT, EPOLLEXCLUSIVE};

	conf_write_all(a, "x", 1);
	CONF_STATE(b, POLLIN | POLLOUT);
	for (size_t i = 0; i < CONF_ARRAY_SIZE(modes); i++) {
		int ep = conf_epoll();

		conf_note("mode 0x%x", modes[i]);
		conf_ep_add(ep, b, EPOLLIN | modes[i]);
		CONF_EP_EXPECT(ep, b, EPOLLIN);
		if (modes[i] & (EPOLLET | EPOLLONESHOT))
			CONF_EP_QUIET(ep);
		else
			CONF_EP_EXPECT(ep, b, EPOLLIN);
		CONF_OK(close(ep));
	}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

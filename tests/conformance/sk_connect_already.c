/* SPDX-License-Identifier: BSD-2-Clause */
/* connect while one is under way: EALREADY, until the listener has room and it completes. */
#include "conf.h"

CONF_TEST(CONF_TCP_TOO) /* a full backlog may end an attempt over RDMA */
{
	int l = conf_listener(AF_INET, 0), c[8], n, s, ok = 0;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	for (n = 0; n < 8; n++) {
		c[n] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(c[n], (struct sockaddr *)&ss, len), EINPROGRESS);
		/* The first one fits; what does not come within 150 ms then is being held back. */
		if (conf_poll1(c[n], POLLOUT, n ? 150 : CONF_PATIENCE_MS) == 0)
			break;
	}
	if (n == 8)
		conf_skip("eight connections fitted a backlog of 0");
	CONF_GE(n, 1);
	CONF_ERR(connect(c[n], (struct sockaddr *)&ss, len), EALREADY);
	CONF_ERR(connect(c[n], (struct sockaddr *)&ss, len), EALREADY);
	while (conf_poll1(c[n], POLLOUT, 0) == 0) {
		CONF_EVENTS(conf_poll1(l, POLLIN, CONF_PATIENCE_MS), POLLIN);
		s = (int)CONF_OK(accept(l, NULL, NULL));
		if (ok < n)
			conf_exchange(c[ok], s);
		ok++;
		CONF_OK(close(s));
		conf_poll1(c[n], POLLOUT, 100);
	}
	/* Completed before or after it was accepted: it works. */
	CONF_EVENTS(conf_poll1(c[n], POLLOUT, 0) & (POLLERR | POLLOUT), POLLOUT);
	CONF_GE(ok, 1);
}

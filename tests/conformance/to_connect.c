/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_SNDTIMEO bounds a blocking connect to a listener whose backlog is full: EINPROGRESS after that time. (A carried
 * one may find room in the queue for TCP beside the full one: success within the time is right there.) */
#include "conf.h"

CONF_TEST(CONF_TCP_TOO) /* a full backlog may end an attempt over RDMA */
{
	struct timeval tv = {.tv_usec = 200000};
	int l = conf_listener(AF_INET, 0), c[8], d, n;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	int64_t from;

	for (n = 0; n < 8; n++) {
		c[n] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(c[n], (struct sockaddr *)&ss, len), EINPROGRESS);
		if (conf_poll1(c[n], POLLOUT, n ? 150 : CONF_PATIENCE_MS) == 0)
			break;
	}
	if (n == 8)
		conf_skip("eight connections fitted a backlog of 0");
	d = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_OK(setsockopt(d, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
	from = conf_ns();
	if (connect(d, (struct sockaddr *)&ss, len) == 0) {
		CONF_TRUE(conf_carried());
	} else {
		CONF_EQ(errno, EINPROGRESS);
		CONF_GE(conf_ns() - from, 200000000 - CONF_JIFFY_NS);
	}
	CONF_LE(conf_ns() - from, 1500000000);
	CONF_OK(close(d));
	/* The first in the queue is well. */
	d = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c[0], d);
}

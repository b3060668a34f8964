/* SPDX-License-Identifier: BSD-2-Clause */
/* Successful calls leave errno alone. */
#include "conf_io.h"

static void each(int a, int b)
{
	char buf[8];
	struct pollfd p = {.fd = b, .events = POLLIN};
	int ep = conf_epoll(), n;
	struct epoll_event ev;
	socklen_t len = sizeof(n);

	conf_ep_add(ep, b, EPOLLIN);
	for (size_t i = 0; i < conf_n_writers; i++) {
		ssize_t w, r;
		int e;

		errno = 4242;
		w = conf_writers[i].fn(a, "abc", 3);
		e = errno;
		CONF_EQ(w, 3);
		CONF_EQ(e, 4242);
		conf_wait_inq(b, 3);
		errno = 4242;
		r = conf_readers[i].fn(b, buf, 8);
		e = errno;
		CONF_EQ(r, 3);
		CONF_EQ(e, 4242);
	}
	errno = 4242;
	CONF_TRUE(poll(&p, 1, 0) == 0 && errno == 4242);
	CONF_TRUE(epoll_wait(ep, &ev, 1, 0) == 0 && errno == 4242);
	errno = 4242;
	CONF_TRUE(getsockopt(a, SOL_SOCKET, SO_ERROR, &n, &len) == 0 && errno == 4242);
	errno = 4242;
	CONF_TRUE(shutdown(a, SHUT_WR) == 0 && errno == 4242);
	errno = 4242;
	CONF_TRUE(close(a) == 0 && close(b) == 0 && errno == 4242);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket that is in epoll before it connects, as event libraries do: OUT with the same data, then IN; nothing lost.
 */
#include "conf.h"

static void try(uint32_t mode, bool wait_before)
{
	int l = conf_listener(AF_INET, 1), ep = conf_epoll(), s;
	int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | mode, .data.u64 = 0x1122334455667788ull}, got;
	uint32_t seen;

	conf_note("mode 0x%x, %s", mode, wait_before ? "waited on before" : "not waited on");
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev));
	if (wait_before) {
		/* An unconnected TCP socket is OUT and HUP. */
		CONF_EQ(epoll_wait(ep, &got, 1, 0), 1);
		CONF_EVENTS(got.events, EPOLLOUT | EPOLLHUP);
		CONF_EQ(got.data.u64, ev.data.u64);
	}
	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	/* Under ONESHOT the report above has disarmed it. */
	if (wait_before && mode & EPOLLONESHOT)
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, c, &ev));
	CONF_EQ(epoll_wait(ep, &got, 1, CONF_PATIENCE_MS), 1);
	CONF_EVENTS(got.events, EPOLLOUT);
	CONF_EQ(got.data.u64, ev.data.u64);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	if (mode & EPOLLONESHOT)
		CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, c, &ev));
	conf_write_all(s, "x", 1);
	seen = 0;
	CONF_UNTIL(epoll_wait(ep, &got, 1, 50) == 1 && (seen = got.events) & EPOLLIN);
	CONF_EVENTS(seen, EPOLLIN | EPOLLOUT);
	CONF_EQ(got.data.u64, ev.data.u64);
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, c, NULL));
	conf_drain(c, 1);
	conf_exchange(c, s);
	conf_close2(c, s);
	conf_close2(l, ep);
}

CONF_TEST(0)
{
	static const uint32_t modes[] = {0, EPOLLET};

	for (size_t i = 0; i < CONF_ARRAY_SIZE(modes); i++)
		for (int w = 0; w < 2; w++)
			try(modes[i], w);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A full backlog holds others back; accepting makes room, and everybody who waits gets served in the end. */
#include "conf.h"

#define N 12

static int l, c[N];
static bool seen[N];

/* Who is connected says its number, once. */
static void greet(void)
{
	for (int i = 0; i < N; i++)
		if (!seen[i] && conf_poll1(c[i], POLLOUT, 0) == POLLOUT) {
			conf_write_all(c[i], &(unsigned char){(unsigned char)i}, 1);
			seen[i] = true;
		}
}

/* As an event loop waits, for the connects as well: one that turns out to be TCP goes on when it is looked at. */
static void await_client(void)
{
	int64_t end = conf_ms() + CONF_PATIENCE_MS;

	while (conf_poll1(l, POLLIN, 0) != POLLIN) {
		struct pollfd p[N + 1] = {{.fd = l, .events = POLLIN}};

		CONF_LE(conf_ms(), end);
		for (int i = 0; i < N; i++)
			p[i + 1] = (struct pollfd){.fd = seen[i] ? -1 : c[i], .events = POLLOUT};
		CONF_OK(poll(p, N + 1, CONF_PATIENCE_MS));
		greet();
	}
}

CONF_TEST(CONF_TCP_TOO) /* who meets a full backlog may come over TCP */
{
	struct sockaddr_storage ss;
	socklen_t len;

	l = conf_listener(AF_INET, 3);
	len = conf_name(l, &ss);
	for (int i = 0; i < N; i++) {
		c[i] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		CONF_ERR(connect(c[i], (struct sockaddr *)&ss, len), EINPROGRESS);
	}
	for (int served = 0; served < N; served++) {
		unsigned char who;
		int s;

		await_client();
		s = (int)CONF_OK(accept(l, NULL, NULL));
		/* Accepted means established at both ends; its own first byte may only be written in a later round. */
		do
			greet();
		while (conf_poll1(s, POLLIN, 1) == 0);
		conf_read_all(s, &who, 1);
		CONF_LE(who, N - 1);
		conf_exchange(s, c[who]);
		CONF_OK(close(s));
	}
}

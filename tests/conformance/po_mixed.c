/* SPDX-License-Identifier: BSD-2-Clause */
/* poll, select and epoll over carried and plain descriptors together: pipe, eventfd, timerfd, UDP, AF_UNIX. */
#include "conf.h"

enum { CARRIED, PIPE, EVENT, TIMER, UDP, UNIX_, N };
static int in[N], out[N];

static void fire(int i)
{
	struct itimerspec its = {.it_value = {.tv_nsec = 1}};
	uint64_t one = 1;

	if (i == EVENT)
		CONF_EQ(write(out[i], &one, 8), 8);
	else if (i == TIMER)
		CONF_OK(timerfd_settime(in[i], 0, &its, NULL));
	else
		CONF_EQ(write(out[i], "12345678", 8), 8);
}

static void open_all(int a, int b)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	int p[2];

	in[CARRIED] = b;
	out[CARRIED] = a;
	CONF_OK(pipe(p));
	in[PIPE] = p[0];
	out[PIPE] = p[1];
	in[EVENT] = out[EVENT] = (int)CONF_OK(eventfd(0, 0));
	in[TIMER] = out[TIMER] = (int)CONF_OK(timerfd_create(CLOCK_MONOTONIC, 0));
	in[UDP] = out[UDP] = (int)CONF_OK(socket(AF_INET, SOCK_DGRAM, 0));
	CONF_OK(bind(in[UDP], (struct sockaddr *)&sin, sizeof(sin)));
	CONF_OK(getsockname(in[UDP], (struct sockaddr *)&sin, &len));
	CONF_OK(connect(in[UDP], (struct sockaddr *)&sin, sizeof(sin)));
	CONF_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	in[UNIX_] = p[0];
	out[UNIX_] = p[1];
}

static uint32_t by_poll(void)
{
	struct pollfd p[N];
	uint32_t mask = 0;
	int n;

	for (int i = 0; i < N; i++)
		p[i] = (struct pollfd){in[i], POLLIN, 0};
	n = (int)CONF_OK(poll(p, N, 0));
	for (int i = 0; i < N; i++)
		mask |= p[i].revents ? 1u << i : 0;
	CONF_EQ(n, __builtin_popcount(mask));
	return mask;
}

static uint32_t by_select(void)
{
	struct timeval tv = {0};
	uint32_t mask = 0;
	int max = 0, n;
	fd_set r;

	FD_ZERO(&r);
	for (int i = 0; i < N; i++) {
		FD_SET(in[i], &r);
		max = in[i] > max ? in[i] : max;
	}
	n = (int)CONF_OK(select(max + 1, &r, NULL, NULL, &tv));
	for (int i = 0; i < N; i++)
		mask |= FD_ISSET(in[i], &r) ? 1u << i : 0;
	CONF_EQ(n, __builtin_popcount(mask));
	return mask;
}

/* Over several waits: a report that comes in portions is no fault, one that never comes is. */
static uint32_t by_epoll(int ep, uint32_t want)
{
	int64_t end = conf_ms() + 1000;
	struct epoll_event ev[N];
	uint32_t mask = 0;

	do {
		int n = (int)CONF_OK(epoll_wait(ep, ev, N, 0));

		CONF_EQ(n == 0, want == 0);
		for (int k = 0; k < n; k++)
			for (int i = 0; i < N; i++)
				mask |= ev[k].data.fd == in[i] ? 1u << i : 0;
	} while (mask != want && conf_ms() < end);
	return mask;
}

static void each(int a, int b)
{
	char buf[8];
	int ep = conf_epoll();

	open_all(a, b);
	for (int i = 0; i < N; i++)
		conf_ep_add(ep, in[i], EPOLLIN);
	/* Every subset is ready once. */
	for (uint32_t set = 0; set < 1u << N; set++) {
		conf_note("set 0x%x", set);
		for (int i = 0; i < N; i++)
			if (set & 1u << i)
				fire(i);
		for (int i = 0; i < N; i++)
			if (set & 1u << i)
				CONF_NE(conf_poll1(in[i], POLLIN, CONF_PATIENCE_MS), 0);
		CONF_EQ(by_poll(), set);
		CONF_EQ(by_select(), set);
		CONF_EQ(by_epoll(ep, set), set);
		for (int i = 0; i < N; i++)
			if (set & 1u << i)
				CONF_EQ(read(in[i], buf, 8), 8);
	}
	CONF_OK(close(ep));
	conf_close2(in[PIPE], out[PIPE]);
	conf_close2(in[EVENT], in[TIMER]);
	CONF_OK(close(in[UDP]));
	conf_close2(in[UNIX_], out[UNIX_]);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

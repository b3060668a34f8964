/* SPDX-License-Identifier: BSD-2-Clause */
/* An inherited epoll set with streams, pipes, a timer and a set inside it: the child finds every registration as it
 * was, with its data and mode, under each number of the set; what it changes of the streams, and its end, leave the
 * parent's waits in order. */
#include "conf.h"

static int a[2], b[2], c[2], p[2], ep, outer, copy, timer;

enum { DATA_A = 100, DATA_B, DATA_C, DATA_PIPE, DATA_TIMER, DATA_INNER };

static void add(int set, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event ev = {.events = events, .data.u64 = data};

	CONF_OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev));
}

/* The events that come within a while, by data: bits DATA_A... */
static unsigned collect(int set, unsigned want)
{
	struct epoll_event ev[8];
	unsigned seen = 0;
	int64_t end = conf_ms() + CONF_PATIENCE_MS;
	int n;

	while ((seen & want) != want && conf_ms() < end) {
		n = (int)CONF_OK(epoll_wait(set, ev, 8, CONF_QUIET_MS));
		for (int i = 0; i < n; i++) {
			CONF_GE(ev[i].data.u64, DATA_A);
			CONF_LE(ev[i].data.u64, DATA_INNER);
			seen |= 1u << (ev[i].data.u64 - DATA_A);
		}
	}
	return seen;
}

static bool there(int set, unsigned want)
{
	return (collect(set, want) & want) == want;
}

#define BIT(d) (1u << ((d)-DATA_A))

static void child(void *arg)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = DATA_A};
	char buf[4], when[8];

	(void)arg;
	/* A: level, ready. B: edge, ready. The pipe and the timer: the kernel's. */
	CONF_TRUE(there(outer, BIT(DATA_INNER)));
	CONF_TRUE(there(copy, BIT(DATA_A) | BIT(DATA_B) | BIT(DATA_PIPE) | BIT(DATA_TIMER)));
	/* The pipe alone is left for the set outside. */
	conf_read_all(a[1], buf, 1);
	CONF_EQ(read(timer, when, 8), 8);
	CONF_EQ(read(p[0], buf, 1), 1);
	CONF_EQ(epoll_wait(outer, &ev, 1, CONF_QUIET_MS), 0);
	CONF_EQ(write(p[1], "p", 1), 1);
	CONF_TRUE(there(outer, BIT(DATA_INNER)));
	ev.data.u64 = DATA_A;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, a[1], &ev));
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_ADD, a[1], &ev), EEXIST);
	conf_write_all(a[1], "1", 1); /* the parent answers */
	CONF_TRUE(there(ep, BIT(DATA_A)));
	conf_read_all(a[1], buf, 1);
	conf_close2(a[0], a[1]);
	_exit(0);
}

/* Tidies up, and does not wait. */
static void tidy(void *arg)
{
	(void)arg;
	CONF_OK(epoll_ctl(ep, EPOLL_CTL_DEL, c[1], NULL));
	CONF_ERR(epoll_ctl(ep, EPOLL_CTL_DEL, c[1], NULL), ENOENT);
	conf_close2(ep, copy);
	conf_close2(c[0], c[1]);
	_exit(0);
}

CONF_TEST(0)
{
	struct itimerspec soon = {.it_value = {0, 1000000}};
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = DATA_C};
	char buf[4];
	pid_t pid;

	conf_pair(a);
	conf_pair(b);
	conf_pair(c);
	CONF_OK(pipe(p));
	timer = (int)CONF_OK(timerfd_create(CLOCK_MONOTONIC, 0));
	CONF_OK(timerfd_settime(timer, 0, &soon, NULL));
	ep = conf_epoll();
	outer = conf_epoll();
	add(ep, p[0], EPOLLIN, DATA_PIPE);
	add(ep, timer, EPOLLIN, DATA_TIMER);
	add(ep, a[1], EPOLLIN, DATA_A);
	add(ep, b[1], EPOLLIN | EPOLLET, DATA_B);
	add(ep, c[1], EPOLLIN, DATA_C);
	add(outer, ep, EPOLLIN, DATA_INNER);
	copy = (int)CONF_OK(dup(ep));
	CONF_EQ(write(p[1], "p", 1), 1);
	conf_write_all(a[0], "a", 1);
	conf_write_all(b[0], "b", 1);
	conf_wait_inq(a[1], 1);
	conf_wait_inq(b[1], 1);

	conf_note("tidy");
	conf_join(conf_fork(tidy, NULL));
	CONF_EQ(conf_shared(), 0);
	if (epoll_ctl(ep, EPOLL_CTL_MOD, c[1], &ev) < 0) /* Linux: the child took it out for both */
		add(ep, c[1], EPOLLIN, DATA_C);

	conf_note("waits");
	pid = conf_fork(child, NULL);
	conf_read_all(a[0], buf, 1);
	conf_write_all(a[0], "2", 1);
	conf_join(pid);

	conf_note("afterwards");
	CONF_TRUE(there(ep, BIT(DATA_PIPE)));
	conf_write_all(a[0], "a", 1);
	conf_write_all(b[0], "b", 1);
	conf_write_all(c[0], "c", 1);
	CONF_TRUE(there(ep, BIT(DATA_A) | BIT(DATA_B) | BIT(DATA_C)));
	CONF_TRUE(there(outer, BIT(DATA_INNER)));
}

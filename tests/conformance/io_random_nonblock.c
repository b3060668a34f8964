/* SPDX-License-Identifier: BSD-2-Clause */
/* One thread, poll, non-blocking both ways at once, random chunks: nothing lost, and never stuck. */
#include "conf.h"

#define TOTAL (16u << 20)
#define CHUNK 100000u

struct end {
	int fd;
	uint32_t out_seed, in_seed;
	uint64_t sent, got;
};

static char buf[CHUNK];
static uint32_t rng = 99;

static void step(struct end *e, short revents)
{
	size_t n;
	ssize_t k;

	if (revents & POLLOUT && e->sent < TOTAL) {
		n = 1 + conf_rand(&rng) % (conf_rand(&rng) % 3 ? 900 : CHUNK);
		n = n < TOTAL - e->sent ? n : TOTAL - e->sent;
		conf_fill(buf, n, e->out_seed, e->sent);
		k = write(e->fd, buf, n);
		if (k < 0)
			CONF_EQ(errno, EAGAIN);
		else
			e->sent += (uint64_t)k;
	}
	if (revents & POLLIN) {
		n = 1 + conf_rand(&rng) % (conf_rand(&rng) % 3 ? 2000 : CHUNK);
		k = CONF_OK(read(e->fd, buf, n));
		CONF_GE(k, 1);
		CONF_VERIFY(buf, (size_t)k, e->in_seed, e->got);
		e->got += (uint64_t)k;
	}
}

CONF_TEST(0)
{
	struct end e[2];
	int fd[2];

	conf_pair(fd);
	for (int i = 0; i < 2; i++) {
		e[i] = (struct end){.fd = fd[i], .out_seed = (uint32_t)i + 1, .in_seed = 2 - (uint32_t)i};
		conf_nonblock(fd[i], true);
	}
	while (e[0].got < TOTAL || e[1].got < TOTAL) {
		struct pollfd p[2];

		for (int i = 0; i < 2; i++)
			p[i] = (struct pollfd){fd[i], (short)(POLLIN | (e[i].sent < TOTAL ? POLLOUT : 0)), 0};
		conf_note("sent %llu %llu got %llu %llu", (unsigned long long)e[0].sent, (unsigned long long)e[1].sent,
			  (unsigned long long)e[0].got, (unsigned long long)e[1].got);
		CONF_GE(poll(p, 2, CONF_PATIENCE_MS), 1);
		for (int i = 0; i < 2; i++)
			step(&e[i], p[i].revents);
	}
	conf_close2(fd[0], fd[1]);
}

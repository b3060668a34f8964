/* SPDX-License-Identifier: BSD-2-Clause */
/* Stress of sleeping and waking: many pairs play ping-pong, each end waiting in a randomly chosen way each time. */
#include "conf.h"

#define PAIRS   8
#define TURNS   1000 /* at least, however long they take */
#define SECONDS 3

static int fd[PAIRS][2];
static _Atomic bool stop;
static _Atomic uint64_t turns;

/* Waits until fd is readable, one way or another; returns for a spurious wake-up too. */
static void wait_for(int s, int ep, uint32_t *rng)
{
	struct pollfd p = {s, POLLIN, 0};
	struct timespec ts = {CONF_PATIENCE_MS / 1000, 0};
	struct epoll_event ev;
	fd_set r;
	int n;

	switch (conf_rand(rng) % 6) {
	case 0:
		n = poll(&p, 1, CONF_PATIENCE_MS);
		break;
	case 1:
		n = ppoll(&p, 1, &ts, NULL);
		break;
	case 2:
		FD_ZERO(&r);
		FD_SET(s, &r);
		n = pselect(s + 1, &r, NULL, NULL, &ts, NULL);
		break;
	case 3:
		n = epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS);
		break;
	case 4:
		n = epoll_pwait2(ep, &ev, 1, &ts, NULL);
		break;
	default:
		return; /* a blocking read */
	}
	CONF_EQ(n, 1);
}

static void *player(void *arg)
{
	int side = (int)(intptr_t)arg & 1, i = (int)(intptr_t)arg / 2, s = fd[i][side], ep = conf_epoll();
	uint32_t rng = (uint32_t)(intptr_t)arg + 1, count = 0;
	char buf[2048];

	conf_ep_add(ep, s, EPOLLIN);
	for (bool last = false; !last;) {
		uint32_t head[2];

		if (side == 0) {
			last = atomic_load(&stop);
			head[0] = last ? UINT32_MAX : count;
			head[1] = conf_rand(&rng) % 8 ? conf_rand(&rng) % 100 : conf_rand(&rng) % sizeof(buf);
			head[1] = head[1] < sizeof(head) ? sizeof(head) : head[1];
			memcpy(buf, head, sizeof(head));
			conf_write_all(s, buf, head[1]);
			if (last)
				break;
		}
		conf_note("pair %d side %d turn %u", i, side, count);
		wait_for(s, ep, &rng);
		conf_read_all(s, head, sizeof(head));
		conf_read_all(s, buf, head[1] - sizeof(head));
		last = head[0] == UINT32_MAX;
		if (!last)
			CONF_EQ(head[0], count);
		if (side == 1 && !last) {
			memcpy(buf, head, sizeof(head));
			conf_write_all(s, buf, head[1]);
		}
		count++;
		atomic_fetch_add_explicit(&turns, 1, memory_order_relaxed);
	}
	CONF_OK(close(ep));
	return NULL;
}

CONF_TEST(CONF_LONG)
{
	struct conf_thread t[2 * PAIRS];
	int64_t end = conf_ms() + SECONDS * 1000;

	for (int i = 0; i < PAIRS; i++)
		conf_pair(fd[i]);
	for (int i = 0; i < 2 * PAIRS; i++)
		conf_thread_start(&t[i], player, (void *)(intptr_t)i);
	while (conf_ms() < end || atomic_load(&turns) < TURNS)
		conf_pause(); /* a wait that nothing ends fails by itself */
	atomic_store(&stop, true);
	for (int i = 0; i < 2 * PAIRS; i++)
		conf_thread_join(&t[i]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "spin.h"

#include "config.h"
#include "fdmap.h"
#include "rdma.h"

#include <sched.h>

#define US        1000ll
#define FAR       4    /* a wait counts as at most so many times the limit */
#define SHARE     4    /* of the last wait in what is expected: 1/SHARE */
#define HOLD_MAX  1024 /* waits */
#define TIMES_MAX 8u   /* what a wait for room may be longer */

/* A poll that was in vain is not repeated for `hold` waits, twice as many each time: what the thread waits for may need
 * the processor that it polls on. */
struct patience {
	uint32_t hold, held;
};

/* Of this thread. expected in ns; 0: it has not waited yet. */
static VKR_TLS int64_t expected;
static VKR_TLS struct patience for_events, for_room;

static _Atomic int spinning;
static _Atomic int may_spin; /* threads at once; 0: not known yet, negative: none */

static int spinners(void)
{
	int n = vkr_load(&may_spin);
	cpu_set_t set;

	if (n)
		return n;
	n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
	n = n > 1 ? n / 2 : -1;
	vkr_store(&may_spin, n);
	return n;
}

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static bool poll_until(int64_t began, int64_t limit, bool (*ready)(void *arg), void *arg)
{
	do {
		if (ready(arg))
			return true;
		relax();
	} while (vkr_now_ns() - began < limit);
	return false;
}

static bool is_held(struct patience *p)
{
	if (!p->held)
		return false;
	p->held--;
	return true;
}

static bool spin(struct patience *p, int64_t began, int64_t limit, bool (*ready)(void *arg), void *arg)
{
	bool found = false;

	if (atomic_fetch_add(&spinning, 1) < spinners()) {
		found = poll_until(began, limit, ready, arg);
		p->hold = found ? p->hold / 2 : vkr_min(2 * p->hold + 1, HOLD_MAX);
		p->held = found ? 0 : p->hold;
	}
	atomic_fetch_sub(&spinning, 1);
	return found;
}

struct event {
	bool (*ready)(void *arg);
	void *arg;
};

static bool event_ready(void *arg)
{
	const struct event *e = arg;

	vkr_engine_poll();
	return e->ready(e->arg);
}

bool vkr_spin(struct vkr_spin *s, bool (*ready)(void *arg), void *arg, int64_t left)
{
	struct event e = {.ready = ready, .arg = arg};
	int64_t limit = vkr_config.poll_us * US;

	if (s->began || !limit || spinners() < 0)
		return false;
	s->began = vkr_now_ns();
	/* A sleep's own cost is part of what is expected after one. */
	if (!expected || expected > limit + limit / 2 || (left >= 0 && left < limit) || is_held(&for_events))
		return false;
	return spin(&for_events, s->began, limit, event_ready, &e);
}

struct word {
	const _Atomic uint64_t *at;
	uint64_t seen;
};

static bool word_changed(void *arg)
{
	const struct word *w = arg;

	return vkr_load(w->at) != w->seen;
}

bool vkr_spin_word(const _Atomic uint64_t *word, uint64_t seen, unsigned times)
{
	struct word w = {.at = word, .seen = seen};
	int64_t limit = vkr_config.poll_us * US * vkr_max(vkr_min(times, TIMES_MAX), 1u);

	if (!limit || spinners() < 0 || is_held(&for_room))
		return false;
	return spin(&for_room, vkr_now_ns(), limit, word_changed, &w);
}

void vkr_spin_forked(void)
{
	vkr_store(&spinning, 0);
}

void vkr_spin_done(const struct vkr_spin *s, bool rdma)
{
	int64_t far = FAR * vkr_config.poll_us * US, took;

	if (!s->began)
		return;
	took = rdma ? vkr_min(vkr_now_ns() - s->began, far) : far;
	if (!expected)
		expected = far;
	expected = vkr_max(expected + (took - expected) / SHARE, 1);
}

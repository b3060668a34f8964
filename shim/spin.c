/* SPDX-License-Identifier: BSD-2-Clause */
#include "spin.h"

#include "config.h"
#include "fdmap.h"
#include "rdma.h"

#include <sched.h>

#define US       1000ll
#define FAR      4    /* a wait counts as at most so many times the limit */
#define SHARE    4    /* of the last wait in what is expected: 1/SHARE */
#define HOLD_MAX 1024 /* waits */

/* Of this thread. expected in ns; 0: it has not waited yet. A poll that was in vain is not repeated for `hold` waits,
 * twice as many each time: what the thread waits for may need the processor that it polls on. */
static VKR_TLS int64_t expected;
static VKR_TLS uint32_t hold, held;

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

static bool spin(int64_t began, int64_t limit, bool (*ready)(void *arg), void *arg)
{
	do {
		vkr_engine_poll();
		if (ready(arg)) {
			hold /= 2;
			return true;
		}
		relax();
	} while (vkr_now_ns() - began < limit);
	hold = vkr_min(2 * hold + 1, HOLD_MAX);
	held = hold;
	return false;
}

bool vkr_spin(struct vkr_spin *s, bool (*ready)(void *arg), void *arg, int64_t left)
{
	int64_t limit = vkr_config.poll_us * US;
	bool found = false;

	if (s->began || !limit || spinners() < 0)
		return false;
	s->began = vkr_now_ns();
	/* A sleep's own cost is part of what is expected after one. */
	if (!expected || expected > limit + limit / 2 || (left >= 0 && left < limit))
		return false;
	if (held) {
		held--;
		return false;
	}
	if (atomic_fetch_add(&spinning, 1) < spinners())
		found = spin(s->began, limit, ready, arg);
	atomic_fetch_sub(&spinning, 1);
	return found;
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

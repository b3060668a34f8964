/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An idle connection keeps one ring and nothing else: what traffic made it take (staging, a second ring, a large one)
 * goes back to the pool a second later. The clock runs only while some connection has something to give.
 */
#include "rdma_stream.h"

#include <utlist.h>

#define TRIM_NS (1000 * VKR_MS)

static void trim_task_run(struct vkr_task *task);
static void trim_timer_run(struct vkr_timer *timer);

static _Atomic bool wanted; /* the timer is set, or the task that sets it is queued */
static struct vkr_task trim_task = {.run = trim_task_run};
static struct vkr_timer trim_timer = {.run = trim_timer_run};

void vkr_trim_later(void)
{
	if (!vkr_load(&wanted) && !atomic_exchange(&wanted, true))
		vkr_task_queue(&trim_task);
}

static void trim_task_run(struct vkr_task *task)
{
	vkr_timer_set(&trim_timer, vkr_now_ns() + TRIM_NS);
}

/* Lock held. True when nothing is left to give. */
static bool stream_trim(struct vkr_stream *s, int64_t now)
{
	bool rx;

	if (s->phase != VKR_PH_OPEN)
		return true; /* its end gives all back */
	rx = vkr_rx_trim(s, now);
	return vkr_tx_trim(s) && rx;
}

static void trim_timer_run(struct vkr_timer *timer)
{
	int64_t now = vkr_now_ns();
	struct vkr_stream *s;
	bool done = true;

	/* Cleared first: what a stream takes from here on sets it again. */
	atomic_store(&wanted, false);
	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_registry, s) {
		pthread_mutex_lock(&s->p.lock);
		done &= stream_trim(s, now);
		pthread_mutex_unlock(&s->p.lock);
	}
	pthread_mutex_unlock(&vkr_registry_lock);
	if (!done)
		vkr_trim_later();
}

void vkr_trim_forked(void)
{
	atomic_store(&wanted, false);
	trim_task.queued = false;
	trim_timer.armed = false;
}

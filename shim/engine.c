/* SPDX-License-Identifier: BSD-2-Clause */
#include "engine.h"

#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "socket.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* A poll that is not about to sleep leaves after this many batches: other work waits, and nothing is lost. */
#define POLL_ROUNDS 64
#define EVENT_BATCH 16
#define ACK_BATCH   64
_Atomic int vkr_engine_sleepers;
_Atomic bool vkr_engine_polled;

/*
 * Sleeping without losing a completion. ibv_req_notify_cq() is one-shot and serves whoever reads the shared completion
 * channel first, so:
 *
 *  - A sleeper raises vkr_engine_sleepers first, then, under each CQ's lock, arms the CQ and polls it empty. A
 * completion after that finds the CQ armed and makes the channel readable; one before it is dispatched by this poll.
 * One that another thread took was dispatched before that thread let go of the CQ lock, that is, before the sleeper
 * looks at the ready masks.
 *  - Whoever consumes an event (channel no longer readable, CQ no longer armed) takes the CQ lock, re-arms if
 *    vkr_engine_sleepers is not zero, then polls the CQ empty. If it reads zero, then every later sleeper raises the
 *    count after that read; having read it under the lock, the consumer is followed by that sleeper's own arming.
 *  - What a consumer or poller takes on a sleeper's behalf reaches the stream, whose watches write the sleeper's own
 *    eventfd.
 *  - A CQ is armed when it is made and before it is published in n_cqs (both sequentially consistent with the count),
 * so that a sleeper who does not see it yet sleeps on an armed CQ.
 */

/* ------------------------------------------------------------------ dispatch */

/* Busy connections are found by a look at one slot. */
static struct vkr_endpoint *cq_find(struct vkr_cq *c, uint32_t qp_num)
{
	struct vkr_endpoint **slot = &c->recent[qp_num % VKR_ARRAY_SIZE(c->recent)], *ep = *slot;

	if (vkr_likely(ep && ep->qp_num == qp_num))
		return ep;
	HASH_FIND(hh, c->eps, &qp_num, sizeof(qp_num), ep);
	if (ep)
		*slot = ep;
	return ep;
}

/* Hands each QP its completions of the batch in one call: one lock, one repost, one wake-up a stream. */
static void cq_dispatch(struct vkr_cq *c, struct ibv_wc *wc, int n)
{
	struct vkr_endpoint *eps[VKR_POLL_BATCH], *ep;
	struct ibv_wc *mine[VKR_POLL_BATCH];
	uint8_t next[VKR_POLL_BATCH];
	int i, n_eps = 0, count;

	c->batch++;
	for (i = 0; i < n; i++) {
		ep = cq_find(c, wc[i].qp_num);
		if (!ep || wc[i].wr_id >> 32 != ep->generation)
			continue; /* a straggler of a QP that is gone */
		if (ep->batch != c->batch) {
			ep->batch = c->batch;
			ep->first = (uint8_t)i;
			eps[n_eps++] = ep;
		} else {
			next[ep->last] = (uint8_t)i;
		}
		ep->last = (uint8_t)i;
	}
	for (i = 0; i < n_eps; i++) {
		uint8_t at = eps[i]->first;

		for (count = 0; at != eps[i]->last; at = next[at])
			mine[count++] = &wc[at];
		mine[count++] = &wc[at];
		eps[i]->complete(eps[i], mine, count);
	}
}

/* CQ lock held. `empty`: until a poll finds nothing, as an arming needs; else until a batch comes short. */
static int cq_drain(struct vkr_cq *c, bool empty)
{
	struct ibv_wc wc[VKR_POLL_BATCH];
	int n, total = 0, rounds;

	if (!c->cq)
		return 0; /* its device has gone */
	for (rounds = 0; empty || rounds < POLL_ROUNDS; rounds++) {
		n = ibv_poll_cq(c->cq, VKR_POLL_BATCH, wc);
		if (n <= 0)
			break;
		cq_dispatch(c, wc, n);
		total += n;
		if (!empty && n < VKR_POLL_BATCH)
			break;
	}
	return total;
}

void vkr_cq_arm(struct vkr_cq *c)
{
	if (c->cq && ibv_req_notify_cq(c->cq, 0))
		vkr_debug("a completion queue could not be armed"); /* a dead device's; its connections are ending */
}

static int engine_drain(void)
{
	int d, i, total = 0;

	for (d = 0; d < atomic_load(&vkr_n_devices); d++) {
		struct vkr_device *dev = vkr_devices[d];
		int n = atomic_load(&dev->n_cqs);

		for (i = 0; i < n; i++) {
			struct vkr_cq *c = dev->cqs[i];

			if (pthread_mutex_trylock(&c->lock))
				continue; /* somebody is at it */
			total += cq_drain(c, false);
			pthread_mutex_unlock(&c->lock);
		}
	}
	return total;
}

static void note_polled(void)
{
	if (!vkr_load(&vkr_engine_polled))
		vkr_store(&vkr_engine_polled, true);
}

int vkr_engine_poll(void)
{
	int n, cancel;

	if (!atomic_load_explicit(&vkr_n_devices, memory_order_acquire))
		return 0;
	cancel = vkr_verbs_enter_post();
	note_polled();
	vkr_count(&vkr_stats->cq_polls, 1);
	n = engine_drain();
	vkr_verbs_leave_post(cancel);
	return n;
}

int vkr_engine_drain(void)
{
	return engine_drain();
}

/* ------------------------------------------------------------------ sleeping */

void vkr_engine_sleep_begin(void)
{
	int d, i, cancel;

	cancel = vkr_verbs_enter_post();
	note_polled();
	atomic_fetch_add(&vkr_engine_sleepers, 1);
	for (d = 0; d < atomic_load(&vkr_n_devices); d++) {
		struct vkr_device *dev = vkr_devices[d];

		for (i = 0; i < atomic_load(&dev->n_cqs); i++) {
			struct vkr_cq *c = dev->cqs[i];

			pthread_mutex_lock(&c->lock);
			vkr_cq_arm(c);
			cq_drain(c, true);
			pthread_mutex_unlock(&c->lock);
		}
	}
	vkr_verbs_leave_post(cancel);
}

void vkr_engine_sleep_end(void)
{
	atomic_fetch_sub(&vkr_engine_sleepers, 1);
}

static void cq_event(struct vkr_cq *c)
{
	pthread_mutex_lock(&c->lock);
	if (c->cq && ++c->unacked >= ACK_BATCH) {
		vkr_verbs.ibv_ack_cq_events(c->cq, c->unacked);
		c->unacked = 0;
	}
	if (atomic_load(&vkr_engine_sleepers) > 0)
		vkr_cq_arm(c);
	cq_drain(c, true);
	pthread_mutex_unlock(&c->lock);
}

static void device_events(struct vkr_device *dev)
{
	struct ibv_cq *cq;
	void *ctx;
	int i;

	/* Serialised: two threads inside a non-blocking read of one event is fine for the kernel, but the second would
	 * return before the first has re-armed and polled. */
	pthread_mutex_lock(&dev->event_lock);
	for (i = 0; dev->channel && i < EVENT_BATCH; i++) {
		if (vkr_verbs.ibv_get_cq_event(dev->channel, &cq, &ctx))
			break;
		vkr_count(&vkr_stats->cq_events, 1);
		cq_event(ctx);
	}
	pthread_mutex_unlock(&dev->event_lock);
}

void vkr_engine_event(int fd)
{
	int d, cancel;

	/* The read inside ibv_get_cq_event() is a cancellation point; locks are held around it. */
	cancel = vkr_verbs_enter();
	for (d = 0; fd >= 0 && d < atomic_load(&vkr_n_devices); d++)
		if (vkr_load(&vkr_devices[d]->channel_fd) == fd)
			device_events(vkr_devices[d]);
	vkr_verbs_leave(cancel);
}

int vkr_engine_fds(int fds[VKR_MAX_DEVICES])
{
	int d, n = atomic_load(&vkr_n_devices);

	for (d = 0; d < n; d++)
		fds[d] = vkr_load(&vkr_devices[d]->channel_fd);
	return n;
}

unsigned vkr_engine_generation(void)
{
	return atomic_load(&vkr_engine_changes);
}

/* ------------------------------------------------------------------ endpoints */

struct ibv_cq *vkr_cq_verbs(struct vkr_cq *cq)
{
	return cq->cq;
}

int vkr_endpoint_add(struct vkr_endpoint *ep)
{
	struct vkr_cq *c = ep->cq;
	bool added;

	pthread_mutex_lock(&c->lock);
	HASH_ADD(hh, c->eps, qp_num, sizeof(ep->qp_num), ep);
	added = ep->hh.tbl != NULL;
	pthread_mutex_unlock(&c->lock);
	return added ? 0 : -ENOMEM;
}

void vkr_endpoint_drain(struct vkr_endpoint *ep)
{
	pthread_mutex_lock(&ep->cq->lock);
	cq_drain(ep->cq, true);
	pthread_mutex_unlock(&ep->cq->lock);
}

void vkr_endpoint_remove(struct vkr_endpoint *ep)
{
	struct vkr_cq *c = ep->cq;

	pthread_mutex_lock(&c->lock);
	cq_drain(c, true);
	HASH_DELETE(hh, c->eps, ep);
	if (c->recent[ep->qp_num % VKR_ARRAY_SIZE(c->recent)] == ep)
		c->recent[ep->qp_num % VKR_ARRAY_SIZE(c->recent)] = NULL;
	pthread_mutex_unlock(&c->lock);
}

void vkr_cq_release(struct vkr_endpoint *ep)
{
	if (!ep->cq)
		return;
	vkr_endpoint_drain(ep);
	vkr_cq_unreserve(ep->cq, ep->reserved);
	ep->cq = NULL;
}

/* ------------------------------------------------------------------ fork */

static void cqs_each(int (*fn)(pthread_mutex_t *))
{
	int d, i;

	for (d = 0; d < atomic_load(&vkr_n_devices); d++) {
		fn(&vkr_devices[d]->event_lock);
		for (i = 0; i < atomic_load(&vkr_devices[d]->n_cqs); i++)
			fn(&vkr_devices[d]->cqs[i]->lock);
	}
}

void vkr_cqs_lock(void)
{
	pthread_mutex_lock(&vkr_devices_lock);
	cqs_each(pthread_mutex_lock);
}

void vkr_cqs_unlock(void)
{
	cqs_each(pthread_mutex_unlock);
	pthread_mutex_unlock(&vkr_devices_lock);
}

void vkr_cqs_forked(void)
{
	vkr_devices_forked();
	atomic_store(&vkr_engine_sleepers, 0);
	atomic_store(&vkr_engine_polled, false);
}

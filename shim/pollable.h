/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Readiness as stored state: what every stream and RDMA listener shows to the layers above.
 *
 * `ready` holds the EPOLL* bits that are true now. It is written under `lock` and read without it. Whoever changes the
 * state calls vkr_pollable_set() with the new mask and with the *edge*: the bits for which something happened just now
 * (new data although IN already held, new room, a close). Each watch is fired for a non-empty edge; only when all have
 * heard are those woken whose fire function asked for it, so that who wakes finds everything that the change made
 * ready. Both with `lock` held: they must not block, must not take a socket's or a CQ's lock, and must not add or
 * remove watches; they may take an epoll set's lock and write an eventfd.
 *
 * Lock order: socket -> CQ -> pollable (stream, listener) -> epoll set -> leaf locks (stats, pools).
 */
#ifndef VKR_POLLABLE_H
#define VKR_POLLABLE_H

#include "base.h"

struct vkr_watch {
	struct vkr_watch *next, *prev;                        /* on the pollable's list (utlist), under its lock */
	bool (*fire)(struct vkr_watch *watch, uint32_t edge); /* true: wake is due */
	void (*wake)(struct vkr_watch *watch);
	bool due;
};

struct vkr_pollable {
	pthread_mutex_t lock;
	_Atomic uint32_t ready;
	_Atomic bool watched; /* there are any: for a look without the lock */
	struct vkr_watch *watches;
};

void vkr_pollable_init(struct vkr_pollable *p);

/* Lock held. Store the mask; fire the watches if edge != 0, and wake. */
void vkr_pollable_set(struct vkr_pollable *p, uint32_t ready, uint32_t edge);
/* The same in two steps, between which the lock may be released. post: true if wake is to follow. */
bool vkr_pollable_post(struct vkr_pollable *p, uint32_t ready, uint32_t edge);
void vkr_pollable_wake(struct vkr_pollable *p);

/* Lock not held. After vkr_watch_del() returns the fire function is not running and never runs again. */
void vkr_watch_add(struct vkr_pollable *p, struct vkr_watch *w);
void vkr_watch_del(struct vkr_pollable *p, struct vkr_watch *w);

/* The same under the lock: what follows before it is released is before any fire. */
void vkr_watch_add_locked(struct vkr_pollable *p, struct vkr_watch *w);

/* True if w is the only watch. */
bool vkr_watch_alone(struct vkr_pollable *p, struct vkr_watch *w);

static inline uint32_t vkr_pollable_ready(struct vkr_pollable *p)
{
	return vkr_load_acq(&p->ready);
}

#endif

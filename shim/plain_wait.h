/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Waits on sets that hold nothing of ours, by threads that leave no more than a note of their own: where the events go.
 * Whoever puts the first carried member into a set claims its numbers first: from then on nobody begins such a wait on
 * them, and those that are in one are counted as the set's, and look at it when they come back.
 *
 * The thread writes its note, and then reads whether the number is still its to wait on; who claims takes the number
 * away, and then reads the notes. Between the two the one needs a full barrier as much as the other. The thread's is a
 * compiler barrier alone: membarrier() executes one on every thread's behalf. Where the kernel has no such call no
 * thread ever learns a number, and all waits are counted. tests/model has the model.
 */
#ifndef VKR_PLAIN_WAIT_H
#define VKR_PLAIN_WAIT_H

#include "base.h"

#include <signal.h>

struct vkr_epset;

#define VKR_PLAIN_NONE    -2 /* no number */
#define VKR_PLAIN_CLAIMED -3
#define VKR_PLAIN_HIT     (1ull << 63) /* in `note`: the set was claimed */

/* A thread's. One cache line; never unmapped, wiped in a forked child. */
struct vkr_plain {
	_Atomic int number; /* a set of which the thread knows that it is plain; changed under the lock */
	_Atomic uint64_t
	    note; /* 0: not in a wait; else where its events go, and VKR_PLAIN_HIT; 1: has just left a hit one */
	/* While in a wait: its time-out (int, or const struct timespec *, and which), and its mask. */
	union {
		int ms;
		const struct timespec *ts;
	} timeout;
	const sigset_t *mask;
	/* Of who hit it, under the lock. */
	struct vkr_epset *set; /* held */
	uint64_t events;
	int fd;
	int64_t hit_at;
	struct vkr_plain *next;
};

extern VKR_LOCAL VKR_TLS struct vkr_plain *vkr_plain_self;

/* A relaxed load that compilers let be part of a comparison: one instruction. */
#ifdef __SANITIZE_THREAD__
#define VKR_PLAIN_READ(type, word) vkr_load(&(word))
#else
#define VKR_PLAIN_READ(type, word) (*(const type *)&(word))
#endif

/* The thread is about to wait on the number: true if it may do so past us; vkr_plain_leave() follows. */
static VKR_INLINE bool vkr_plain_enter(struct vkr_plain *self, int epfd, const void *events)
{
	vkr_store(&self->note, (uint64_t)(uintptr_t)events);
	atomic_signal_fence(memory_order_seq_cst);
	return vkr_likely(VKR_PLAIN_READ(int, self->number) == epfd);
}

/* The set of the number is as plain as the thread knows: what is not ours is registered past us. */
static VKR_INLINE bool vkr_plain_knows(int epfd)
{
	return vkr_likely(VKR_PLAIN_READ(int, vkr_plain_self->number) == epfd);
}

/* Not in one already: a signal's handler has interrupted it, or jumped out of it. Nor a thread that never waited. */
static VKR_INLINE bool vkr_plain_may(struct vkr_plain *self)
{
	return vkr_likely(!VKR_PLAIN_READ(uint64_t, self->note));
}

/*
 * True: vkr_plain_left() is to be called. One instruction takes the note away and tells whether it was hit, so that a
 * membarrier() finds either all of it done or nothing.
 */
static VKR_INLINE bool vkr_plain_leave(struct vkr_plain *self)
{
	bool hit;

#ifdef __x86_64__
	__asm__ volatile("shrq $63, %0" : "+m"(self->note), "=@ccnz"(hit) : : "memory");
#else
	hit = atomic_exchange(&self->note, 1) & VKR_PLAIN_HIT;
	if (!hit)
		vkr_store(&self->note, 0);
#endif
	return vkr_unlikely(hit);
}

/* After a hit wait. The set that it was on, held by the caller from now on, or NULL; `was` has what is in the note. */
struct vkr_epset *vkr_plain_left(struct vkr_plain *self, struct vkr_plain *was);

void vkr_plain_put(struct vkr_epset *set); /* NULL is ignored */

/* Before a thread is made where it can be: registering for membarrier() costs a process of several threads 10 ms. */
void vkr_plain_prepare(void);

/* The number's set is plain, and the thread is outside of any wait past us: the next on this number may be one. */
void vkr_plain_learn(int epfd);

/* vkr_ctl_lock held. The set that the number names is about to hold a member of ours (for good), or to lose the number:
 * who waits on it by that is counted in set->in_kernel when this returns. */
void vkr_plain_claim(struct vkr_epset *set, int fd, bool for_good);
/*
 * vkr_ctl_lock held, before and after dup2(). The number of `from`, or of nothing that is tracked, becomes one of `to`.
 * Who waits on it may do so in either: it is counted as from's, and looks for markers when it comes back; `to` takes
 * it, for good, that somebody sleeps in it whom it does not know.
 */
void vkr_plain_change(int fd, struct vkr_epset *from, struct vkr_epset *to);
void vkr_plain_changed(struct vkr_epset *from, struct vkr_epset *to);

/* The child of a fork. */
void vkr_plain_forked(void);

#endif

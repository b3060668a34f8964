/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Busy polling before a sleep, where it pays: a sleep and its wake-up cost two system calls here and one at the peer,
 * more than a short wait. Each thread remembers how long its waits take. It polls only when the answer is expected
 * within VKRDMA_POLL microseconds, never longer than that, and after a poll in vain sleeps at once for a number of
 * waits that doubles each time. An idle program does not poll, nor any with a single processor, nor more threads of a
 * program at once than half the processors.
 */
#ifndef VKR_SPIN_H
#define VKR_SPIN_H

#include "base.h"

struct vkr_spin {
	int64_t began; /* ns; 0: nothing was waited for */
};

/* Before a sleep; does something the first time in a wait. Polls the engine until ready(arg): true, or it does not pay.
 * left: ns that the wait may take, negative for ever. */
bool vkr_spin(struct vkr_spin *s, bool (*ready)(void *arg), void *arg, int64_t left);

/* The same for a word that is written from outside: until it is no longer `seen`, for up to `times` as long (1 to 8).
 * False: that took too long, or it does not pay. Own bookkeeping, no vkr_spin_done. */
bool vkr_spin_word(const _Atomic uint64_t *word, uint64_t seen, unsigned times);

/* The wait is over. rdma: it was a stream that ended it; the kernel's events are not found by polling. */
void vkr_spin_done(const struct vkr_spin *s, bool rdma);

/* The child of a fork: threads that polled are not here. */
void vkr_spin_forked(void);

#endif

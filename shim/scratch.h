/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory for the lists of one call, of which the thread keeps one piece. For calls that a signal's handler may make
 * too: no malloc(). Who interrupts a call that has the kept piece gets another, unmapped when it is given back.
 */
#ifndef VKR_SCRATCH_H
#define VKR_SCRATCH_H

#include "base.h"

/* Not cleared, aligned for anything; what is not touched costs nothing. NULL: out of memory. */
void *vkr_scratch_take(size_t size);
/* With the size that was asked for. NULL is ignored. */
void vkr_scratch_give(void *mem, size_t size);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The library's own file descriptors inside the application's table. They are moved out of the application's way
 * (high numbers, close-on-exec) and remembered, so that the exported layer can refuse to close them.
 */
#ifndef VKR_GUARD_H
#define VKR_GUARD_H

#include "base.h"

/*
 * Takes ownership of fd: duplicates it to a high number with FD_CLOEXEC, closes the original and returns the new
 * number. Where no high number can be had the original is kept and guarded. A negative fd is returned unchanged.
 */
int vkr_guard_fd(int fd);

/* The same for a descriptor that can be done without: with no high number left it is closed, and -errno returned. Those
 * numbers are fewer than the application's own, so that it never runs out on the library's account. */
int vkr_guard_spare(int fd);

/* Guards a number that cannot be moved (rdma-core's own). */
void vkr_guard_mark(int fd);
void vkr_guard_unmark(int fd);

/* Unmarks and really closes. */
void vkr_guard_close(int fd);

/* Without locks; false for any number out of range. */
bool vkr_guard_has(int fd);
/* No number below was ever guarded, and none from VKR_FD_CHUNK_SIZE on is below it. */
extern VKR_LOCAL _Atomic unsigned vkr_guard_low;

/* A dup2 of the application's is about to take this number: moves ours aside. The owner learns the new number through
 * the slot it registered, which lies in memory that is never freed, or used for anything but slots: the owner may
 * release it while it is being moved. fds registered without a slot cannot move and -EBUSY is returned. */
void vkr_guard_slot(int fd, int *slot);
int vkr_guard_evict(int fd);

/* Calls fn for every guarded fd (fork's child closes them; close_range goes round them). Ascending order. */
void vkr_guard_each(void (*fn)(int fd, void *arg), void *arg);

/* Lowest guarded fd that is >= fd, or -1. */
int vkr_guard_next(int fd);

#endif

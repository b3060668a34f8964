/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * RLIMIT_NOFILE. A carried connection takes more descriptors than the application counts on, so the real soft limit is
 * raised once a flagged socket appears; the application goes on seeing, and setting, its own. The real soft limit stays
 * under VKR_NOFILE_CAP: programs that we start by system() inherit it, and some close every number below it.
 */
#ifndef VKR_NOFILE_H
#define VKR_NOFILE_H

#include "base.h"

#include <sys/resource.h>

#define VKR_NOFILE_CAP 1048576

/* Called by the socket layer at each flagged socket; does something the first time. Leaf lock only; keeps errno. */
void vkr_limits_raise(void);

/* The soft limit that the application believes in, clipped to the hard one; false while nothing was raised. */
bool vkr_limits_seen(rlim_t *soft);

/* Its value without a system call; RLIM_INFINITY while nothing was raised. */
rlim_t vkr_limits_app(void);
/* May the application have this number under the limit that it believes in? */
bool vkr_limits_allow(int fd);

/* The application's numbers and the library's are under one limit: it could not be raised. */
bool vkr_limits_full(void);

/* prlimit(RLIMIT_NOFILE) of this process in the application's terms; either may be NULL. 0, -errno, or VKR_PASS while
 * nothing was raised. */
int vkr_limits_exchange(const struct rlimit *set, struct rlimit *old);

/* Around an exec of this process: gives the application's value back, unless the (vforked) process has set another by
 * itself; true if so. Takes no lock and writes no memory. */
bool vkr_limits_restore(void);
void vkr_limits_restore_undo(bool restored); /* the exec failed */

/* Around posix_spawn() and its like: the child inherits the application's value. Calls nest among threads. */
void vkr_limits_spawn_begin(void);
void vkr_limits_spawn_end(void);

void vkr_limits_fork_child(void);

#endif

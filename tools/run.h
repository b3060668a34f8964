/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef VKR_TOOLS_RUN_H
#define VKR_TOOLS_RUN_H

#include "base.h"

#include <limits.h>

#define RUN_LIBRARY      "libvkrdma.so"
#define RUN_SOFT_LIBRARY "libvkrdma-soft.so"

/* Where a library of ours is: beside this program, or where it was installed. 0 or -ENOENT. */
int run_library_find(const char *name, char path[PATH_MAX]);

/*
 * Why a preloaded library cannot act in `program` (a path, or a name to be looked up in PATH as execvp does): a
 * sentence in `why`, or nothing. True if there is something to say. Programs that cannot be read are nobody's fault
 * here.
 */
bool run_program_objections(const char *program, char *why, size_t size);

/* `vkrdma-run --check`: prints one line a step. Returns the exit status: 0 if RDMA would work with the chosen provider,
 * else 1. */
int run_check(bool soft);

#endif

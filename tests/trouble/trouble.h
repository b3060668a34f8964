/* SPDX-License-Identifier: BSD-2-Clause */
/* What libvkr-trouble.so and the program that reads its counters agree on. */
#ifndef VKR_TROUBLE_H
#define VKR_TROUBLE_H

#include <stdatomic.h>
#include <stdint.h>

enum vkr_trouble_kind {
	VKR_TROUBLE_ALLOC,
	VKR_TROUBLE_FDS,
	VKR_TROUBLE_INTR,
	VKR_TROUBLE_SHORT,
	VKR_TROUBLE_AGAIN,
	VKR_TROUBLE_N,
};
#define VKR_TROUBLE_KINDS                                                                                              \
	{                                                                                                              \
		"alloc", "fds", "intr", "short", "again"                                                               \
	}

/* The file of VKR_TROUBLE_COUNTS. */
struct vkr_trouble_counts {
	_Atomic uint64_t seen[VKR_TROUBLE_N]; /* opportunities */
	_Atomic uint64_t done[VKR_TROUBLE_N];
};

#endif

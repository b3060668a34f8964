/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * softverbs' few private entries beside the libibverbs and librdmacm ABI. A caller finds them with dlsym() on the same
 * handle that gave it ibv_* and rdma_*; where they are missing the provider is real rdma-core.
 */
#ifndef VKR_SOFTVERBS_H
#define VKR_SOFTVERBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VKR_SOFT_ABI 4

struct rdma_event_channel;

struct vkr_soft_api {
	uint32_t abi; /* VKR_SOFT_ABI */

	/* Memory that peers can map from birth, so that registering it for remote access costs no copy. Page-aligned,
	 * zeroed, not inherited by fork (MADV_DONTFORK). len is rounded up to whole pages. NULL and errno on failure.
	 */
	void *(*arena_alloc)(size_t len);
	void (*arena_free)(void *p, size_t len);

	/* Every descriptor that softverbs opens from now on is passed through `move` (which may return another number,
	 * the old one closed, and guards it) and closed through `close`. Descriptors opened before are passed through
	 * at this call. */
	void (*set_fd_hooks)(int (*move)(int fd), void (*close)(int fd));

	/* Inline data costs nothing here (it is copied once, at post): QPs may ask for max_inline_data up to this. */
	uint32_t max_inline;

	/*
	 * The calling thread takes over softverbs' background work, whose thread ends: a message of the CM then costs
	 * one wake-up less. From then on it calls loop_run() whenever loop_fd() is readable or loop_due()
	 * (CLOCK_MONOTONIC, ns; UINT64_MAX: never) has passed, and looks at loop_due() before it sleeps. One thread at
	 * a time may do so; loop_run() does not sleep. Nothing happens before the library has started (a device or a
	 * CM channel opened); a forked child starts anew.
	 */
	void (*loop_own)(void);
	/* Another thread of the caller's stands in (1) while the owner does not, and does no more (0). */
	void (*loop_lend)(int on);
	int (*loop_fd)(void);
	uint64_t (*loop_due)(void);
	void (*loop_run)(void);

	/* Are there events in this channel? What comes up by calls of the loop's thread does not make the channel's
	 * descriptor readable, so the thread asks before it sleeps. */
	int (*cm_pending)(struct rdma_event_channel *channel);

	/* A word of VKRDMA_SOFT_FAULT that happens now (README.md). 0 or -EINVAL. */
	int (*fault)(const char *word);

	/* Posts and requests for notification are cancellation points, as soft-RoCE's are: VKRDMA_SOFT_FAULT=cancel. */
	bool (*cancels)(void);
};

/* The symbol: const struct vkr_soft_api *vkr_soft_api(void) */
const struct vkr_soft_api *vkr_soft_api(void);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* An epoll registration, shared by poll_emul.c and poll_wait.c. Lists are under vkr_ctl_lock unless said otherwise. */
#ifndef VKR_POLL_ITEM_H
#define VKR_POLL_ITEM_H

#include "fdmap.h"

#include <sys/epoll.h>

struct vkr_item {
	struct vkr_watch watch;
	struct vkr_pollable *watched; /* where the watch is, or NULL */
	struct vkr_epset *set;
	struct vkr_file *file;
	int fd;
	uint32_t events; /* under set->lock, as are data and disabled */
	uint64_t data;
	bool disabled; /* ONESHOT was taken */
	bool in_kernel, dual;
	bool queued; /* on set->ready; under set->lock, as are the links */
	struct vkr_item *ready_prev, *ready_next;
	struct vkr_item *prev, *next;           /* on set->items or set->duals */
	struct vkr_item *file_prev, *file_next; /* on file->items */
};

/* The EPOLL* bits that hold now in user space; 0 for what only the kernel knows. */
uint32_t vkr_file_ready(struct vkr_file *f);

/* The kernel reports a stream socket's IN and OUT under both of their names. */
static inline uint32_t vkr_ready_bits(uint32_t ready)
{
	return ready | (ready & EPOLLIN ? EPOLLRDNORM : 0) | (ready & EPOLLOUT ? EPOLLWRNORM : 0);
}

/* True if the set, readable in the kernel's eyes, holds more than a marker of ours. No lock held. */
bool vkr_epset_ready(struct vkr_epset *set);

/* True if a wait on the set would find something of ours. */
bool vkr_epset_peek(struct vkr_epset *set);

#endif

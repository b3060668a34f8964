/* SPDX-License-Identifier: BSD-2-Clause */
/* Connection management as the engine's start and fork handling see it (rdma_life.c). */
#ifndef VKR_RDMA_CM_H
#define VKR_RDMA_CM_H

#include "rdma_stream.h"

struct vkr_listener {
	struct vkr_pollable p;
	struct vkr_listener *prev, *next; /* registry */
	struct vkr_task task;
	unsigned epoch;
	struct rdma_cm_id *id;
	sa_family_t family;
	char rule[72];
	struct vkr_listener_stats *stats; /* may be NULL */
	/* p.lock */
	struct vkr_stream *waiting;
	int n_waiting, backlog;
	bool closed;
	pthread_cond_t closed_cond;
};

extern struct vkr_listener *vkr_listeners; /* registry lock */

/* Opens the CM's event channel. 0 or -errno and a reason. */
int vkr_cm_open(const char **reason);
int vkr_cm_fd(void);
/* Progress thread: handles the events that wait. */
void vkr_cm_readable(void);
void vkr_cm_forked(void);

#endif

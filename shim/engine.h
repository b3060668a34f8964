/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The engine below streams and connection management: devices, shared completion queues, the progress thread with its
 * tasks and timers, and the memory that is registered. It knows QP numbers and endpoints, no streams.
 *
 * Locks, in order: turn (of the progress thread's work; others only try it) -> registry -> devices -> event -> CQ ->
 * endpoint (the stream's pollable lock) -> work, arena (leaves). Functions say what they take. "Progress thread"
 * functions may be called on that thread only (and before it starts).
 */
#ifndef VKR_ENGINE_H
#define VKR_ENGINE_H

#include "base.h"
#include "rdma.h"
#include "verbs_dl.h"

#include <signal.h>

/* uthash would end the process where memory is short; so a failed insertion leaves hh.tbl NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

/* ------------------------------------------------------------------ tasks and timers (engine_progress.c) */

/* Work for the progress thread. Queueing is idempotent until the run begins, and allowed from any thread. */
struct vkr_task {
	struct vkr_task *prev, *next;
	bool queued; /* work lock */
	void (*run)(struct vkr_task *task);
};

void vkr_task_queue(struct vkr_task *task);
/* Runs it before it returns, where nobody else is at work; else queued. No lock may be held. */
void vkr_task_now(struct vkr_task *task);
/* Progress thread: the task is not queued and does not run afterwards. */
void vkr_task_cancel(struct vkr_task *task);

/* Progress thread only. */
struct vkr_timer {
	struct vkr_timer *prev, *next;
	bool armed;
	int64_t due; /* vkr_now_ns() */
	void (*run)(struct vkr_timer *timer);
};

void vkr_timer_set(struct vkr_timer *timer, int64_t due);
void vkr_timer_cancel(struct vkr_timer *timer);

#define VKR_MS 1000000ll

/* A descriptor that the progress thread watches for input besides its own (the CM channel). fd() < 0: none. Set before
 * the thread starts. pending(), NULL allowed: there is something that does not make the descriptor readable. */
struct vkr_progress_source {
	int (*fd)(void);
	void (*readable)(void);
	bool (*pending)(void);
};

int vkr_progress_start(const struct vkr_progress_source *source);
bool vkr_progress_self(void); /* the caller is the progress thread */

/* Makes the calling thread the progress thread for a moment; false: another is at work, or this one is it already. No
 * lock may be held; signals are blocked in between, and nothing may sleep. What is queued meanwhile is run at the end.
 */
struct vkr_turn {
	sigset_t signals;
	int cancel, err;
};
bool vkr_progress_enter(struct vkr_turn *turn);
void vkr_progress_leave(struct vkr_turn *turn);
/* In between: all that has come by now is taken notice of. */
void vkr_progress_catch_up(void);
void vkr_progress_kick(void);
void vkr_progress_forked(void);
void vkr_progress_lock(void); /* for fork */
void vkr_progress_unlock(void);

/* ------------------------------------------------------------------ devices and completion queues (engine.c) */

#define VKR_POLL_BATCH 32 /* completions at once */

struct vkr_cq;
struct vkr_device;

/* What a QP is to the engine. */
struct vkr_endpoint {
	UT_hash_handle hh; /* in its CQ's table, under the CQ lock */
	uint32_t qp_num;
	uint32_t generation; /* the upper half of every wr_id; a completion with another one is stale and dropped */
	struct vkr_cq *cq;
	int reserved; /* entries of the CQ */
	/* CQ lock: its completions of the batch that is dispatched now. */
	uint32_t batch;
	uint8_t first, last;
	/* n completions of this QP, in order. CQ lock held; takes the endpoint's own lock. */
	void (*complete)(struct vkr_endpoint *ep, struct ibv_wc *const *wc, int n);
	/* An async event of the QP, its CQ or its device. Progress thread, no lock held. */
	void (*async)(struct vkr_endpoint *ep, enum ibv_event_type type);
};

/* Never freed, its lock never destroyed: threads without one may be about to take it. cq is NULL while it is not in
 * use: its device has gone, or it failed and the last of its connections has ended. */
struct vkr_cq {
	pthread_mutex_t lock;
	struct vkr_device *dev;
	struct ibv_cq *cq;               /* under the lock */
	struct vkr_endpoint *eps;        /* uthash by QP number */
	struct vkr_endpoint *recent[64]; /* by QP number */
	uint32_t batch;
	int capacity, reserved;
	bool failed; /* overrun or worse: its connections have ended, it takes no more */
	unsigned unacked;
};

/* A device in use. Entries are never freed either; verbs is NULL when it has gone, and the entry is used again. */
struct vkr_device {
	struct ibv_context *verbs;
	struct ibv_comp_channel *channel; /* under the event lock */
	_Atomic int channel_fd;           /* -1: none */
	uint32_t max_cqe;
	int max_sge;
	int reserved; /* entries of all its CQs: not zero while it has connections */
	bool ending;  /* no new connections; goes when the last has ended */
	bool removed; /* the kernel waits for us to let go of it */
	struct vkr_task task;
	pthread_mutex_t event_lock; /* one thread at a time takes events from the channel */
	_Atomic int n_cqs;
	struct vkr_cq *cqs[512];
};

/* Progress thread. The entry for a context, made at first use; NULL and errno when that fails. */
struct vkr_device *vkr_device_get(struct ibv_context *verbs);
/* Progress thread. The entry for a context, if there is one. */
struct vkr_device *vkr_device_find(const struct ibv_context *verbs);
/*
 * Progress thread. The device is of no more use: its connections are told (DEVICE_FATAL), and when the last of them has
 * ended every object of it is released. `removed`: its descriptors too, for which the kernel waits. Idempotent.
 */
void vkr_device_end(struct vkr_device *dev, bool removed);
void vkr_device_let_go(struct ibv_context *verbs);

/* Progress thread. Reserves entries on a CQ of the device for the endpoint (making a CQ when none has room). 0 or
 * -errno. */
int vkr_cq_reserve(struct vkr_device *dev, struct vkr_endpoint *ep, int entries);
struct ibv_cq *vkr_cq_verbs(struct vkr_cq *cq);
/* Progress thread. Enters the endpoint in the table: completions reach it from now on. ep->qp_num is set. 0 or -ENOMEM.
 */
int vkr_endpoint_add(struct vkr_endpoint *ep);
/* Progress thread. Drains the CQ, then takes the endpoint out: none of its functions runs afterwards. */
void vkr_endpoint_remove(struct vkr_endpoint *ep);
/* Progress thread. Gives the reservation back (after the QP is destroyed; drains once more). */
void vkr_cq_release(struct vkr_endpoint *ep);
/* Progress thread. Waits for whoever polls the endpoint's CQ and drains it. */
void vkr_endpoint_drain(struct vkr_endpoint *ep);

/* Progress thread: drains what nobody else is draining; the number handled. */
int vkr_engine_drain(void);
/* Progress thread: reads and dispatches the async events of one device. */
void vkr_device_async(struct vkr_device *dev);

/* Shared by the engine's files. */
extern VKR_LOCAL struct vkr_device *vkr_devices[VKR_MAX_DEVICES];
extern VKR_LOCAL _Atomic int vkr_n_devices;
extern VKR_LOCAL _Atomic unsigned vkr_engine_changes; /* of the completion channels */
extern pthread_mutex_t vkr_devices_lock;              /* around each change of what fork's prepare walks over */
void vkr_devices_forked(void);
void vkr_cq_arm(struct vkr_cq *c);                    /* its lock held, or it is not published */
void vkr_cq_unreserve(struct vkr_cq *c, int entries); /* progress thread */
extern VKR_LOCAL _Atomic int vkr_engine_sleepers;
extern VKR_LOCAL _Atomic bool
    vkr_engine_polled; /* an application thread polled or went to sleep since this was cleared */

void vkr_cqs_lock(void); /* for fork: every CQ's lock */
void vkr_cqs_unlock(void);
void vkr_cqs_forked(void); /* the child forgets devices and queues */

/* ------------------------------------------------------------------ memory (engine_arena.c) */

/*
 * Page-aligned blocks of a power of two (4 KiB up), never inherited by fork, recycled through free lists. Contents of a
 * new block are undefined. Any thread. NULL when memory is short.
 */
void *vkr_arena_alloc(size_t len);
void vkr_arena_free(void *p, size_t len); /* len as allocated; NULL is ignored */
size_t vkr_arena_size(size_t len);        /* what an allocation of len really takes */
void vkr_arena_lock(void);                /* for fork */
void vkr_arena_unlock(void);
void vkr_arena_forked(void);

/* ibv_reg_mr and ibv_dereg_mr with the gauges kept; mem is the connection's gauge. */
struct ibv_mr *vkr_mr_register(struct ibv_pd *pd, void *p, size_t len, int access, vkr_counter *mem);
void vkr_mr_deregister(struct ibv_mr *mr, vkr_counter *mem);
/* A process-wide gauge with several writers. */
void vkr_gauge_add(vkr_counter *gauge, int64_t n);

#endif

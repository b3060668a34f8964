/* SPDX-License-Identifier: BSD-2-Clause */
/* Connection management as the engine's start and fork handling see it (rdma_life.c). */
#ifndef VKR_RDMA_CM_H
#define VKR_RDMA_CM_H

#include "rdma_stream.h"

struct vkr_listener {
	struct vkr_pollable p;
	struct vkr_cm_owner owner;
	struct vkr_listener *prev, *next; /* registry */
	struct vkr_task task;
	unsigned epoch;
	uint32_t serial;
	struct rdma_cm_id *id; /* NULL while its address has no device (progress thread) */
	struct sockaddr_storage local;
	bool v6only;
	sa_family_t family;
	char rule[72];
	struct vkr_listener_stats *stats; /* may be NULL */
	struct vkr_admission admission;
	/* progress thread: requests beyond the backlog, unanswered until there is room */
	struct vkr_held *held;
	_Atomic int n_held; /* read by accept under p.lock */
	int n_handshaking;
	/* p.lock */
	struct vkr_stream *waiting;
	int n_waiting, n_kept, backlog;
	bool stopped; /* shut down: until it listens again */
	bool closing, closed;
	pthread_cond_t closed_cond;
};

/* An event, copied so that it is acknowledged before anything is destroyed on its account. */
struct vkr_cm_event {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id, *listen_id;
	uint8_t data[256];
	size_t data_len;
};

extern struct vkr_listener *vkr_listeners; /* registry lock */

/* Opens the CM's event channel. 0 or -errno and a reason. */
int vkr_cm_open(const char **reason);
void vkr_cm_close(void); /* nobody has used it */
int vkr_cm_fd(void);
/* Progress thread: handles the events that wait. */
void vkr_cm_readable(void);
bool vkr_cm_pending(void);
void vkr_cm_forked(void);

/* ---- shared by rdma_cm.c and rdma_listen.c: progress thread, lock not held */

/* An id on our channel. 0 or -errno (any thread). */
int vkr_cm_id_create(struct rdma_cm_id **id, struct vkr_cm_owner *owner);
/* IPv4 from its mapped form; false if it was none. */
bool vkr_cm_unmap_v4(struct sockaddr_storage *sa);
void vkr_cm_take_addr(struct sockaddr_storage *to, const struct sockaddr *from, bool mapped);
void vkr_cm_take_addrs(struct vkr_stream *s); /* the id's, as the application shall see them */
/* What we say of ourselves; its length. */
size_t vkr_cm_hello_make(const struct vkr_stream *s, uint8_t out[VKR_HELLO_SIZE]);
/* Who is there? Sets the peer's kind, the features both have, and where we may write. 0 or -EPROTO. */
int vkr_cm_hello_take(struct vkr_stream *s, const uint8_t *data, size_t len);
/* For a native peer: the ring it is told about once it is connected. 0 or -errno. */
int vkr_cm_native_ring(struct vkr_stream *s);

void vkr_cm_request(struct vkr_listener *l, const struct vkr_cm_event *e);
void vkr_cm_established(struct vkr_stream *s);
/* rdma_listen.c; registry lock held. The listener has lost its device: TCP, with the reason; and tries again: true if
 * it was in vain. */
void vkr_listener_suspend(struct vkr_listener *l, const char *reason);
bool vkr_listener_resume(struct vkr_listener *l);
/* rdma_device.c: the kernel removes the device of this context. */
void vkr_cm_device_removed(struct ibv_context *verbs);
void vkr_cm_devices_forked(void);
/* The client of a held request has gone. */
void vkr_cm_held_gone(struct vkr_cm_owner *owner);

/* ---- rdma_refuse.c */

/* Answers a request with no, and takes its id. data is the request's. */
void vkr_cm_refuse(struct rdma_cm_id *id, const uint8_t *data, size_t data_len, const char *why);
void vkr_cm_guest_event(struct vkr_cm_owner *owner, enum rdma_cm_event_type type);
void vkr_cm_guests_forked(void);

#endif

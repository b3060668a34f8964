/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libibverbs and librdmacm (or softverbs in their place), opened at run time. Nothing links to them: a machine without
 * RDMA libraries runs the program on plain TCP. Inline verbs of the headers (ibv_post_send, ibv_poll_cq,
 * ibv_req_notify_cq, ...) go through context->ops and may be used as they are; every other call goes through the table.
 * Callers hold vkr_depth > 0, so that calls made by the libraries themselves are not intercepted.
 */
#ifndef VKR_VERBS_DL_H
#define VKR_VERBS_DL_H

#include "base.h"

#include "../softverbs/softverbs.h"
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>

/* name, result, arguments: one row builds the table's member and its look-up. */
#define VKR_VERBS_CALLS(X)                                                                                             \
	X(ibv, fork_init, int, (void))                                                                                 \
	X(ibv, get_device_list, struct ibv_device **, (int *))                                                         \
	X(ibv, free_device_list, void, (struct ibv_device **))                                                         \
	X(ibv, get_device_name, const char *, (struct ibv_device *))                                                   \
	X(ibv, query_device, int, (struct ibv_context *, struct ibv_device_attr *))                                    \
	X(ibv, alloc_pd, struct ibv_pd *, (struct ibv_context *))                                                      \
	X(ibv, dealloc_pd, int, (struct ibv_pd *))                                                                     \
	X(ibv, reg_mr, struct ibv_mr *, (struct ibv_pd *, void *, size_t, int))                                        \
	X(ibv, dereg_mr, int, (struct ibv_mr *))                                                                       \
	X(ibv, create_comp_channel, struct ibv_comp_channel *, (struct ibv_context *))                                 \
	X(ibv, destroy_comp_channel, int, (struct ibv_comp_channel *))                                                 \
	X(ibv, create_cq, struct ibv_cq *, (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))        \
	X(ibv, destroy_cq, int, (struct ibv_cq *))                                                                     \
	X(ibv, get_cq_event, int, (struct ibv_comp_channel *, struct ibv_cq **, void **))                              \
	X(ibv, ack_cq_events, void, (struct ibv_cq *, unsigned int))                                                   \
	X(ibv, create_qp, struct ibv_qp *, (struct ibv_pd *, struct ibv_qp_init_attr *))                               \
	X(ibv, modify_qp, int, (struct ibv_qp *, struct ibv_qp_attr *, int))                                           \
	X(ibv, destroy_qp, int, (struct ibv_qp *))                                                                     \
	X(ibv, get_async_event, int, (struct ibv_context *, struct ibv_async_event *))                                 \
	X(ibv, ack_async_event, void, (struct ibv_async_event *))                                                      \
	X(ibv, wc_status_str, const char *, (enum ibv_wc_status))                                                      \
	X(ibv, event_type_str, const char *, (enum ibv_event_type))                                                    \
	X(rdma, create_event_channel, struct rdma_event_channel *, (void))                                             \
	X(rdma, destroy_event_channel, void, (struct rdma_event_channel *))                                            \
	X(rdma, create_id, int, (struct rdma_event_channel *, struct rdma_cm_id **, void *, enum rdma_port_space))     \
	X(rdma, destroy_id, int, (struct rdma_cm_id *))                                                                \
	X(rdma, bind_addr, int, (struct rdma_cm_id *, struct sockaddr *))                                              \
	X(rdma, resolve_addr, int, (struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int))                   \
	X(rdma, resolve_route, int, (struct rdma_cm_id *, int))                                                        \
	X(rdma, init_qp_attr, int, (struct rdma_cm_id *, struct ibv_qp_attr *, int *))                                 \
	X(rdma, connect, int, (struct rdma_cm_id *, struct rdma_conn_param *))                                         \
	X(rdma, establish, int, (struct rdma_cm_id *))                                                                 \
	X(rdma, listen, int, (struct rdma_cm_id *, int))                                                               \
	X(rdma, accept, int, (struct rdma_cm_id *, struct rdma_conn_param *))                                          \
	X(rdma, reject, int, (struct rdma_cm_id *, const void *, uint8_t))                                             \
	X(rdma, notify, int, (struct rdma_cm_id *, enum ibv_event_type))                                               \
	X(rdma, disconnect, int, (struct rdma_cm_id *))                                                                \
	X(rdma, get_cm_event, int, (struct rdma_event_channel *, struct rdma_cm_event **))                             \
	X(rdma, ack_cm_event, int, (struct rdma_cm_event *))                                                           \
	X(rdma, set_option, int, (struct rdma_cm_id *, int, int, void *, size_t))

struct vkr_verbs {
#define VKR_VERBS_MEMBER(lib, name, result, args) result(*lib##_##name) args;
	VKR_VERBS_CALLS(VKR_VERBS_MEMBER)
#undef VKR_VERBS_MEMBER
	/* NULL with real rdma-core */
	const struct vkr_soft_api *soft;
	_Atomic bool cancels; /* a post may be a cancellation point: soft-RoCE's rings its doorbell by write() */
};

extern VKR_LOCAL struct vkr_verbs vkr_verbs;

extern VKR_TLS int vkr_depth; /* socket.h */

/*
 * Around calls of the libraries, under locks perhaps: what the libraries call is not intercepted, and a thread that is
 * cancelled does not end in the midst of it.
 */
static inline int vkr_verbs_enter(void)
{
	int cancel;

	vkr_depth++;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	return cancel;
}

static inline void vkr_verbs_leave(int cancel)
{
	pthread_setcancelstate(cancel, NULL);
	vkr_depth--;
}

/* The same where nothing but posts are made, and polls: a provider that does these in user space costs nothing. */
static inline int vkr_verbs_enter_post(void)
{
	int cancel = -1;

	vkr_depth++;
	if (vkr_unlikely(vkr_load(&vkr_verbs.cancels)))
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	return cancel;
}

static inline void vkr_verbs_leave_post(int cancel)
{
	if (vkr_unlikely(cancel >= 0))
		pthread_setcancelstate(cancel, NULL);
	vkr_depth--;
}

/*
 * Opens the provider's libraries and fills the table. Once; not thread-safe (the engine's start lock). 0, or -errno
 * with *reason a static string in user's words.
 */
int vkr_verbs_open(bool soft, const char **reason);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a request that cannot be met is answered. A shim is rejected, with the reason. A native client falls over a
 * rejection: libvalkey goes on with a connection that it has not got, and crashes or waits for ever (T7). It is let in,
 * to no queue pair, and shown out. All on the progress thread.
 */
#include "rdma_cm.h"

#include <stdlib.h>

/* A libvalkey that finds both events at once waits for the first for ever. */
#define STAY_NS    (100 * VKR_MS)
#define GUESTS_MAX 256 /* at once; others are rejected */

static int n_guests;

struct guest {
	struct vkr_cm_owner owner;
	struct vkr_timer timer;
	struct rdma_cm_id *id;
};

static void guest_leaves(struct guest *g)
{
	vkr_timer_cancel(&g->timer);
	vkr_verbs.rdma_disconnect(g->id);
	vkr_verbs.rdma_destroy_id(g->id);
	free(g);
	n_guests--;
}

static void guest_timer(struct vkr_timer *timer)
{
	guest_leaves(vkr_container_of(timer, struct guest, timer));
}

void vkr_cm_guest_event(struct vkr_cm_owner *owner, enum rdma_cm_event_type type)
{
	struct guest *g = vkr_container_of(owner, struct guest, owner);

	if (type == RDMA_CM_EVENT_ESTABLISHED)
		vkr_timer_set(&g->timer, vkr_now_ns() + STAY_NS);
	else
		guest_leaves(g); /* it has gone first, or never came */
}

static bool let_in(struct rdma_cm_id *id)
{
	/* The queue pair number that nothing can be sent to. */
	struct rdma_conn_param param = {.qp_num = 0, .retry_count = 7, .rnr_retry_count = 7};
	struct guest *g = n_guests < GUESTS_MAX ? calloc(1, sizeof(*g)) : NULL;

	if (!g)
		return false;
	g->owner.kind = VKR_OWNER_GUEST;
	g->timer.run = guest_timer;
	g->id = id;
	id->context = &g->owner;
	if (vkr_verbs.rdma_accept(id, &param)) {
		free(g);
		return false;
	}
	n_guests++;
	return true;
}

void vkr_cm_guests_forked(void)
{
	n_guests = 0;
}

void vkr_cm_refuse(struct rdma_cm_id *id, const uint8_t *data, size_t data_len, const char *why)
{
	uint8_t refusal[VKR_REFUSAL_SIZE];
	struct vkr_hello hello;

	if (vkr_wire_hello_decode(data, data_len, &hello) == -ENOMSG && let_in(id))
		return;
	vkr_wire_refusal_encode(why, refusal);
	vkr_verbs.rdma_reject(id, refusal, sizeof(refusal));
	vkr_verbs.rdma_destroy_id(id);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Work requests that share one doorbell: built and posted under the stream's lock. */
#ifndef VKR_RDMA_CHAIN_H
#define VKR_RDMA_CHAIN_H

#include "rdma_stream.h"

#define VKR_CHAIN 16

/* Not cleared: it is large, and what is used gets set. */
struct vkr_chain {
	int n, n_sge;
	struct ibv_send_wr wr[VKR_CHAIN];
	struct ibv_sge sge[VKR_CHAIN + 2 * VKR_MAX_SGE];
	uint8_t ctl[VKR_CHAIN][VKR_WIRE_SIZE];
};

static inline void vkr_chain_begin(struct vkr_chain *c)
{
	c->n = c->n_sge = 0;
}

void vkr_chain_post(struct vkr_stream *s, struct vkr_chain *c);

/* Room for n requests of together n_sge entries: posts what is there if need be. */
static inline void vkr_chain_room(struct vkr_stream *s, struct vkr_chain *c, int n, int n_sge)
{
	if (c->n + n > VKR_CHAIN || c->n_sge + n_sge > (int)VKR_ARRAY_SIZE(c->sge))
		vkr_chain_post(s, c);
}

/* The next request; the caller has looked at the send queue, and adds opcode and entries. */
struct ibv_send_wr *vkr_chain_next(struct vkr_stream *s, struct vkr_chain *c, bool signaled);

static inline void vkr_chain_sge(struct vkr_chain *c, struct ibv_send_wr *wr, const void *p, uint32_t n, uint32_t lkey)
{
	c->sge[c->n_sge++] = (struct ibv_sge){.addr = (uintptr_t)p, .length = n, .lkey = lkey};
	wr->num_sge++;
}

/* The first `part` bytes of a message that goes on at the ring's beginning: written without a word. */
struct ibv_send_wr *vkr_chain_write(struct vkr_stream *s, struct vkr_chain *c, uint32_t part);
/* The last `part` bytes of a message of n in all. */
struct ibv_send_wr *vkr_chain_data(struct vkr_stream *s, struct vkr_chain *c, uint32_t part, uint32_t n, bool signaled);
/* Always signaled: the last data requests' completion becomes known with it, and a slot is free again. */
void vkr_chain_message(struct vkr_stream *s, struct vkr_chain *c, const struct vkr_message *m);
/* An immediate without bytes. */
void vkr_chain_imm(struct vkr_stream *s, struct vkr_chain *c, enum vkr_imm type, uint32_t value);
/* The credit word, with the immediate that was asked for or without. */
void vkr_chain_credit(struct vkr_stream *s, struct vkr_chain *c, bool asked);

#endif

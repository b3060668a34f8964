/* SPDX-License-Identifier: BSD-2-Clause */
/* Work requests that share one doorbell: built and posted under the stream's lock. */
#ifndef VKR_RDMA_CHAIN_H
#define VKR_RDMA_CHAIN_H

#include "rdma_stream.h"

#include <arpa/inet.h>
#include <string.h>

#define VKR_CHAIN 16

/* Not cleared: it is large. What a request's opcode looks at gets set. */
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

/* ibv_post_send() said ret. */
VKR_COLD void vkr_chain_failed(struct vkr_stream *s, int ret);

static inline void vkr_chain_post(struct vkr_stream *s, struct vkr_chain *c)
{
	struct ibv_send_wr *bad;
	int i, ret;

	if (!c->n)
		return;
	for (i = 0; i < c->n - 1; i++)
		c->wr[i].next = &c->wr[i + 1];
	c->wr[i].next = NULL;
	ret = ibv_post_send(s->qp, c->wr, &bad);
	c->n = c->n_sge = 0;
	if (vkr_unlikely(ret))
		vkr_chain_failed(s, ret);
}

/* Room for n requests of together n_sge entries: posts what is there if need be. */
static inline void vkr_chain_room(struct vkr_stream *s, struct vkr_chain *c, int n, int n_sge)
{
	if (c->n + n > VKR_CHAIN || c->n_sge + n_sge > (int)VKR_ARRAY_SIZE(c->sge))
		vkr_chain_post(s, c);
}

/* Begins a request with the entries at sge, none so far; the caller has looked at the send queue. What the opcode looks
 * at remains to be set, `next` too where it is in no chain. */
static inline void vkr_wr_begin(struct vkr_stream *s, struct ibv_send_wr *wr, struct ibv_sge *sge, bool signaled)
{
	struct vkr_tx *tx = &s->tx;

	wr->wr_id = (uint64_t)s->ep.generation << 32 | (tx->posted & VKR_WR_SEQ);
	wr->sg_list = sge;
	wr->num_sge = 0;
	wr->send_flags = 0;
	tx->posted++;
	if (++tx->unsignaled >= VKR_SEND_SIGNAL || signaled) {
		wr->send_flags = IBV_SEND_SIGNALED;
		tx->unsignaled = 0;
	}
}

static inline void vkr_wr_to_ring(struct vkr_stream *s, struct ibv_send_wr *wr, uint32_t part)
{
	struct vkr_tx *tx = &s->tx;

	wr->wr.rdma.remote_addr = tx->addr + tx->off;
	wr->wr.rdma.rkey = tx->rkey;
	tx->off += part;
	if (s->credits) {
		tx->pos += part;
		if (tx->off == tx->len)
			tx->off = 0;
	}
	vkr_count(&s->stats->bytes_out, part);
}

/* The last `part` bytes of a message of n in all. */
static inline void vkr_wr_data(struct vkr_stream *s, struct ibv_send_wr *wr, uint32_t part, uint32_t n)
{
	struct vkr_tx *tx = &s->tx;

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = htonl(n); /* VKR_IMM_DATA is 0: the native form */
	vkr_wr_to_ring(s, wr, part);
	tx->data_mark = ++tx->msgs;
	vkr_count(&s->stats->immediates_out, 1);
}

static inline struct ibv_send_wr *vkr_chain_next(struct vkr_stream *s, struct vkr_chain *c, bool signaled)
{
	struct ibv_send_wr *wr = &c->wr[c->n++];

	vkr_wr_begin(s, wr, &c->sge[c->n_sge], signaled);
	return wr;
}

/* The first `part` bytes of a message that goes on at the ring's beginning: written without a word. */
static inline struct ibv_send_wr *vkr_chain_write(struct vkr_stream *s, struct vkr_chain *c, uint32_t part)
{
	struct ibv_send_wr *wr = vkr_chain_next(s, c, false);

	wr->opcode = IBV_WR_RDMA_WRITE;
	vkr_wr_to_ring(s, wr, part);
	return wr;
}

static inline struct ibv_send_wr *vkr_chain_data(struct vkr_stream *s, struct vkr_chain *c, uint32_t part, uint32_t n,
						 bool signaled)
{
	struct ibv_send_wr *wr = vkr_chain_next(s, c, signaled);

	vkr_wr_data(s, wr, part, n);
	return wr;
}

static inline void vkr_chain_sge(struct vkr_chain *c, struct ibv_send_wr *wr, const void *p, uint32_t n, uint32_t lkey)
{
	c->sge[c->n_sge++] = (struct ibv_sge){.addr = (uintptr_t)p, .length = n, .lkey = lkey};
	wr->num_sge++;
}

/* Always signaled: the last data requests' completion becomes known with it, and a slot is free again. */
void vkr_chain_message(struct vkr_stream *s, struct vkr_chain *c, const struct vkr_message *m);
/* An immediate without bytes. */
void vkr_chain_imm(struct vkr_stream *s, struct vkr_chain *c, enum vkr_imm type, uint32_t value);
/* The credit word, with the immediate that was asked for or without. */
void vkr_chain_credit(struct vkr_stream *s, struct vkr_chain *c, bool asked);

#endif

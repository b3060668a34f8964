/* SPDX-License-Identifier: BSD-2-Clause */
#include "rdma_chain.h"

#include "log.h"

#include <string.h>

void vkr_chain_failed(struct vkr_stream *s, int ret)
{
	vkr_info("a send could not be posted: error %d", ret > 0 ? ret : errno);
	vkr_stream_break(s, ECONNRESET);
}

void vkr_chain_message(struct vkr_stream *s, struct vkr_chain *c, const struct vkr_message *m)
{
	struct ibv_send_wr *wr = vkr_chain_next(s, c, true);
	uint8_t *body = c->ctl[c->n - 1];
	uint32_t lkey = 0;

	if (s->inline_max >= VKR_WIRE_SIZE) {
		wr->send_flags |= IBV_SEND_INLINE;
	} else {
		/* No more than VKR_CTL_SLOTS are in flight: the caller looks before. */
		body = s->ctl + (size_t)(VKR_RECV_DEPTH + (s->tx.posted - 1) % VKR_CTL_SLOTS) * VKR_WIRE_SIZE;
		lkey = s->ctl_mr->lkey;
	}
	vkr_wire_encode(m, body);
	wr->opcode = IBV_WR_SEND;
	vkr_chain_sge(c, wr, body, VKR_WIRE_SIZE, lkey);
	s->tx.msgs++;
	vkr_count(&s->stats->sends_out, 1);
}

void vkr_chain_imm(struct vkr_stream *s, struct vkr_chain *c, enum vkr_imm type, uint32_t value)
{
	struct ibv_send_wr *wr = vkr_chain_next(s, c, true);

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = vkr_wire_imm_encode(type, value);
	wr->wr.rdma.remote_addr = s->tx.addr;
	wr->wr.rdma.rkey = s->tx.rkey;
	s->tx.msgs++;
	vkr_count(&s->stats->immediates_out, 1);
}

void vkr_chain_credit(struct vkr_stream *s, struct vkr_chain *c, bool asked)
{
	struct ibv_send_wr *wr = vkr_chain_next(s, c, false);
	uint32_t lkey = s->ctl_mr->lkey;
	void *from = &s->word[1];

	/*
	 * The bytes were read before the peer can learn that their place is free. Where the device takes the word from
	 * memory, a request that is still under way takes this newer one: both are true.
	 */
	atomic_thread_fence(memory_order_release);
	vkr_store(&s->word[1], vkr_wire_credit_encode(&s->rxc.now));
	s->rxc.returned = s->rxc.now;
	wr->opcode = asked ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
	if (s->inline_max >= VKR_CREDIT_SIZE) {
		memcpy(c->ctl[c->n - 1], from, VKR_CREDIT_SIZE);
		from = c->ctl[c->n - 1];
		wr->send_flags |= IBV_SEND_INLINE;
		lkey = 0;
	}
	if (asked) {
		wr->imm_data = vkr_wire_imm_encode(VKR_IMM_CREDIT, 0);
		s->tx.msgs++;
		vkr_count(&s->stats->immediates_out, 1);
	}
	vkr_chain_sge(c, wr, from, VKR_CREDIT_SIZE, lkey);
	wr->wr.rdma.remote_addr = s->tx.credit_addr;
	wr->wr.rdma.rkey = s->tx.credit_rkey;
	vkr_count(&s->stats->credits_out, 1);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The sender's view of the peer's QP: finding it, staying in step with it, its ring and its bell. QP lock held
 * throughout.
 */
#include "soft.h"

bool sv_remote_attach(struct sv_qp *qp)
{
	uint32_t qpn = qp->attr.dest_qp_num;
	struct sv_seg *seg;
	uint32_t n;

	if (!qp->peer)
		qp->peer = sv_peer_by_qpn(qpn);
	if (!qp->peer)
		return false;
	seg = sv_load_acq(&qp->peer->seg);
	if (!seg)
		return false;
	n = sv_min(sv_load_acq(&seg->nblocks), (uint32_t)SV_MAX_BLOCKS);
	for (uint32_t i = 0; i < n; i++) {
		if (seg->blocks[i] == qpn >> SV_BLOCK_SHIFT) {
			qp->rseg = seg;
			qp->rent = &seg->qp[i * SV_BLOCK_QPS + qpn % SV_BLOCK_QPS];
			return true;
		}
	}
	return false;
}

static bool pow2(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* Everything here is the peer's word: loaded once, checked, kept. */
static bool remote_resync(struct sv_qp *qp, uint32_t epoch)
{
	struct sv_qp_ent *e = qp->rent;
	uint32_t slots = e->slots, pay = e->pay_size, rq = e->rq_size, cq = e->recv_cq, slot = e->recv_slot;
	uint64_t off = e->ring_off, need = (uint64_t)slots * sizeof(struct sv_desc) + rq * 4ull + pay;

	if (e->qpn != qp->attr.dest_qp_num || sv_load(&e->dest_qpn) != qp->ex.qp_base.qp_num)
		return false;
	if (!pow2(slots) || !pow2(pay) || (rq && !pow2(rq)) || slots > 65536 || rq > 65536 || pay > (1u << 24) ||
	    off < sizeof(struct sv_seg) || off % 64 || off > SV_SEG_SIZE - need || cq >= SV_MAX_CQ)
		return false;
	qp->rdesc = (struct sv_desc *)((char *)qp->rseg + off);
	qp->rmask = slots - 1;
	qp->rlens = (uint32_t *)(qp->rdesc + slots);
	qp->rrq_size = rq;
	qp->rpay = (char *)(qp->rlens + rq);
	qp->rpay_size = pay;
	qp->rcq_ent = &qp->rseg->cq[cq];
	qp->rcq_slot = slot % SV_BITS;
	qp->r_split = e->send_cq != cq;
	qp->prod = sv_load(&e->prod);
	qp->sent = sv_load(&e->sent);
	qp->pay_prod = sv_load(&e->pay_prod);
	qp->pay_base = qp->pay_prod;
	qp->bell = qp->prod;
	qp->has_ring_write = false;
	qp->repoch = epoch;
	return true;
}

/* Are we the one that the owner's QP is connected to? Only then may we write its `busy`. */
static bool remote_ours(struct sv_qp *qp)
{
	return qp->rent->qpn == qp->attr.dest_qp_num && sv_load(&qp->rent->dest_qpn) == qp->ex.qp_base.qp_num;
}

bool sv_remote_begin(struct sv_qp *qp)
{
	uint32_t word, state;

	if (sv_unlikely(!qp->rent) && !sv_remote_attach(qp))
		return false;
	if (sv_unlikely(sv_load(&qp->peer->away)))
		return false;
	word = sv_load_acq(&qp->rent->state);
	if (sv_unlikely(SV_EPOCH(word) != qp->repoch) && !remote_ours(qp))
		return false;
	/* The owner invalidates first and looks at `busy` then; we the other way round. */
	qp->bseq = (qp->bseq + 1) | 1;
	atomic_exchange(&qp->rent->busy, qp->bseq);
	word = atomic_load(&qp->rent->state);
	state = SV_STATE(word);
	if (sv_likely(SV_EPOCH(word) == qp->repoch && state == IBV_QPS_RTS)) {
		qp->r_rtr = false;
		return true;
	}
	qp->r_rtr = state == IBV_QPS_RTR;
	if ((state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE) &&
	    (SV_EPOCH(word) == qp->repoch || remote_resync(qp, SV_EPOCH(word))))
		return true;
	sv_remote_end(qp);
	return false;
}

void sv_remote_end(struct sv_qp *qp)
{
	sv_store_rel(&qp->rent->busy, ++qp->bseq);
}

/* ------------------------------------------------------------------ the ring */

/*
 * Decides where the next payload goes; the owner's progress between placing and publishing must not move it. Pieces do
 * not wrap. An empty ring starts over at its beginning, so that a QP with little traffic touches few pages.
 */
bool sv_room(struct sv_qp *qp, uint32_t len)
{
	uint32_t pos = qp->pay_prod, off = pos & (qp->rpay_size - 1), free_from;

	if (qp->prod - sv_load_acq(&qp->rent->cons) > qp->rmask)
		return false;
	if (!len)
		return true;
	free_from = sv_load_acq(&qp->rent->pay_cons);
	if (pos == free_from) {
		if (off)
			pos += qp->rpay_size - off;
		qp->pay_base = pos;
	} else if (off + len > qp->rpay_size) {
		pos += qp->rpay_size - off;
	}
	/* What an empty ring skipped to start over was never used. */
	if ((int32_t)(free_from - qp->pay_base) < 0)
		free_from = qp->pay_base;
	qp->pay_next = pos;
	return pos + len - free_from <= qp->rpay_size;
}

char *sv_payload_at(struct sv_qp *qp)
{
	return qp->rpay + (qp->pay_next & (qp->rpay_size - 1));
}

/* A descriptor with a payload (everything that is not a mere request or note) has had it placed at sv_payload_at(). */
static bool has_payload(const struct sv_desc *d)
{
	return d->len && d->op != SV_D_WRITE_IMM && d->op != SV_D_READ;
}

void sv_put_desc(struct sv_qp *qp, const struct sv_desc *d)
{
	struct sv_desc *slot = &qp->rdesc[qp->prod & qp->rmask];

	*slot = *d;
	if (has_payload(d)) {
		slot->pos = qp->pay_next;
		qp->pay_prod = slot->pos + ((d->len + SV_PAYLOAD_STEP - 1) & ~(SV_PAYLOAD_STEP - 1));
		sv_store(&qp->rent->pay_prod, qp->pay_prod);
	}
	qp->prod++;
	atomic_store_explicit(&qp->rent->prod, qp->prod, memory_order_release);
	if (d->flags & SV_F_SOLICITED)
		qp->bell_solicited = true;
	if (d->op == SV_D_READ || d->op == SV_D_ATOMIC || d->op == SV_D_ERR || d->op == SV_D_NAK ||
	    (d->op == SV_D_RESP && qp->r_split) || d->op == SV_D_WRITE)
		qp->bell_kick = true;
}

void sv_doorbell(struct sv_qp *qp)
{
	if (qp->bell == qp->prod)
		return;
	qp->bell = qp->prod;
	sv_bits_set(&qp->rcq_ent->active, qp->rcq_slot);
	sv_cq_fire(qp->peer, qp->rseg, qp->rcq_ent, qp->bell_solicited);
	if (qp->bell_kick || sv_unlikely(qp->r_rtr))
		sv_kick(qp->rseg, sv_load(&qp->peer->kick_fd), (uint32_t)(qp->rent - qp->rseg->qp));
	qp->bell_solicited = qp->bell_kick = false;
}

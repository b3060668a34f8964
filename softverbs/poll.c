/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Receiving: receive queues, and what the owner makes of the descriptors in its ring. Only here does a descriptor
 * become a completion. Each field is read once, from a copy of the descriptor, and checked.
 */
#include "soft.h"

/* ------------------------------------------------------------------ receive queues */

int sv_rq_init(struct sv_rq *rq, uint32_t size, uint32_t sge)
{
	memset(rq, 0, sizeof(*rq));
	rq->size = size;
	rq->max_sge = sge;
	rq->stride = (uint32_t)(sizeof(struct sv_rwqe) + sge * sizeof(struct ibv_sge));
	if (!size)
		return 0;
	rq->wqe = calloc(size, rq->stride);
	return rq->wqe ? 0 : ENOMEM;
}

void sv_rq_fini(struct sv_rq *rq)
{
	free(rq->wqe);
	rq->wqe = NULL;
}

static struct sv_rwqe *rq_at(struct sv_rq *rq, uint32_t n)
{
	return (struct sv_rwqe *)(rq->wqe + (size_t)(n % rq->size) * rq->stride);
}

int sv_rq_put(struct sv_rq *rq, const struct ibv_recv_wr *wr, uint32_t *len)
{
	struct sv_rwqe *e;
	uint64_t total = 0;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge)
		return EINVAL;
	if (rq->head - rq->tail >= rq->size)
		return ENOMEM;
	e = rq_at(rq, rq->head);
	e->wr_id = wr->wr_id;
	e->nsge = (uint32_t)wr->num_sge;
	for (uint32_t i = 0; i < e->nsge; i++) {
		e->sge[i] = wr->sg_list[i];
		total += wr->sg_list[i].length;
	}
	e->len = (uint32_t)sv_min(total, (uint64_t)UINT32_MAX);
	*len = e->len;
	rq->head++;
	return 0;
}

/* A receive whose keys are no good is accepted; the sender sees that it cannot be used. */
static bool recv_keys(const struct ibv_recv_wr *wr, uint32_t pd)
{
	for (int i = 0; i < wr->num_sge; i++) {
		const struct ibv_sge *s = &wr->sg_list[i];
		struct sv_mr_ent *e = &sv_proc.seg->mr[(s->lkey >> 8) % SV_MAX_MR];
		char *va;

		if (!s->length)
			continue;
		if (!sv_lkey_ok(s->lkey, s->addr, s->length, IBV_ACCESS_LOCAL_WRITE, pd, &va))
			return false;
		if (!sv_load(&e->in_recv))
			sv_store(&e->in_recv, 1);
	}
	return true;
}

/* The key is being deregistered: receives that name it can take nothing any more. Lock held. */
void sv_recv_spoil(struct sv_qp *qp, uint32_t lkey)
{
	for (uint32_t n = qp->rq.tail; n != qp->rq.head; n++) {
		struct sv_rwqe *e = rq_at(&qp->rq, n);

		for (uint32_t i = 0; i < e->nsge; i++)
			if (e->sge[i].lkey == lkey && e->sge[i].length)
				qp->lens[n & (qp->ent->rq_size - 1)] = SV_LEN_BAD;
	}
}

void sv_kick_waiting(struct sv_qp *qp)
{
	/* The sender says that it waits, then looks once more; we publish, then look whether it waits: what was
	 * published before this call was stored sequentially consistent. */
	if (sv_unlikely(atomic_load(&qp->ent->waiting)) && (qp->rent || sv_remote_attach(qp)) &&
	    atomic_exchange(&qp->ent->waiting, 0))
		sv_kick(qp->rseg, sv_load(&qp->peer->kick_fd), (uint32_t)(qp->rent - qp->rseg->qp));
}

/* In ERR receives are flushed as the CQ is polled. */
static void flush_later(struct sv_qp *qp)
{
	sv_bits_set(&qp->rcq->ent->active, qp->rslot % SV_BITS);
	sv_cq_fire(NULL, sv_proc.seg, qp->rcq->ent, true);
}

int sv_post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_qp *qp = (struct sv_qp *)ibqp;
	uint32_t len = 0, posted;
	int ret = 0;

	if (sv_unlikely(!sv_usable(ibqp->context))) {
		*bad = wr;
		return EINVAL;
	}
	sv_lock(&qp->lock);
	posted = qp->rq.head;
	for (; wr; wr = wr->next) {
		if (qp->srq || qp->state == IBV_QPS_RESET)
			ret = EINVAL;
		else
			ret = sv_rq_put(&qp->rq, wr, &len);
		if (ret) {
			*bad = wr;
			break;
		}
		if (!recv_keys(wr, ibqp->pd->handle))
			len = SV_LEN_BAD;
		qp->lens[(qp->rq.head - 1) & (qp->ent->rq_size - 1)] = len;
	}
	if (qp->rq.head != posted) {
		atomic_store(&qp->ent->rq_posted, qp->rq.head);
		if (sv_unlikely(qp->state == IBV_QPS_ERR))
			flush_later(qp);
		else
			sv_kick_waiting(qp);
	}
	sv_unlock(&qp->lock);
	return ret;
}

/* ------------------------------------------------------------------ taking receives */

static void recv_done(struct sv_qp *qp, struct ibv_wc *wc, bool solicited, struct sv_sink *sink)
{
	wc->qp_num = qp->ex.qp_base.qp_num;
	wc->src_qp = qp->attr.dest_qp_num;
	sv_cq_push(qp->rcq, wc, qp, 0, false, solicited, sink);
}

static void nak(struct sv_qp *qp, enum ibv_wc_status status)
{
	struct sv_desc d = {.op = SV_D_NAK, .status = (uint8_t)status};

	if (!sv_remote_begin(qp))
		return;
	if (sv_room(qp, 0))
		sv_put_desc(qp, &d);
	sv_remote_end(qp);
	sv_doorbell(qp);
}

static struct sv_rwqe *srq_take(struct sv_qp *qp)
{
	struct sv_srq *srq = qp->srq;
	struct sv_rwqe *e = NULL;

	sv_lock(&srq->lock);
	if (srq->rq.head != srq->rq.tail) {
		e = rq_at(&srq->rq, srq->rq.tail++);
		memcpy(qp->rx_wqe, e, srq->rq.stride);
		e = qp->rx_wqe;
		if (srq->limit && srq->rq.head - srq->rq.tail < srq->limit) {
			srq->limit = 0;
			sv_async_raise(qp->ctx, IBV_EVENT_SRQ_LIMIT_REACHED, &srq->srq);
		}
	}
	sv_unlock(&srq->lock);
	return e;
}

/* The receive that the message at hand uses. NULL cannot be with a sender that counts its credits. */
static struct sv_rwqe *rx_wqe(struct sv_qp *qp)
{
	if (qp->srq)
		return qp->rx_open ? qp->rx_wqe : srq_take(qp);
	if (qp->rq.tail == qp->rq.head)
		return NULL;
	return rq_at(&qp->rq, qp->rq.tail);
}

static void rx_end(struct sv_qp *qp)
{
	if (!qp->srq)
		qp->rq.tail++;
	qp->rx_open = false;
	qp->rx_done = 0;
	qp->rx_taken++;
}

static void rx_fail(struct sv_qp *qp, struct sv_rwqe *e, enum ibv_wc_status status, enum ibv_wc_status told,
		    struct sv_sink *sink)
{
	struct ibv_wc wc;

	memset(&wc, 0, sizeof(wc));
	wc.wr_id = e->wr_id;
	wc.status = status;
	wc.opcode = IBV_WC_RECV;
	wc.vendor_err = status;
	rx_end(qp);
	recv_done(qp, &wc, true, sink);
	if (told)
		nak(qp, told);
	sv_qp_set_err(qp);
}

/* Into the receive's list, at off. */
static bool rx_place(struct sv_qp *qp, struct sv_rwqe *e, uint64_t off, const char *from, uint32_t len)
{
	uint32_t pd = qp->srq ? qp->srq->srq.pd->handle : qp->ex.qp_base.pd->handle;

	for (uint32_t i = 0; i < e->nsge && len; i++) {
		uint32_t part;
		char *va;

		if (off >= e->sge[i].length) {
			off -= e->sge[i].length;
			continue;
		}
		part = (uint32_t)sv_min((uint64_t)len, e->sge[i].length - off);
		if (!sv_lkey_ok(e->sge[i].lkey, e->sge[i].addr, e->sge[i].length, IBV_ACCESS_LOCAL_WRITE, pd, &va))
			return false;
		sv_dma(va + off, from, part);
		from += part;
		len -= part;
		off = 0;
	}
	return true;
}

static const char *payload(struct sv_qp *qp, const struct sv_desc *d)
{
	uint32_t size = qp->ent->pay_size, off = d->pos & (size - 1);

	return d->len <= size - off ? qp->pay + off : NULL;
}

static void wc_imm(struct ibv_wc *wc, const struct sv_desc *d)
{
	if (d->flags & SV_F_IMM) {
		wc->wc_flags |= IBV_WC_WITH_IMM;
		wc->imm_data = d->imm;
	}
	if (d->flags & SV_F_INV) {
		wc->wc_flags |= IBV_WC_WITH_INV;
		wc->invalidated_rkey = d->imm;
	}
}

static void got_send(struct sv_qp *qp, const struct sv_desc *d, struct sv_sink *sink)
{
	struct sv_rwqe *e = rx_wqe(qp);
	const char *from = payload(qp, d);
	struct ibv_wc wc;

	if (!e || !from) {
		sv_qp_set_err(qp);
		return;
	}
	qp->rx_open = true;
	if (d->flags & SV_F_REFUSED) {
		rx_fail(qp, e, d->status == IBV_WC_LOC_PROT_ERR ? IBV_WC_LOC_PROT_ERR : IBV_WC_LOC_LEN_ERR, 0, sink);
		return;
	}
	if (qp->rx_done + d->len > e->len) {
		rx_fail(qp, e, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR, sink);
		return;
	}
	if (!rx_place(qp, e, qp->rx_done, from, d->len)) {
		rx_fail(qp, e, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR, sink);
		return;
	}
	qp->rx_done += d->len;
	if (!(d->flags & SV_F_LAST))
		return;
	memset(&wc, 0, sizeof(wc));
	wc.wr_id = e->wr_id;
	wc.opcode = IBV_WC_RECV;
	wc.byte_len = (uint32_t)qp->rx_done;
	wc_imm(&wc, d);
	rx_end(qp);
	recv_done(qp, &wc, d->flags & SV_F_SOLICITED, sink);
}

static void got_write_imm(struct sv_qp *qp, const struct sv_desc *d, struct sv_sink *sink)
{
	struct sv_rwqe *e = rx_wqe(qp);
	struct ibv_wc wc;

	if (!e || qp->rx_open) {
		sv_qp_set_err(qp);
		return;
	}
	memset(&wc, 0, sizeof(wc));
	wc.wr_id = e->wr_id;
	wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	wc.byte_len = d->len;
	wc_imm(&wc, d);
	rx_end(qp);
	recv_done(qp, &wc, d->flags & SV_F_SOLICITED, sink);
}

/* ------------------------------------------------------------------ requests on our memory */

static void refuse(struct sv_qp *qp, enum ibv_wc_status status)
{
	nak(qp, status);
	sv_async_raise(qp->ctx, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
		       &qp->ex.qp_base);
	sv_qp_set_err(qp);
}

static bool own_memory(struct sv_qp *qp, const struct sv_desc *d, uint64_t len, uint32_t access, char **va)
{
	struct sv_mr_ent mr;

	if (!(sv_load(&qp->ent->access) & access) ||
	    !sv_rkey_get(sv_proc.seg, d->rkey, d->addr, len, access, qp->ent->pd, &mr))
		return false;
	*va = (char *)(mr.va + (d->addr - mr.addr));
	return true;
}

static void got_write(struct sv_qp *qp, const struct sv_desc *d)
{
	const char *from = payload(qp, d);
	char *va;

	if (!from || !own_memory(qp, d, d->len, IBV_ACCESS_REMOTE_WRITE, &va)) {
		refuse(qp, IBV_WC_REM_ACCESS_ERR);
		return;
	}
	/* As devices do: words are looked at without waiting for a completion. */
	if (d->len == 8 && !((uintptr_t)va & 7)) {
		uint64_t word;

		memcpy(&word, from, sizeof(word));
		__atomic_store_n((uint64_t *)va, word, __ATOMIC_RELEASE);
		return;
	}
	sv_dma(va, from, d->len);
}

static void answer_add(struct sv_qp *qp, const struct sv_answer *from)
{
	struct sv_answer *a = malloc(sizeof(*a));

	if (!a) {
		refuse(qp, IBV_WC_REM_OP_ERR);
		return;
	}
	*a = *from;
	a->next = NULL;
	*qp->answers_tail = a;
	qp->answers_tail = &a->next;
	sv_answer_progress(qp);
}

static void got_read(struct sv_qp *qp, const struct sv_desc *d)
{
	struct sv_answer a = {.len = d->len};
	char *va;

	if (!own_memory(qp, d, d->len, IBV_ACCESS_REMOTE_READ, &va)) {
		refuse(qp, IBV_WC_REM_ACCESS_ERR);
		return;
	}
	a.va = (uint64_t)va;
	answer_add(qp, &a);
}

static void got_atomic(struct sv_qp *qp, const struct sv_desc *d)
{
	struct sv_answer a = {.len = 8, .atomic = true};
	const char *from = payload(qp, d);
	uint64_t words[3];
	char *va;

	if (!from || d->len != sizeof(words) || d->addr % 8 || !own_memory(qp, d, 8, IBV_ACCESS_REMOTE_ATOMIC, &va) ||
	    (uint64_t)va % 8) {
		refuse(qp, IBV_WC_REM_ACCESS_ERR);
		return;
	}
	memcpy(words, from, sizeof(words));
	if (words[0] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		a.old = atomic_fetch_add((_Atomic uint64_t *)va, words[1]);
	} else {
		a.old = words[1];
		atomic_compare_exchange_strong((_Atomic uint64_t *)va, &a.old, words[2]);
	}
	answer_add(qp, &a);
}

void sv_answer_progress(struct sv_qp *qp)
{
	struct sv_answer *a;

	if (!qp->answers)
		return;
	if (!sv_remote_begin(qp)) {
		/* Not in touch yet: the peer process's greeting brings the thread here again. */
		return;
	}
	while ((a = qp->answers)) {
		struct sv_desc d = {.op = SV_D_RESP};

		d.len = (uint32_t)sv_min(a->len - a->done, (uint64_t)qp->rpay_size / 4);
		if (!sv_room(qp, d.len)) {
			atomic_store(&qp->rent->waiting, 1);
			if (!sv_room(qp, d.len))
				break;
		}
		sv_dma(sv_payload_at(qp), a->atomic ? (char *)&a->old : (char *)(a->va + a->done), d.len);
		a->done += d.len;
		if (a->done == a->len)
			d.flags = SV_F_LAST;
		sv_put_desc(qp, &d);
		if (a->done == a->len) {
			qp->answers = a->next;
			if (!qp->answers)
				qp->answers_tail = &qp->answers;
			free(a);
		}
	}
	sv_remote_end(qp);
	sv_doorbell(qp);
}

/* ------------------------------------------------------------------ answers to our requests */

static void got_resp(struct sv_qp *qp, const struct sv_desc *d)
{
	struct sv_swr *w = qp->pend;
	const char *from = payload(qp, d);
	uint64_t at = 0, off;

	if (!w || !w->asked || w->op < IBV_WR_RDMA_READ || w->op > IBV_WR_ATOMIC_FETCH_AND_ADD || !from ||
	    w->done + d->len > w->len) {
		sv_qp_set_err(qp);
		return;
	}
	off = w->done;
	for (uint32_t i = 0; i < w->nsge && at < d->len; i++) {
		uint64_t part;
		char *va;

		if (off >= w->sg[i].length) {
			off -= w->sg[i].length;
			continue;
		}
		part = sv_min(d->len - at, w->sg[i].length - off);
		if (!sv_lkey_ok(w->sg[i].lkey, w->sg[i].addr, w->sg[i].length, IBV_ACCESS_LOCAL_WRITE,
				qp->ex.qp_base.pd->handle, &va)) {
			sv_qp_set_err(qp);
			return;
		}
		sv_dma(va + off, from + at, part);
		at += part;
		off = 0;
	}
	w->done += d->len;
	if (!(d->flags & SV_F_LAST))
		return;
	qp->pend = w->next;
	if (!qp->pend)
		qp->pend_tail = &qp->pend;
	qp->blocked = SV_X_DONE;
	sv_send_done(qp, w, IBV_WC_SUCCESS);
	free(w);
	sv_send_progress(qp); /* takes the QP off the stalled list, too */
}

static void got_nak(struct sv_qp *qp, const struct sv_desc *d)
{
	struct sv_swr *w = qp->pend;

	if (w && (w->asked || w->started)) {
		qp->pend = w->next;
		if (!qp->pend)
			qp->pend_tail = &qp->pend;
		sv_send_done(qp, w, d->status);
		free(w);
	} else {
		/* The request has completed long since: the connection is broken all the same. */
		sv_async_raise(qp->ctx, IBV_EVENT_QP_FATAL, &qp->ex.qp_base);
	}
	sv_qp_set_err(qp);
}

/* ------------------------------------------------------------------ draining */

static void got_desc(struct sv_qp *qp, const struct sv_desc *d, struct sv_sink *sink)
{
	switch (d->op) {
	case SV_D_SEND:
		got_send(qp, d, sink);
		break;
	case SV_D_WRITE_IMM:
		got_write_imm(qp, d, sink);
		break;
	case SV_D_WRITE:
		got_write(qp, d);
		break;
	case SV_D_READ:
		got_read(qp, d);
		break;
	case SV_D_ATOMIC:
		got_atomic(qp, d);
		break;
	case SV_D_RESP:
		got_resp(qp, d);
		break;
	case SV_D_NAK:
		got_nak(qp, d);
		break;
	case SV_D_ERR:
		sv_async_raise(qp->ctx,
			       d->status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR,
			       &qp->ex.qp_base);
		sv_qp_set_err(qp);
		break;
	default:
		sv_qp_set_err(qp);
		break;
	}
}

static void flush_receives(struct sv_qp *qp, struct sv_sink *sink)
{
	/* Of an SRQ only the receive that a broken-off message had begun to fill is this QP's. */
	while (qp->srq ? qp->rx_open : qp->rq.tail != qp->rq.head) {
		struct ibv_wc wc;

		memset(&wc, 0, sizeof(wc));
		wc.wr_id = qp->srq ? qp->rx_wqe->wr_id : rq_at(&qp->rq, qp->rq.tail)->wr_id;
		wc.status = IBV_WC_WR_FLUSH_ERR;
		wc.opcode = IBV_WC_RECV;
		wc.vendor_err = IBV_WC_WR_FLUSH_ERR;
		rx_end(qp);
		recv_done(qp, &wc, true, sink);
	}
}

static bool receiving(const struct sv_qp *qp)
{
	return qp->state == IBV_QPS_RTR || qp->state == IBV_QPS_RTS || qp->state == IBV_QPS_SQD ||
	       qp->state == IBV_QPS_SQE;
}

void sv_drain(struct sv_qp *qp, struct sv_sink *sink)
{
	uint32_t prod, mask = qp->ent->slots - 1;

	if (receiving(qp)) {
		prod = sv_load_acq(&qp->ent->prod);
		if (sv_unlikely(prod - qp->cons > qp->ent->slots)) {
			sv_qp_set_err(qp);
			prod = qp->cons;
		}
		if (sv_unlikely(qp->state == IBV_QPS_RTR && prod != qp->cons && !qp->est_told)) {
			qp->est_told = true;
			sv_async_raise(qp->ctx, IBV_EVENT_COMM_EST, &qp->ex.qp_base);
		}
		while (qp->cons != prod && receiving(qp)) {
			struct sv_desc d = qp->desc[qp->cons & mask];

			got_desc(qp, &d, sink);
			qp->cons++;
			if (d.len && d.op != SV_D_WRITE_IMM && d.op != SV_D_READ)
				sv_store_rel(&qp->ent->pay_cons,
					     d.pos + ((d.len + SV_PAYLOAD_STEP - 1) & ~(SV_PAYLOAD_STEP - 1)));
			sv_store_rel(&qp->ent->cons, qp->cons);
		}
		if (receiving(qp)) {
			atomic_store(&qp->ent->cons, qp->cons);
			sv_kick_waiting(qp);
		}
	}
	if (qp->state == IBV_QPS_ERR)
		flush_receives(qp, sink);
}

static void check_overrun(struct sv_qp *qp)
{
	if (qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_ERR &&
	    (sv_load(&qp->scq->overrun) || sv_load(&qp->rcq->overrun))) {
		sv_async_raise(qp->ctx, IBV_EVENT_QP_FATAL, &qp->ex.qp_base);
		sv_qp_set_err(qp);
	}
}

/* Credits that a peer process took before it died, for messages that never came. */
static void fix_credits(struct sv_qp *qp)
{
	struct sv_peer *p = qp->peer;
	int32_t lost;

	if (!qp->srq || qp->credits_fixed || !p || !sv_load(&p->dead))
		return;
	qp->credits_fixed = true;
	lost = (int32_t)(sv_load(&qp->ent->sent) - qp->rx_taken - (qp->rx_open ? 1 : 0));
	if (lost > 0 && lost <= 2)
		atomic_fetch_add(&qp->srq->ent->credits, lost);
}

void sv_qp_service(struct sv_qp *qp)
{
	sv_lock(&qp->rcq->outer);
	sv_lock(&qp->lock);
	check_overrun(qp);
	sv_drain(qp, NULL);
	fix_credits(qp);
	sv_answer_progress(qp);
	sv_send_progress(qp);
	sv_unlock(&qp->lock);
	sv_unlock(&qp->rcq->outer);
}

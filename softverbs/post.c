/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Posting: what a send work request does, when it waits, how it ends.
 */
#include "soft.h"

/* ------------------------------------------------------------------ gather and scatter */

void sv_sg_gather(struct ibv_sge *sg, uint32_t n, uint64_t off, char *to, uint64_t len)
{
	for (uint32_t i = 0; i < n && len; i++) {
		uint64_t part;

		if (off >= sg[i].length) {
			off -= sg[i].length;
			continue;
		}
		part = sv_min(len, sg[i].length - off);
		sv_dma(to, (char *)sg[i].addr + off, part);
		to += part;
		len -= part;
		off = 0;
	}
}

void sv_sg_scatter(struct ibv_sge *sg, uint32_t n, uint64_t off, const char *from, uint64_t len)
{
	for (uint32_t i = 0; i < n && len; i++) {
		uint64_t part;

		if (off >= sg[i].length) {
			off -= sg[i].length;
			continue;
		}
		part = sv_min(len, sg[i].length - off);
		sv_dma((char *)sg[i].addr + off, from, part);
		from += part;
		len -= part;
		off = 0;
	}
}

/* Checks local keys and turns the list into our own addresses. */
static bool sg_resolve(struct sv_qp *qp, const struct sv_swr *w, struct ibv_sge *out)
{
	bool into =
	    w->op == IBV_WR_RDMA_READ || w->op == IBV_WR_ATOMIC_CMP_AND_SWP || w->op == IBV_WR_ATOMIC_FETCH_AND_ADD;

	for (uint32_t i = 0; i < w->nsge; i++) {
		char *va;

		out[i] = w->sg[i];
		if (w->is_inline || !w->sg[i].length)
			continue;
		if (!sv_lkey_ok(w->sg[i].lkey, w->sg[i].addr, w->sg[i].length, into ? IBV_ACCESS_LOCAL_WRITE : 0,
				qp->ex.qp_base.pd->handle, &va))
			return false;
		out[i].addr = (uint64_t)va;
	}
	return true;
}

/* ------------------------------------------------------------------ carrying out */

static enum sv_exec fail(struct sv_qp *qp, enum ibv_wc_status status)
{
	qp->fail_status = (uint8_t)status;
	return SV_X_FAIL;
}

/* The peer must know that it was asked for something invalid: its QP goes to ERR too. */
static enum sv_exec fail_remote(struct sv_qp *qp, enum ibv_wc_status status)
{
	struct sv_desc d = {.op = SV_D_ERR, .status = (uint8_t)status};

	if (sv_room(qp, 0))
		sv_put_desc(qp, &d);
	return fail(qp, status);
}

static bool credit(struct sv_qp *qp)
{
	if (!qp->rrq_size) {
		uint32_t srq = qp->rent->srq;
		struct sv_srq_ent *s = &qp->rseg->srq[srq % SV_MAX_SRQ];
		int64_t have = atomic_load(&s->credits);

		while (have > 0)
			if (atomic_compare_exchange_weak(&s->credits, &have, have - 1))
				return true;
		return false;
	}
	return (int32_t)(sv_load_acq(&qp->rent->rq_posted) - qp->sent) > 0;
}

static void took_receive(struct sv_qp *qp, struct sv_swr *w)
{
	w->started = true;
	qp->sent++;
	sv_store(&qp->rent->sent, qp->sent);
}

static uint8_t wr_flags(const struct sv_swr *w)
{
	uint8_t f = 0;

	if (w->op == IBV_WR_SEND_WITH_IMM || w->op == IBV_WR_RDMA_WRITE_WITH_IMM)
		f |= SV_F_IMM;
	if (w->op == IBV_WR_SEND_WITH_INV)
		f |= SV_F_INV;
	if (w->flags & IBV_SEND_SOLICITED)
		f |= SV_F_SOLICITED;
	return f;
}

/* The receive cannot take the message: both sides complete with an error. */
static enum sv_exec refused(struct sv_qp *qp, struct sv_swr *w, enum ibv_wc_status theirs, enum ibv_wc_status ours)
{
	struct sv_desc d = {.op = SV_D_SEND, .flags = SV_F_REFUSED | SV_F_LAST, .status = (uint8_t)theirs};

	took_receive(qp, w);
	sv_put_desc(qp, &d);
	return fail(qp, ours);
}

static enum sv_exec exec_send(struct sv_qp *qp, struct sv_swr *w, struct ibv_sge *sg)
{
	uint32_t most = qp->rpay_size / 4, room;

	if (!w->started) {
		if (!sv_room(qp, (uint32_t)sv_min(w->len, (uint64_t)most)))
			return SV_X_ROOM;
		if (!credit(qp))
			return SV_X_RNR;
		room = qp->rrq_size ? qp->rlens[qp->sent & (qp->rrq_size - 1)] : SV_LEN_BAD - 1;
		if (room == SV_LEN_BAD && w->len)
			return refused(qp, w, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
		if (w->len > room)
			return refused(qp, w, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
		took_receive(qp, w);
	}
	do {
		uint32_t len = (uint32_t)sv_min(w->len - w->done, (uint64_t)most);
		struct sv_desc d = {.op = SV_D_SEND, .len = len, .imm = w->imm};

		if (!sv_room(qp, len))
			return SV_X_ROOM;
		if (len)
			sv_sg_gather(sg, w->nsge, w->done, sv_payload_at(qp), len);
		w->done += len;
		if (w->done == w->len)
			d.flags = SV_F_LAST | wr_flags(w);
		sv_put_desc(qp, &d);
	} while (w->done < w->len);
	return SV_X_DONE;
}

static bool ring_writes_pending(struct sv_qp *qp)
{
	if (qp->has_ring_write && (int32_t)(sv_load_acq(&qp->rent->cons) - qp->last_ring_write) >= 0)
		qp->has_ring_write = false;
	return qp->has_ring_write;
}

static enum sv_exec write_data(struct sv_qp *qp, struct sv_swr *w, struct ibv_sge *sg, const struct sv_mr_ent *mr)
{
	while (w->done < w->len) {
		uint64_t at = w->raddr + w->done, left = w->len - w->done;
		struct sv_desc d = {.op = SV_D_WRITE, .addr = at, .rkey = w->rkey};

		if (at >= mr->dir_start && at < mr->dir_end && !ring_writes_pending(qp)) {
			uint64_t part = sv_min(left, mr->dir_end - at);

			sv_sg_gather(sg, w->nsge, w->done, qp->peer->data + mr->dir_off + (at - mr->dir_start), part);
			w->done += part;
			continue;
		}
		d.len = (uint32_t)sv_min(left, (uint64_t)qp->rpay_size / 4);
		if (at < mr->dir_start && !qp->has_ring_write)
			d.len = (uint32_t)sv_min((uint64_t)d.len, mr->dir_start - at);
		if (!sv_room(qp, d.len))
			return SV_X_ROOM;
		sv_sg_gather(sg, w->nsge, w->done, sv_payload_at(qp), d.len);
		sv_put_desc(qp, &d);
		w->done += d.len;
		qp->has_ring_write = true;
		qp->last_ring_write = qp->prod;
		w->asked = true;
		w->until = qp->prod;
	}
	return SV_X_DONE;
}

static enum sv_exec exec_write(struct sv_qp *qp, struct sv_swr *w, struct ibv_sge *sg)
{
	bool imm = w->op == IBV_WR_RDMA_WRITE_WITH_IMM;
	struct sv_desc d = {.op = SV_D_WRITE_IMM, .len = (uint32_t)w->len, .imm = w->imm};
	struct sv_mr_ent mr;
	enum sv_exec x;

	if (imm && !w->started && !sv_room(qp, 0))
		return SV_X_ROOM;
	if (w->len) {
		if (!(sv_load(&qp->rent->access) & IBV_ACCESS_REMOTE_WRITE) ||
		    !sv_rkey_get(qp->rseg, w->rkey, w->raddr, w->len, IBV_ACCESS_REMOTE_WRITE, qp->rent->pd, &mr))
			return fail_remote(qp, IBV_WC_REM_ACCESS_ERR);
	}
	if (imm && !w->started) {
		if (!credit(qp))
			return SV_X_RNR;
		took_receive(qp, w);
	}
	if (w->len) {
		x = write_data(qp, w, sg, &mr);
		if (x != SV_X_DONE)
			return x;
	}
	if (imm && !w->told) {
		if (!sv_room(qp, 0))
			return SV_X_ROOM;
		d.flags = wr_flags(w);
		sv_put_desc(qp, &d);
		w->told = true;
	}
	/* A write has completed when it is in the peer's memory: pieces in the ring are not. */
	if (w->asked && (int32_t)(sv_load_acq(&qp->rent->cons) - w->until) < 0)
		return SV_X_ROOM;
	return SV_X_DONE;
}

static enum sv_exec ask(struct sv_qp *qp, struct sv_swr *w, struct sv_desc *d, const void *payload)
{
	uint32_t n = payload ? d->len : 0;

	if (w->asked)
		return SV_X_REPLY;
	if (!sv_room(qp, n))
		return SV_X_ROOM;
	if (n)
		memcpy(sv_payload_at(qp), payload, n);
	sv_put_desc(qp, d);
	w->asked = true;
	w->done = 0;
	return SV_X_REPLY;
}

static enum sv_exec exec_read(struct sv_qp *qp, struct sv_swr *w, struct ibv_sge *sg)
{
	struct sv_desc d = {.op = SV_D_READ, .addr = w->raddr, .rkey = w->rkey, .len = (uint32_t)w->len};
	struct sv_mr_ent mr;

	if (!w->len)
		return SV_X_DONE;
	if (!(sv_load(&qp->rent->access) & IBV_ACCESS_REMOTE_READ) ||
	    !sv_rkey_get(qp->rseg, w->rkey, w->raddr, w->len, IBV_ACCESS_REMOTE_READ, qp->rent->pd, &mr))
		return fail_remote(qp, IBV_WC_REM_ACCESS_ERR);
	if (!w->asked && w->raddr >= mr.dir_start && w->raddr + w->len <= mr.dir_end && !ring_writes_pending(qp)) {
		sv_sg_scatter(sg, w->nsge, 0, qp->peer->data + mr.dir_off + (w->raddr - mr.dir_start), w->len);
		return SV_X_DONE;
	}
	return ask(qp, w, &d, NULL);
}

static enum sv_exec exec_atomic(struct sv_qp *qp, struct sv_swr *w, struct ibv_sge *sg)
{
	uint64_t words[3] = {w->op, w->cmp, w->swap}, old;
	struct sv_desc d = {.op = SV_D_ATOMIC, .addr = w->raddr, .rkey = w->rkey, .len = sizeof(words)};
	struct sv_mr_ent mr;

	if (w->raddr % 8)
		return fail_remote(qp, IBV_WC_REM_INV_REQ_ERR);
	if (!(sv_load(&qp->rent->access) & IBV_ACCESS_REMOTE_ATOMIC) ||
	    !sv_rkey_get(qp->rseg, w->rkey, w->raddr, 8, IBV_ACCESS_REMOTE_ATOMIC, qp->rent->pd, &mr))
		return fail_remote(qp, IBV_WC_REM_ACCESS_ERR);
	if (!w->asked && w->raddr >= mr.dir_start && w->raddr + 8 <= mr.dir_end && !ring_writes_pending(qp)) {
		_Atomic uint64_t *p = (_Atomic uint64_t *)(qp->peer->data + mr.dir_off + (w->raddr - mr.dir_start));

		if (w->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			old = atomic_fetch_add(p, w->cmp);
		} else {
			old = w->cmp;
			atomic_compare_exchange_strong(p, &old, w->swap);
		}
		sv_sg_scatter(sg, w->nsge, 0, (char *)&old, sizeof(old));
		return SV_X_DONE;
	}
	return ask(qp, w, &d, words);
}

static enum sv_exec exec_wr(struct sv_qp *qp, struct sv_swr *w)
{
	struct ibv_sge sg[SV_MAX_SGE];
	enum sv_exec x;

	if (sv_unlikely(w->late))
		return sv_now() < w->late ? SV_X_LATE : SV_X_DONE;
	if (!sg_resolve(qp, w, sg))
		return fail(qp, IBV_WC_LOC_PROT_ERR);
	if (!sv_remote_begin(qp))
		return SV_X_AWAY;
	switch (w->op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		x = exec_write(qp, w, sg);
		break;
	case IBV_WR_RDMA_READ:
		x = exec_read(qp, w, sg);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		x = exec_atomic(qp, w, sg);
		break;
	default:
		x = exec_send(qp, w, sg);
		break;
	}
	sv_remote_end(qp);
	if (sv_likely(x == SV_X_DONE))
		w->late = sv_fault_late();
	return sv_unlikely(w->late) ? SV_X_LATE : x;
}

/* ------------------------------------------------------------------ completion */

static enum ibv_wc_opcode wc_opcode(uint32_t op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

void sv_send_done(struct sv_qp *qp, struct sv_swr *w, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	if (status == IBV_WC_SUCCESS && !qp->sig_all && !(w->flags & IBV_SEND_SIGNALED))
		return;
	memset(&wc, 0, sizeof(wc));
	wc.wr_id = w->wr_id;
	wc.status = status;
	wc.opcode = wc_opcode(w->op);
	wc.qp_num = qp->ex.qp_base.qp_num;
	if (status == IBV_WC_SUCCESS)
		wc.byte_len = (uint32_t)w->len;
	else
		wc.vendor_err = status;
	sv_cq_push(qp->scq, &wc, qp, w->seq, true, false, NULL);
}

static struct sv_swr *pend_pop(struct sv_qp *qp)
{
	struct sv_swr *w = qp->pend;

	qp->pend = w->next;
	if (!qp->pend)
		qp->pend_tail = &qp->pend;
	return w;
}

void sv_send_flush(struct sv_qp *qp)
{
	while (qp->pend) {
		struct sv_swr *w = pend_pop(qp);

		sv_send_done(qp, w, IBV_WC_WR_FLUSH_ERR);
		free(w);
	}
	qp->recheck = UINT64_MAX;
	sv_cq_stall(qp);
}

/* ------------------------------------------------------------------ waiting */

static uint64_t rnr_time(uint32_t code)
{
	static const uint32_t us10[32] = {65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,   32,
					  48,    64,   96,   128,  192,  256,   384,   512,   768,   1024, 1536,
					  2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

	return us10[code & 31] * 10000ull;
}

/* How long a QP tries to be heard: retry_cnt + 1 times the timeout, as rxe does (a device may take up to four times
 * as long). */
static uint64_t wr_timeout(struct sv_qp *qp)
{
	if (!qp->attr.timeout)
		return UINT64_MAX;
	return (4096ull << (qp->attr.timeout & 31)) * (qp->attr.retry_cnt + 1u);
}

/* The head of the queue cannot go on. Returns false if it must fail now. */
static bool head_waits(struct sv_qp *qp, enum sv_exec why)
{
	uint64_t now = sv_now();
	bool fresh = qp->blocked != why;

	qp->blocked = why;
	switch (why) {
	case SV_X_RNR:
		if (fresh)
			qp->rnr_left = qp->attr.rnr_retry;
		else if (now < qp->recheck)
			return true;
		if (!fresh && qp->attr.rnr_retry != 7 && qp->rnr_left)
			qp->rnr_left--;
		if (!qp->rnr_left) {
			qp->fail_status = IBV_WC_RNR_RETRY_EXC_ERR;
			return false;
		}
		qp->recheck = now + sv_max(rnr_time(sv_load(&qp->rent->rnr_timer)), 100000ull);
		return true;
	case SV_X_AWAY:
		if (sv_load(&sv_proc.link_down) == SV_LINK_DOWN) {
			qp->fail_status = IBV_WC_LOC_QP_OP_ERR;
			return false;
		}
		if (fresh) {
			uint64_t t = wr_timeout(qp);

			qp->deadline = t == UINT64_MAX ? UINT64_MAX : now + t;
			qp->recheck = now + 1000000;
		} else if (now >= qp->recheck) {
			qp->recheck = sv_min(now + 20000000, sv_max(qp->deadline, now + 1));
		}
		qp->fail_status = IBV_WC_RETRY_EXC_ERR;
		return now < qp->deadline;
	case SV_X_LATE:
		qp->recheck = qp->pend->late;
		return true;
	default:
		/* ROOM and REPLY end by a kick; look again now and then should one be lost with its sender. */
		qp->recheck = now + 50000000;
		return true;
	}
}

static void head_fails(struct sv_qp *qp)
{
	struct sv_swr *w = pend_pop(qp);

	sv_send_done(qp, w, qp->fail_status);
	free(w);
	sv_qp_set_err(qp);
}

void sv_send_progress(struct sv_qp *qp)
{
	bool flagged = false, full = false;

	while (qp->pend && (qp->state == IBV_QPS_RTS)) {
		struct sv_swr *w = qp->pend;
		enum sv_exec x = exec_wr(qp, w);

		if (x == SV_X_DONE) {
			qp->blocked = SV_X_DONE;
			flagged = false;
			pend_pop(qp);
			sv_send_done(qp, w, IBV_WC_SUCCESS);
			free(w);
		} else if (x == SV_X_FAIL) {
			head_fails(qp);
		} else if ((x == SV_X_ROOM || x == SV_X_RNR) && !flagged) {
			/* Say that we wait, then look once more: the receiver does it the other way round. */
			flagged = true;
			atomic_store(&qp->rent->waiting, 1);
			if (x == SV_X_RNR && !qp->rrq_size)
				atomic_store(&qp->rseg->srq[qp->rent->srq % SV_MAX_SRQ].waiting, 1);
		} else {
			if (!head_waits(qp, x))
				head_fails(qp);
			else
				full = x == SV_X_ROOM;
			break;
		}
	}
	sv_cq_stall(qp);
	if (!qp->rent)
		return;
	sv_doorbell(qp);
	/* The owner's program may not be polling: its thread makes room. */
	if (full)
		sv_kick(qp->rseg, sv_load(&qp->peer->kick_fd), (uint32_t)(qp->rent - qp->rseg->qp));
}

/* ------------------------------------------------------------------ posting sends */

static struct sv_swr *swr_keep(struct sv_qp *qp, const struct sv_swr *w)
{
	uint64_t inl = w->is_inline ? w->len : 0;
	struct sv_swr *k = malloc(sizeof(*k) + w->nsge * sizeof(struct ibv_sge) + inl);

	if (!k)
		return NULL;
	*k = *w;
	k->next = NULL;
	k->sg = (struct ibv_sge *)(k + 1);
	memcpy(k->sg, w->sg, w->nsge * sizeof(struct ibv_sge));
	if (w->is_inline && w->nsge) {
		char *data = (char *)(k->sg + w->nsge);

		sv_sg_gather(w->sg, w->nsge, 0, data, inl);
		k->nsge = 1;
		k->sg[0].addr = (uint64_t)data;
		k->sg[0].length = (uint32_t)inl;
	}
	*qp->pend_tail = k;
	qp->pend_tail = &k->next;
	return k;
}

static int swr_fill(struct sv_qp *qp, const struct ibv_send_wr *wr, struct sv_swr *w)
{
	bool atomic = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;

	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
		return EINVAL;
	if (wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD && wr->opcode != IBV_WR_SEND_WITH_INV)
		return EINVAL;
	memset(w, 0, sizeof(*w));
	w->wr_id = wr->wr_id;
	w->op = wr->opcode;
	w->flags = wr->send_flags;
	w->imm = wr->imm_data;
	w->sg = wr->sg_list;
	w->nsge = (uint32_t)wr->num_sge;
	for (uint32_t i = 0; i < w->nsge; i++)
		w->len += wr->sg_list[i].length;
	if (w->len > SV_MAX_MSG || (atomic && w->len != 8))
		return EINVAL;
	if (atomic) {
		w->raddr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->cmp = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
	} else {
		w->raddr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	w->is_inline = (wr->send_flags & IBV_SEND_INLINE) != 0;
	if (w->is_inline && (w->len > qp->cap.max_inline_data || atomic || wr->opcode == IBV_WR_RDMA_READ))
		return EINVAL;
	return 0;
}

/* lock held; errno value */
static int post_one(struct sv_qp *qp, const struct ibv_send_wr *wr)
{
	struct sv_swr w;
	bool doomed = sv_fault_hit(SV_FAULT_POST);
	int ret;

	if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT || qp->state == IBV_QPS_RTR)
		return EINVAL;
	ret = swr_fill(qp, wr, &w);
	if (ret)
		return ret;
	if (qp->sq_seq - sv_load_acq(&qp->sq_freed) >= qp->cap.max_send_wr)
		return ENOMEM;
	w.seq = qp->sq_seq;
	if (sv_unlikely(qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_SQE)) {
		qp->sq_seq++;
		sv_send_done(qp, &w, IBV_WC_WR_FLUSH_ERR);
		return 0;
	}
	if (sv_likely(!qp->pend && qp->state == IBV_QPS_RTS)) {
		enum sv_exec x = sv_unlikely(doomed) ? fail(qp, IBV_WC_RETRY_EXC_ERR) : exec_wr(qp, &w);

		if (sv_likely(x == SV_X_DONE)) {
			qp->sq_seq++;
			sv_send_done(qp, &w, IBV_WC_SUCCESS);
			return 0;
		}
		if (x == SV_X_FAIL) {
			qp->sq_seq++;
			sv_send_done(qp, &w, qp->fail_status);
			sv_qp_set_err(qp);
			return 0;
		}
	}
	if (!swr_keep(qp, &w)) {
		if (!w.late)
			return ENOMEM;
		sv_send_done(qp, &w, IBV_WC_SUCCESS);
	}
	qp->sq_seq++;
	return 0;
}

int sv_post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct sv_qp *qp = (struct sv_qp *)ibqp;
	bool kick = false;
	int ret = 0;

	if (sv_unlikely(!sv_usable(ibqp->context))) {
		*bad = wr;
		return EINVAL;
	}
	sv_lock(&qp->lock);
	for (; wr; wr = wr->next) {
		ret = post_one(qp, wr);
		if (ret) {
			*bad = wr;
			break;
		}
	}
	if (sv_unlikely(qp->pend != NULL)) {
		sv_send_progress(qp);
		kick = qp->pend && qp->recheck != UINT64_MAX && !qp->on_blocked;
	} else if (qp->rent) {
		sv_doorbell(qp);
	}
	sv_unlock(&qp->lock);
	if (sv_unlikely(kick))
		sv_kick_self(qp->idx);
	sv_fault_hit(SV_FAULT_CANCEL);
	return ret;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pairs: numbers, rings, states.
 */
#include "soft.h"

#include <fcntl.h>

/* ------------------------------------------------------------------ rings in the segment */

#define RING_KINDS 64

/* Rings of one size that keep their pages when they are given up: giving pages back and faulting them in again is most
 * of what a short connection would cost. */
#define RINGS_KEPT 32

struct ring_free {
	struct ring_free *next;
	uint64_t off;
	bool kept; /* with its pages */
};

static struct {
	uint64_t size;
	struct ring_free *list; /* those with pages first */
	int kept;
} rings[RING_KINDS];

static uint64_t ring_top;

void sv_ring_reset(void)
{
	memset(rings, 0, sizeof(rings));
	ring_top = 0;
}

/* proc lock held. 0: none left. */
static uint64_t ring_alloc(uint64_t size)
{
	uint64_t off;

	for (int i = 0; i < RING_KINDS && rings[i].size; i++) {
		struct ring_free *r = rings[i].list;

		if (rings[i].size != size || !r)
			continue;
		rings[i].list = r->next;
		rings[i].kept -= r->kept;
		off = r->off;
		free(r);
		return off;
	}
	if (!ring_top)
		ring_top = (sizeof(struct sv_seg) + 4095) & ~4095ull;
	if (ring_top + size > SV_SEG_SIZE)
		return 0;
	off = ring_top;
	ring_top += size;
	return off;
}

/* proc lock held. Without a list for its size the addresses are lost. */
static void ring_release(uint64_t off, uint64_t size)
{
	struct ring_free *r = malloc(sizeof(*r)), **pp;
	int i;

	for (i = 0; i < RING_KINDS && rings[i].size && rings[i].size != size; i++)
		;
	if (r && i < RING_KINDS)
		r->kept = rings[i].kept < RINGS_KEPT;
	if (!r || i == RING_KINDS || !r->kept)
		fallocate(sv_proc.seg_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)size);
	if (!r || i == RING_KINDS) {
		free(r);
		return;
	}
	rings[i].size = size;
	rings[i].kept += r->kept;
	pp = &rings[i].list;
	while (!r->kept && *pp && (*pp)->kept)
		pp = &(*pp)->next;
	r->off = off;
	r->next = *pp;
	*pp = r;
}

static uint32_t round_pow2(uint32_t n)
{
	return n <= 1 ? 1 : 1u << (32 - __builtin_clz(n - 1));
}

static uint64_t ring_size(const struct sv_qp_ent *e)
{
	uint64_t n = (uint64_t)e->slots * sizeof(struct sv_desc) + e->rq_size * 4ull + e->pay_size;

	return (n + 4095) & ~4095ull;
}

/* ------------------------------------------------------------------ numbers */

/* proc lock held. Another block of QP numbers; its name is the host-wide claim on it. */
static int block_claim(void)
{
	static struct sv_source sources[SV_MAX_BLOCKS];
	uint32_t n = sv_load(&sv_proc.seg->nblocks), start = (uint32_t)sv_proc.seg->pid * 7919u;
	char name[64];

	if (n == SV_MAX_BLOCKS)
		return ENOMEM;
	for (uint32_t i = 0; i < SV_BLOCK_COUNT - 1; i++) {
		/* Block 0 holds the special numbers 0 and 1. */
		uint32_t block = 1 + (start + i) % (SV_BLOCK_COUNT - 1);
		int ret = sv_name_listen(name, sv_name_block(name, sizeof(name), block), &sources[n], 4096);

		if (ret == EADDRINUSE)
			continue;
		if (ret)
			return ret;
		sv_proc.seg->blocks[n] = block;
		sv_store_rel(&sv_proc.seg->nblocks, n + 1);
		return 0;
	}
	return ENOMEM;
}

static int qp_number(struct sv_qp *qp)
{
	int ret = 0;

	pthread_mutex_lock(&sv_proc.lock);
	for (;;) {
		uint32_t total = sv_load(&sv_proc.seg->nblocks) * SV_BLOCK_QPS;

		/* Round robin: a number comes back as late as possible, as in a device's TIMEWAIT. */
		for (uint32_t n = 0; n < total; n++) {
			uint32_t i = (sv_proc.qp_hint + n) % total;

			if (sv_proc.qp_used[i])
				continue;
			sv_proc.qp_used[i] = 1;
			sv_proc.qp_hint = i + 1;
			qp->idx = i;
			goto out;
		}
		ret = block_claim();
		if (ret)
			goto out;
	}
out:
	pthread_mutex_unlock(&sv_proc.lock);
	return ret;
}

struct sv_qp *sv_qp_get(uint32_t idx)
{
	struct sv_qp *qp = NULL;

	if (idx >= SV_MAX_QP)
		return NULL;
	pthread_mutex_lock(&sv_proc.lock);
	qp = sv_proc.qps[idx];
	if (qp)
		atomic_fetch_add(&qp->refs, 1);
	pthread_mutex_unlock(&sv_proc.lock);
	return qp;
}

void sv_qp_put(struct sv_qp *qp)
{
	pthread_mutex_t *m = &qp->ex.qp_base.mutex;

	pthread_mutex_lock(m);
	atomic_fetch_sub(&qp->refs, 1);
	pthread_cond_broadcast(&qp->ex.qp_base.cond);
	pthread_mutex_unlock(m);
}

void sv_qp_peer_found(struct sv_peer *p)
{
	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < sv_load(&sv_proc.seg->nblocks) * SV_BLOCK_QPS; i++)
		if (sv_proc.qps[i] && sv_proc.qps[i]->peer == p)
			sv_kick_self(i);
	pthread_mutex_unlock(&sv_proc.lock);
}

/* The thread looks at every QP that was attached to it. */
void sv_qp_peer_lost(struct sv_peer *p)
{
	bool any = false;

	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < sv_load(&sv_proc.seg->nblocks) * SV_BLOCK_QPS; i++) {
		struct sv_qp *qp = sv_proc.qps[i];

		if (!qp || qp->peer != p)
			continue;
		any = true;
		sv_kick_self(i);
		/* It may have taken an arming and died before it raised the channel. */
		atomic_exchange(&qp->rcq->ent->armed, 1);
		sv_cq_fire(NULL, sv_proc.seg, qp->rcq->ent, true);
	}
	pthread_mutex_unlock(&sv_proc.lock);
	if (any)
		sv_chan_raise_pending();
	sv_thread_wake();
}

/* ------------------------------------------------------------------ creation */

long sv_qp_count(void)
{
	long n = 0;

	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < SV_MAX_QP; i++)
		n += sv_proc.qps[i] != NULL;
	pthread_mutex_unlock(&sv_proc.lock);
	return n;
}

static int check_init(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	if (!sv_usable(c) || !a->send_cq || !a->recv_cq || a->send_cq->context != c || a->recv_cq->context != c)
		return EINVAL;
	if (a->qp_type != IBV_QPT_RC)
		return EOPNOTSUPP;
	if (a->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return EOPNOTSUPP;
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd)
		return EINVAL;
	if (a->cap.max_send_wr > SV_MAX_WR || a->cap.max_recv_wr > SV_MAX_WR || a->cap.max_send_sge > SV_MAX_SGE ||
	    a->cap.max_recv_sge > SV_MAX_SGE || a->cap.max_inline_data > SV_MAX_INLINE)
		return EINVAL;
	if (sv_fault_hit(SV_FAULT_CREATE_QP))
		return ENOMEM;
	return 0;
}

static int qp_ring(struct sv_qp *qp)
{
	struct sv_qp_ent *e = &sv_proc.seg->qp[qp->idx];
	uint32_t depth = qp->srq ? 1024 : qp->cap.max_recv_wr;

	qp->ent = e;
	e->rq_size = qp->srq ? 0 : round_pow2(qp->cap.max_recv_wr);
	e->slots = round_pow2(sv_min(depth + 64, 16384u));
	e->pay_size = SV_PAYLOAD_SIZE;
	pthread_mutex_lock(&sv_proc.lock);
	e->ring_off = ring_alloc(ring_size(e));
	pthread_mutex_unlock(&sv_proc.lock);
	if (!e->ring_off)
		return ENOMEM;
	qp->desc = (struct sv_desc *)((char *)sv_proc.seg + e->ring_off);
	qp->lens = (uint32_t *)(qp->desc + e->slots);
	qp->pay = (char *)(qp->lens + e->rq_size);
	return 0;
}

static void qp_entry(struct sv_qp *qp)
{
	struct sv_qp_ent *e = qp->ent;

	e->qpn = qp->ex.qp_base.qp_num;
	e->pd = qp->ex.qp_base.pd->handle;
	e->recv_cq = qp->rcq->idx;
	e->recv_slot = qp->rslot;
	e->send_cq = qp->scq->idx;
	e->srq = qp->srq ? qp->srq->idx : SV_NONE;
	sv_store(&e->dest_qpn, SV_NONE);
	sv_store(&e->access, 0);
	sv_store(&e->busy, 0);
	sv_store(&e->waiting, 0);
	sv_store(&e->rq_posted, 0);
}

static void qp_users(struct sv_qp *qp, int n)
{
	atomic_fetch_add(&sv_container(qp->ex.qp_base.pd, struct sv_pd, pd)->users, n);
	atomic_fetch_add(&qp->scq->users, n);
	atomic_fetch_add(&qp->rcq->users, n);
	if (qp->srq)
		atomic_fetch_add(&qp->srq->users, n);
}

static void qp_publish(struct sv_qp *qp)
{
	struct sv_pd *pd = sv_container(qp->ex.qp_base.pd, struct sv_pd, pd);

	qp_users(qp, 1);
	pthread_mutex_lock(&pd->lock);
	qp->pd_next = pd->qps;
	if (pd->qps)
		pd->qps->pd_prev = &qp->pd_next;
	qp->pd_prev = &pd->qps;
	pd->qps = qp;
	pthread_mutex_unlock(&pd->lock);
	pthread_mutex_lock(&sv_proc.lock);
	sv_proc.qps[qp->idx] = qp;
	sv_proc.last_qp = qp->idx;
	pthread_mutex_unlock(&sv_proc.lock);
}

static void qp_init(struct sv_qp *qp, struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	struct ibv_qp *ib = &qp->ex.qp_base;

	ib->context = c;
	ib->qp_context = a->qp_context;
	ib->pd = a->pd;
	ib->send_cq = a->send_cq;
	ib->recv_cq = a->recv_cq;
	ib->srq = a->srq;
	ib->qp_type = a->qp_type;
	ib->state = IBV_QPS_RESET;
	pthread_mutex_init(&ib->mutex, NULL);
	pthread_cond_init(&ib->cond, NULL);
	sv_lock_init(&qp->lock);
	qp->ctx = sv_container(c, struct sv_ctx, v.context);
	qp->scq = sv_container(a->send_cq, struct sv_cq, cq);
	qp->rcq = sv_container(a->recv_cq, struct sv_cq, cq);
	qp->srq = a->srq ? sv_container(a->srq, struct sv_srq, srq) : NULL;
	qp->cap = a->cap;
	if (qp->srq)
		qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;
	qp->sig_all = a->sq_sig_all;
	qp->pend_tail = &qp->pend;
	qp->answers_tail = &qp->answers;
	qp->recheck = UINT64_MAX;
	qp->state = IBV_QPS_RESET;
	atomic_init(&qp->refs, 1);
}

static void number_free(uint32_t idx)
{
	pthread_mutex_lock(&sv_proc.lock);
	sv_proc.qp_used[idx] = 0;
	pthread_mutex_unlock(&sv_proc.lock);
}

struct ibv_qp *sv_qp_create(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	struct sv_qp *qp;
	int ret = check_init(c, a);

	if (ret)
		goto fail;
	qp = calloc(1, sizeof(*qp));
	ret = ENOMEM;
	if (!qp)
		goto fail;
	qp_init(qp, c, a);
	ret = qp_number(qp);
	if (ret)
		goto fail_free;
	ret = qp_ring(qp);
	if (ret)
		goto fail_number;
	ret = ENOMEM;
	if (sv_rq_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge))
		goto fail_ring;
	if (qp->srq) {
		qp->rx_wqe = malloc(qp->srq->rq.stride);
		if (!qp->rx_wqe)
			goto fail_rq;
	}
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		ret = sv_qp_ex_init(qp, a->send_ops_flags);
		if (ret)
			goto fail_rq;
		ret = ENOMEM;
	}
	if (sv_cq_join(qp->rcq, qp, &qp->rslot))
		goto fail_rq;
	qp->ex.qp_base.qp_num = sv_proc.seg->blocks[qp->idx / SV_BLOCK_QPS] << SV_BLOCK_SHIFT | qp->idx % SV_BLOCK_QPS;
	qp->ex.qp_base.handle = qp->idx;
	qp_entry(qp);
	qp_publish(qp);
	a->cap = qp->cap;
	return &qp->ex.qp_base;
fail_rq:
	sv_qp_ex_fini(qp);
	free(qp->rx_wqe);
	sv_rq_fini(&qp->rq);
fail_ring:
	pthread_mutex_lock(&sv_proc.lock);
	ring_release(qp->ent->ring_off, ring_size(qp->ent));
	pthread_mutex_unlock(&sv_proc.lock);
fail_number:
	number_free(qp->idx);
fail_free:
	free(qp);
fail:
	errno = ret;
	return NULL;
}

SV_EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex;
	struct ibv_qp *qp;

	memset(&ex, 0, sizeof(ex));
	memcpy(&ex, attr, sizeof(*attr));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	ex.pd = pd;
	qp = sv_qp_create(pd->context, &ex);
	if (qp)
		attr->cap = ex.cap;
	return qp;
}

/* ------------------------------------------------------------------ states; lock held */

static void state_set(struct sv_qp *qp, enum ibv_qp_state state, bool new_epoch)
{
	uint32_t epoch = SV_EPOCH(sv_load(&qp->ent->state));

	if (new_epoch)
		epoch = epoch == 0xffffff ? 1 : epoch + 1;
	qp->state = state;
	qp->ex.qp_base.state = state;
	atomic_store(&qp->ent->state, epoch << 8 | (uint32_t)state);
}

void sv_qp_set_err(struct sv_qp *qp)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
		return;
	state_set(qp, IBV_QPS_ERR, false);
	sv_send_flush(qp);
	/* Receives are flushed by whoever polls, behind what had arrived. */
	sv_bits_set(&qp->rcq->ent->active, qp->rslot % SV_BITS);
	sv_cq_fire(NULL, sv_proc.seg, qp->rcq->ent, true);
	if (qp->srq)
		sv_async_raise(qp->ctx, IBV_EVENT_QP_LAST_WQE_REACHED, &qp->ex.qp_base);
}

static void drop_answers(struct sv_qp *qp)
{
	struct sv_answer *a;

	while ((a = qp->answers)) {
		qp->answers = a->next;
		free(a);
	}
	qp->answers_tail = &qp->answers;
}

/* False: a stopped peer is still inside our memory. */
static bool to_reset(struct sv_qp *qp)
{
	bool quiet;

	state_set(qp, IBV_QPS_RESET, false);
	quiet = sv_quiesce_qp(qp);
	if (quiet)
		sv_store(&qp->ent->busy, 0);
	while (qp->pend) {
		struct sv_swr *w = qp->pend;

		qp->pend = w->next;
		free(w);
	}
	qp->pend_tail = &qp->pend;
	qp->recheck = UINT64_MAX;
	sv_cq_stall(qp);
	drop_answers(qp);
	sv_cq_purge(qp->scq, qp);
	if (qp->rcq != qp->scq)
		sv_cq_purge(qp->rcq, qp);
	qp->rq.head = qp->rq.tail = 0;
	sv_store(&qp->ent->rq_posted, 0);
	sv_store(&qp->ent->dest_qpn, SV_NONE);
	qp->sq_seq = 0;
	sv_store(&qp->sq_freed, 0);
	qp->rx_open = false;
	qp->rx_done = 0;
	if (qp->peer)
		sv_peer_put(qp->peer);
	qp->peer = NULL;
	qp->rent = NULL;
	qp->rseg = NULL;
	qp->repoch = 0;
	memset(&qp->attr, 0, sizeof(qp->attr));
	return quiet;
}

/* The ring starts empty under a new epoch, and only the QP named as destination may write it. */
static void to_rtr(struct sv_qp *qp)
{
	struct sv_qp_ent *e = qp->ent;

	qp->cons = 0;
	qp->rx_taken = 0;
	qp->credits_fixed = false;
	sv_store(&e->cons, 0);
	sv_store(&e->prod, 0);
	sv_store(&e->pay_cons, 0);
	sv_store(&e->pay_prod, 0);
	sv_store(&e->sent, 0);
	sv_store(&e->waiting, 0);
	sv_store(&e->rnr_timer, qp->attr.min_rnr_timer);
	sv_store(&e->dest_qpn, qp->attr.dest_qp_num);
	qp->est_told = false;
	qp->blocked = SV_X_DONE;
	qp->peer = sv_peer_by_qpn(qp->attr.dest_qp_num);
	if (qp->peer) {
		sv_peer_tell_chan(qp->peer, qp->rcq);
		if (qp->scq != qp->rcq)
			sv_peer_tell_chan(qp->peer, qp->scq);
	}
	state_set(qp, IBV_QPS_RTR, true);
}

struct transition {
	enum ibv_qp_state from, to;
	int required, optional;
};

static const struct transition transitions[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_MIN_RNR_TIMER},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0,
     IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0,
     IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
	 IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
	 IBV_QP_PATH_MIG_STATE},
    {IBV_QPS_SQE, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static bool transition_ok(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	mask &= ~IBV_QP_STATE;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return !(mask & ~IBV_QP_CUR_STATE);
	for (size_t i = 0; i < sizeof(transitions) / sizeof(transitions[0]); i++) {
		const struct transition *t = &transitions[i];

		if (t->from == from && t->to == to)
			return (mask & t->required) == t->required &&
			       !(mask & ~(t->required | t->optional | IBV_QP_CUR_STATE));
	}
	return false;
}

static int check_values(const struct ibv_qp_attr *a, int mask)
{
	if ((mask & IBV_QP_PORT) && a->port_num != 1)
		return EINVAL;
	if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index)
		return EINVAL;
	/* The link is Ethernet: the address must be global. */
	if ((mask & IBV_QP_AV) && (!a->ah_attr.is_global || a->ah_attr.port_num != 1))
		return EINVAL;
	if ((mask & IBV_QP_PATH_MTU) && (a->path_mtu < IBV_MTU_256 || a->path_mtu > IBV_MTU_4096))
		return EINVAL;
	if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > 16)
		return EINVAL;
	if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > 16)
		return EINVAL;
	if ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7)
		return EINVAL;
	if ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7)
		return EINVAL;
	if ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31)
		return EINVAL;
	if ((mask & IBV_QP_TIMEOUT) && a->timeout > 31)
		return EINVAL;
	return 0;
}

static void take_values(struct sv_qp *qp, const struct ibv_qp_attr *a, int mask)
{
	struct ibv_qp_attr *q = &qp->attr;

#define TAKE(bit, field)                                                                                               \
	do {                                                                                                           \
		if (mask & (bit))                                                                                      \
			q->field = a->field;                                                                           \
	} while (0)
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_EN_SQD_ASYNC_NOTIFY, en_sqd_async_notify);
#undef TAKE
	if (mask & IBV_QP_ACCESS_FLAGS)
		sv_store(&qp->ent->access, a->qp_access_flags);
	if (mask & IBV_QP_MIN_RNR_TIMER)
		sv_store(&qp->ent->rnr_timer, a->min_rnr_timer);
}

static void enter(struct sv_qp *qp, enum ibv_qp_state to)
{
	switch (to) {
	case IBV_QPS_RESET:
		to_reset(qp);
		break;
	case IBV_QPS_ERR:
		if (qp->state == IBV_QPS_RESET)
			state_set(qp, IBV_QPS_ERR, false);
		sv_qp_set_err(qp);
		sv_quiesce_qp(qp);
		break;
	case IBV_QPS_RTR:
		to_rtr(qp);
		break;
	case IBV_QPS_SQD:
		state_set(qp, to, false);
		if (qp->attr.en_sqd_async_notify)
			sv_async_raise(qp->ctx, IBV_EVENT_SQ_DRAINED, &qp->ex.qp_base);
		break;
	default:
		state_set(qp, to, false);
		break;
	}
}

SV_EXPORT int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct sv_qp *qp = (struct sv_qp *)ibqp;
	enum ibv_qp_state to;
	bool kick;
	int ret;

	if (!sv_usable(ibqp->context))
		return sv_ours(ibqp->context) ? EIO : EINVAL;
	ret = check_values(attr, mask);
	if (ret)
		return ret;
	sv_lock(&qp->rcq->outer);
	sv_lock(&qp->lock);
	to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
	if (((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != qp->state) || !transition_ok(qp->state, to, mask)) {
		ret = EINVAL;
	} else {
		take_values(qp, attr, mask);
		if (mask & IBV_QP_STATE)
			enter(qp, to);
	}
	kick = !ret && (qp->pend || to == IBV_QPS_RTS);
	sv_unlock(&qp->lock);
	sv_unlock(&qp->rcq->outer);
	if (kick)
		sv_kick_self(qp->idx);
	return ret;
}

SV_EXPORT int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct sv_qp *qp = (struct sv_qp *)ibqp;

	if (!sv_ours(ibqp->context))
		return EINVAL;
	sv_lock(&qp->lock);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->cap = qp->cap;
	sv_unlock(&qp->lock);
	memset(init, 0, sizeof(*init));
	init->qp_context = ibqp->qp_context;
	init->send_cq = ibqp->send_cq;
	init->recv_cq = ibqp->recv_cq;
	init->srq = ibqp->srq;
	init->cap = qp->cap;
	init->qp_type = ibqp->qp_type;
	init->sq_sig_all = qp->sig_all;
	return 0;
}

/* ------------------------------------------------------------------ destruction */

static void qp_unpublish(struct sv_qp *qp)
{
	struct sv_pd *pd = sv_container(qp->ex.qp_base.pd, struct sv_pd, pd);
	struct ibv_qp *ib = &qp->ex.qp_base;

	pthread_mutex_lock(&pd->lock);
	*qp->pd_prev = qp->pd_next;
	if (qp->pd_next)
		qp->pd_next->pd_prev = qp->pd_prev;
	pthread_mutex_unlock(&pd->lock);
	pthread_mutex_lock(&sv_proc.lock);
	sv_proc.qps[qp->idx] = NULL;
	pthread_mutex_unlock(&sv_proc.lock);
	/* The thread may be at it, and drops what it keeps at its next round. */
	if (sv_load(&qp->refs) > 1)
		sv_loop_let_go();
	pthread_mutex_lock(&ib->mutex);
	while (sv_load(&qp->refs) > 1 || ib->events_completed != qp->async_got)
		pthread_cond_wait(&ib->cond, &ib->mutex);
	pthread_mutex_unlock(&ib->mutex);
}

SV_EXPORT int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct sv_qp *qp = (struct sv_qp *)ibqp;
	bool quiet;

	if (!sv_ours(ibqp->context))
		return EINVAL;
	sv_lock(&qp->rcq->outer);
	sv_lock(&qp->lock);
	quiet = to_reset(qp);
	sv_cq_leave(qp->rcq, qp, qp->rslot);
	sv_unlock(&qp->lock);
	sv_unlock(&qp->rcq->outer);
	sv_async_forget(qp->ctx, ibqp);
	qp_unpublish(qp);
	qp_users(qp, -1);
	/* Where a stopped peer may still write into the ring, ring and number are given up. */
	if (quiet) {
		pthread_mutex_lock(&sv_proc.lock);
		ring_release(qp->ent->ring_off, ring_size(qp->ent));
		sv_proc.qp_used[qp->idx] = 0;
		pthread_mutex_unlock(&sv_proc.lock);
	}
	sv_qp_ex_fini(qp);
	sv_rq_fini(&qp->rq);
	free(qp->rx_wqe);
	free(qp);
	return 0;
}

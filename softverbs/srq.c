/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Shared receive queues. Senders take credits from a counter in the segment.
 */
#include "soft.h"

static struct sv_srq *srq_of(struct ibv_srq *s)
{
	return sv_container(s, struct sv_srq, srq);
}

static uint8_t srq_used[SV_MAX_SRQ];

void sv_srq_reset(void)
{
	memset(srq_used, 0, sizeof(srq_used));
}

static bool srq_number(struct sv_srq *s)
{
	bool found = false;

	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < SV_MAX_SRQ && !found; i++) {
		if (!srq_used[i]) {
			srq_used[i] = 1;
			s->idx = i;
			found = true;
		}
	}
	pthread_mutex_unlock(&sv_proc.lock);
	return found;
}

SV_EXPORT struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct sv_srq *s;
	int ret = EINVAL;

	if (!sv_usable(pd->context) || !attr->attr.max_wr || attr->attr.max_wr > SV_MAX_WR ||
	    attr->attr.max_sge > SV_MAX_SGE)
		goto fail;
	ret = ENOMEM;
	s = calloc(1, sizeof(*s));
	if (!s)
		goto fail;
	if (sv_rq_init(&s->rq, attr->attr.max_wr, attr->attr.max_sge))
		goto fail_free;
	if (!srq_number(s))
		goto fail_rq;
	s->srq.context = pd->context;
	s->srq.srq_context = attr->srq_context;
	s->srq.pd = pd;
	s->srq.handle = s->idx;
	s->limit = attr->attr.srq_limit;
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	sv_lock_init(&s->lock);
	s->ent = &sv_proc.seg->srq[s->idx];
	atomic_store(&s->ent->credits, 0);
	atomic_fetch_add(&sv_container(pd, struct sv_pd, pd)->users, 1);
	return &s->srq;
fail_rq:
	sv_rq_fini(&s->rq);
fail_free:
	free(s);
fail:
	errno = ret;
	return NULL;
}

SV_EXPORT int ibv_modify_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr, int mask)
{
	struct sv_srq *s = srq_of(ibsrq);
	int ret = 0;

	if (!sv_ours(ibsrq->context))
		return EINVAL;
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	sv_lock(&s->lock);
	if ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > s->rq.size)
		ret = EINVAL;
	else if (mask & IBV_SRQ_LIMIT)
		s->limit = attr->srq_limit;
	sv_unlock(&s->lock);
	return ret;
}

SV_EXPORT int ibv_query_srq(struct ibv_srq *ibsrq, struct ibv_srq_attr *attr)
{
	struct sv_srq *s = srq_of(ibsrq);

	if (!sv_ours(ibsrq->context))
		return EINVAL;
	attr->max_wr = s->rq.size;
	attr->max_sge = s->rq.max_sge;
	attr->srq_limit = s->limit;
	return 0;
}

SV_EXPORT int ibv_destroy_srq(struct ibv_srq *ibsrq)
{
	struct sv_srq *s = srq_of(ibsrq);

	if (!sv_ours(ibsrq->context))
		return EINVAL;
	if (sv_load(&s->users))
		return EBUSY;
	sv_async_forget(sv_container(ibsrq->context, struct sv_ctx, v.context), ibsrq);
	pthread_mutex_lock(&ibsrq->mutex);
	while (ibsrq->events_completed != s->async_got)
		pthread_cond_wait(&ibsrq->cond, &ibsrq->mutex);
	pthread_mutex_unlock(&ibsrq->mutex);
	atomic_fetch_sub(&sv_container(ibsrq->pd, struct sv_pd, pd)->users, 1);
	pthread_mutex_lock(&sv_proc.lock);
	srq_used[s->idx] = 0;
	pthread_mutex_unlock(&sv_proc.lock);
	sv_rq_fini(&s->rq);
	free(s);
	return 0;
}

/* Every sender that waits for a receive: which of them gets it is theirs to settle. */
static void kick_waiting(struct sv_srq *s)
{
	uint32_t n;

	/* The credits have been added by a sequentially consistent operation. */
	if (sv_likely(!atomic_load(&s->ent->waiting)) || !atomic_exchange(&s->ent->waiting, 0))
		return;
	n = sv_load(&sv_proc.seg->nblocks) * SV_BLOCK_QPS;
	for (uint32_t i = 0; i < n; i++) {
		struct sv_qp *qp = sv_proc.qps[i] && sv_load(&sv_proc.seg->qp[i].waiting) ? sv_qp_get(i) : NULL;

		if (!qp)
			continue;
		if (qp->srq == s) {
			sv_lock(&qp->lock);
			sv_kick_waiting(qp);
			sv_unlock(&qp->lock);
		}
		sv_qp_put(qp);
	}
}

int sv_post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct sv_srq *s = srq_of(ibsrq);
	uint32_t len, before;
	int ret = 0;

	if (!sv_ours(ibsrq->context)) {
		*bad = wr;
		return EINVAL;
	}
	sv_lock(&s->lock);
	before = s->rq.head;
	for (; wr; wr = wr->next) {
		ret = sv_rq_put(&s->rq, wr, &len);
		if (ret) {
			*bad = wr;
			break;
		}
	}
	atomic_fetch_add(&s->ent->credits, s->rq.head - before);
	sv_unlock(&s->lock);
	kick_waiting(s);
	return ret;
}

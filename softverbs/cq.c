/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Completion channels and completion queues.
 */
#include "soft.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

/* ------------------------------------------------------------------ channels */

static struct sv_chan *chan_of(struct ibv_comp_channel *ch)
{
	return sv_container(ch, struct sv_chan, ch);
}

static bool chan_number(struct sv_chan *c)
{
	static uint32_t gen;
	bool found = false;

	pthread_mutex_lock(&sv_proc.lock);
	/* The lowest free number: entries that were used before are in memory already. */
	for (uint32_t i = sv_proc.chan_hint; i < SV_MAX_CHAN && !found; i++) {
		if (!sv_proc.chans[i]) {
			sv_proc.chan_hint = i + 1;
			sv_proc.chans[i] = c;
			c->idx = i;
			c->gen = ++gen;
			found = true;
			for (struct sv_peer *p = sv_proc.peers; p; p = p->next)
				p->chan_sent[i / 8] &= (uint8_t) ~(1u << (i % 8));
		}
	}
	pthread_mutex_unlock(&sv_proc.lock);
	return found;
}

SV_EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct sv_chan *c;

	if (!sv_usable(context)) {
		errno = EINVAL;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->ch.context = context;
	c->ch.fd = sv_fd_new(eventfd(0, EFD_CLOEXEC));
	if (c->ch.fd < 0)
		goto fail;
	sv_fd_slot(c->ch.fd, (_Atomic int *)&c->ch.fd, 0);
	sv_fd_user(c->ch.fd);
	pthread_mutex_init(&c->lock, NULL);
	if (!chan_number(c)) {
		sv_fd_close(c->ch.fd);
		errno = ENOMEM;
		goto fail;
	}
	memset(&sv_proc.seg->chan[c->idx], 0, sizeof(struct sv_chan_ent));
	return &c->ch;
fail:
	free(c);
	return NULL;
}

SV_EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	struct sv_chan *c = chan_of(ch);

	if (!sv_ours(ch->context))
		return EINVAL;
	if (ch->refcnt)
		return EBUSY;
	pthread_mutex_lock(&sv_proc.lock);
	sv_proc.chans[c->idx] = NULL;
	sv_proc.chan_hint = sv_min(sv_proc.chan_hint, c->idx);
	pthread_mutex_unlock(&sv_proc.lock);
	sv_fd_close(ch->fd);
	pthread_mutex_destroy(&c->lock);
	free(c->cqs);
	free(c);
	return 0;
}

static int chan_join(struct sv_chan *c, struct sv_cq *cq)
{
	int ret = 0;
	uint32_t i;

	pthread_mutex_lock(&c->lock);
	for (i = 0; i < c->ncqs && c->cqs[i]; i++)
		;
	if (i == c->ncqs) {
		struct sv_cq **bigger = realloc(c->cqs, (i + 1) * sizeof(*bigger));

		if (bigger) {
			c->cqs = bigger;
			c->ncqs++;
		} else {
			ret = ENOMEM;
		}
	}
	if (!ret) {
		c->cqs[i] = cq;
		cq->chan = c;
		cq->chan_slot = i;
		c->ch.refcnt++;
	}
	pthread_mutex_unlock(&c->lock);
	return ret;
}

/* c->lock held. A CQ of this bit with an event that nobody has got, the bit put right. */
static struct sv_cq *chan_take_bit(struct sv_chan *c, struct sv_bits *b, uint32_t bit)
{
	struct sv_cq *found = NULL;
	bool more = false;

	atomic_fetch_and(&b->leaf[bit / 64], ~(1ull << (bit % 64)));
	for (uint32_t i = bit; i < c->ncqs; i += SV_BITS) {
		struct sv_cq *cq = c->cqs[i];

		if (!cq || atomic_load(&cq->ent->events) == sv_load(&cq->events_got))
			continue;
		if (found) {
			more = true;
			break;
		}
		found = cq;
		sv_store(&cq->events_got, sv_load(&cq->events_got) + 1);
		if (atomic_load(&cq->ent->events) != sv_load(&cq->events_got))
			more = true;
	}
	if (more)
		sv_bits_set(b, bit);
	return found;
}

static struct sv_cq *chan_take(struct sv_chan *c)
{
	struct sv_bits *b = &sv_proc.seg->chan[c->idx].pending;
	uint64_t top = atomic_load(&b->top);

	while (top) {
		uint32_t word = (uint32_t)__builtin_ctzll(top);
		uint64_t leaf = atomic_load(&b->leaf[word]);

		if (!leaf) {
			atomic_fetch_and(&b->top, ~(1ull << word));
			leaf = atomic_load(&b->leaf[word]);
			if (leaf)
				atomic_fetch_or(&b->top, 1ull << word);
		}
		while (leaf) {
			struct sv_cq *cq = chan_take_bit(c, b, word * 64 + (uint32_t)__builtin_ctzll(leaf));

			if (cq)
				return cq;
			leaf &= leaf - 1;
		}
		top &= top - 1;
	}
	return NULL;
}

static bool chan_pending(struct sv_chan *c)
{
	struct sv_bits *b = &sv_proc.seg->chan[c->idx].pending;
	uint64_t top = atomic_load(&b->top);

	for (; top; top &= top - 1)
		if (atomic_load(&b->leaf[__builtin_ctzll(top)]))
			return true;
	return false;
}

static void chan_raise(struct sv_chan *c)
{
	sv_fd_raise(c->ch.fd);
}

/* After an event was taken: readable exactly while there are more. */
static void chan_level(struct sv_chan *c, bool consumed)
{
	uint64_t count;
	struct iovec iov = {&count, sizeof(count)};

	if (chan_pending(c)) {
		if (consumed)
			chan_raise(c);
		return;
	}
	if (preadv2(c->ch.fd, &iov, 1, -1, RWF_NOWAIT) > 0 && chan_pending(c))
		chan_raise(c);
}

/* c->lock held. A CQ of this bit has gone, and with it the events that nobody took. */
static void chan_settle(struct sv_chan *c, uint32_t bit)
{
	struct sv_bits *b = &sv_proc.seg->chan[c->idx].pending;

	atomic_fetch_and(&b->leaf[bit / 64], ~(1ull << (bit % 64)));
	for (uint32_t i = bit; i < c->ncqs; i += SV_BITS)
		if (c->cqs[i] && atomic_load(&c->cqs[i]->ent->events) != sv_load(&c->cqs[i]->events_got))
			sv_bits_set(b, bit);
	chan_level(c, false);
}

SV_EXPORT int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
	struct sv_chan *c = chan_of(ch);
	bool consumed = false;
	uint64_t count;

	if (!sv_ours(ch->context)) {
		errno = EINVAL;
		return -1;
	}
	for (;;) {
		struct sv_cq *got;

		pthread_mutex_lock(&c->lock);
		got = chan_take(c);
		if (got)
			chan_level(c, consumed);
		pthread_mutex_unlock(&c->lock);
		if (got) {
			*cq = &got->cq;
			*context = got->cq.cq_context;
			return 0;
		}
		if (read(ch->fd, &count, sizeof(count)) < 0)
			return -1;
		consumed = true;
	}
}

SV_EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* The thread, after a peer that has no descriptor of ours set bits, or died between setting one and writing. */
void sv_chan_raise_pending(void)
{
	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < SV_MAX_CHAN; i++)
		if (sv_proc.chans[i] && chan_pending(sv_proc.chans[i]))
			chan_raise(sv_proc.chans[i]);
	pthread_mutex_unlock(&sv_proc.lock);
}

/* ------------------------------------------------------------------ CQ life */

static bool cq_number(struct sv_cq *cq)
{
	bool found = false;

	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = sv_proc.cq_hint; i < SV_MAX_CQ && !found; i++) {
		if (!sv_proc.cqs[i]) {
			sv_proc.cq_hint = i + 1;
			sv_proc.cqs[i] = cq;
			sv_proc.last_cq = i;
			cq->idx = i;
			found = true;
		}
	}
	pthread_mutex_unlock(&sv_proc.lock);
	return found;
}

static void cq_free(struct sv_cq *cq)
{
	free(cq->members);
	free(cq->ring);
	free(cq);
}

static int cq_setup(struct sv_cq *cq, struct ibv_comp_channel *ch)
{
	pthread_mutex_init(&cq->cq.mutex, NULL);
	pthread_cond_init(&cq->cq.cond, NULL);
	pthread_mutex_init(&cq->ex_lock, NULL);
	sv_lock_init(&cq->outer);
	sv_lock_init(&cq->inner);
	cq->ring = calloc(cq->size, sizeof(*cq->ring));
	if (!cq->ring || !cq_number(cq))
		return ENOMEM;
	cq->cq.handle = cq->idx;
	cq->ent = &sv_proc.seg->cq[cq->idx];
	memset(cq->ent, 0, sizeof(*cq->ent));
	cq->ent->chan = SV_NONE;
	if (ch && chan_join(chan_of(ch), cq)) {
		sv_proc.cqs[cq->idx] = NULL;
		return ENOMEM;
	}
	if (ch) {
		cq->ent->chan_slot = cq->chan_slot;
		cq->ent->chan_gen = cq->chan->gen;
		cq->ent->chan = cq->chan->idx;
	}
	return 0;
}

struct ibv_cq *sv_cq_create(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *ch, int vec)
{
	struct sv_cq *cq;
	int ret;

	if (!sv_usable(c) || cqe < 1 || cqe > SV_MAX_CQE || vec < 0 || vec >= c->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	cq = sv_fault_hit(SV_FAULT_CREATE_CQ) ? NULL : calloc(1, sizeof(*cq));
	if (!cq) {
		errno = ENOMEM;
		return NULL;
	}
	cq->cq.context = c;
	cq->cq.channel = ch;
	cq->cq.cq_context = context;
	cq->cq.cqe = cqe;
	cq->size = (uint32_t)cqe;
	ret = cq_setup(cq, ch);
	if (ret) {
		cq_free(cq);
		errno = ret;
		return NULL;
	}
	return &cq->cq;
}

SV_EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				       struct ibv_comp_channel *channel, int comp_vector)
{
	return sv_cq_create(context, cqe, cq_context, channel, comp_vector);
}

SV_EXPORT int ibv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct sv_cq *cq = sv_container(ibcq, struct sv_cq, cq);
	struct sv_cqe *ring;
	uint32_t n;
	int ret = 0;

	if (!sv_ours(ibcq->context) || cqe < 1 || cqe > SV_MAX_CQE)
		return EINVAL;
	ring = calloc((size_t)cqe, sizeof(*ring));
	if (!ring)
		return ENOMEM;
	sv_lock(&cq->inner);
	n = sv_load(&cq->tail) - sv_load(&cq->head);
	if (n > (uint32_t)cqe) {
		ret = EINVAL;
		free(ring);
	} else {
		for (uint32_t i = 0; i < n; i++)
			ring[i] = cq->ring[(sv_load(&cq->head) + i) % cq->size];
		free(cq->ring);
		cq->ring = ring;
		cq->size = (uint32_t)cqe;
		ibcq->cqe = cqe;
		sv_store(&cq->head, 0);
		sv_store(&cq->tail, n);
	}
	sv_unlock(&cq->inner);
	return ret;
}

static void cq_wait_acked(struct sv_cq *cq)
{
	pthread_mutex_lock(&cq->cq.mutex);
	while (cq->cq.comp_events_completed != sv_load(&cq->events_got) ||
	       cq->cq.async_events_completed != cq->async_got)
		pthread_cond_wait(&cq->cq.cond, &cq->cq.mutex);
	pthread_mutex_unlock(&cq->cq.mutex);
}

SV_EXPORT int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct sv_cq *cq = sv_container(ibcq, struct sv_cq, cq);

	if (!sv_ours(ibcq->context))
		return EINVAL;
	if (sv_load(&cq->users))
		return EBUSY;
	sv_async_forget(sv_container(ibcq->context, struct sv_ctx, v.context), ibcq);
	if (cq->chan) {
		pthread_mutex_lock(&cq->chan->lock);
		cq->chan->cqs[cq->chan_slot] = NULL;
		chan_settle(cq->chan, cq->chan_slot % SV_BITS);
		pthread_mutex_unlock(&cq->chan->lock);
	}
	cq_wait_acked(cq);
	if (cq->chan) {
		pthread_mutex_lock(&cq->chan->lock);
		cq->chan->ch.refcnt--;
		pthread_mutex_unlock(&cq->chan->lock);
	}
	pthread_mutex_lock(&sv_proc.lock);
	sv_proc.cqs[cq->idx] = NULL;
	sv_proc.cq_hint = sv_min(sv_proc.cq_hint, cq->idx);
	pthread_mutex_unlock(&sv_proc.lock);
	cq_free(cq);
	return 0;
}

/* ------------------------------------------------------------------ members */

int sv_cq_join(struct sv_cq *cq, struct sv_qp *qp, uint32_t *slot)
{
	uint32_t i;
	int ret = 0;

	sv_lock(&cq->outer);
	for (i = 0; i < cq->nmembers && cq->members[i]; i++)
		;
	if (i == cq->nmembers) {
		struct sv_qp **bigger = realloc(cq->members, (i * 2 + 4) * sizeof(*bigger));

		if (bigger) {
			memset(bigger + i, 0, (i + 4) * sizeof(*bigger));
			cq->members = bigger;
			cq->nmembers = i * 2 + 4;
		} else {
			ret = ENOMEM;
		}
	}
	if (!ret) {
		cq->members[i] = qp;
		*slot = i;
	}
	sv_unlock(&cq->outer);
	return ret;
}

void sv_cq_leave(struct sv_cq *cq, struct sv_qp *qp, uint32_t slot)
{
	if (slot < cq->nmembers && cq->members[slot] == qp)
		cq->members[slot] = NULL;
}

void sv_cq_purge(struct sv_cq *cq, struct sv_qp *qp)
{
	uint32_t to;

	sv_lock(&cq->inner);
	to = sv_load(&cq->head);
	for (uint32_t i = to; i != sv_load(&cq->tail); i++) {
		struct sv_cqe *e = &cq->ring[i % cq->size];

		if (e->qp != qp)
			cq->ring[to++ % cq->size] = *e;
	}
	sv_store_rel(&cq->tail, to);
	sv_unlock(&cq->inner);
}

/* ------------------------------------------------------------------ completions */

void sv_cq_overrun(struct sv_cq *cq)
{
	if (atomic_exchange(&cq->overrun, 1))
		return;
	sv_async_raise(sv_container(cq->cq.context, struct sv_ctx, v.context), IBV_EVENT_CQ_ERR, &cq->cq);
	/* The QPs' locks may be held by the caller: the thread takes them down. */
	pthread_mutex_lock(&sv_proc.lock);
	for (uint32_t i = 0; i < SV_MAX_QP; i++) {
		struct sv_qp *qp = sv_proc.qps[i];

		if (qp && (qp->scq == cq || qp->rcq == cq))
			sv_kick_self(i);
	}
	pthread_mutex_unlock(&sv_proc.lock);
}

void sv_cq_push(struct sv_cq *cq, const struct ibv_wc *wc, struct sv_qp *qp, uint32_t seq, bool send, bool solicited,
		struct sv_sink *sink)
{
	uint32_t tail;
	bool full;

	if (sink && sink->used < sink->room && sv_load(&cq->head) == sv_load(&cq->tail)) {
		sink->wc[sink->used++] = *wc;
		if (send)
			sv_store(&qp->sq_freed, seq + 1);
		return;
	}
	sv_lock(&cq->inner);
	tail = sv_load(&cq->tail);
	full = tail - sv_load(&cq->head) >= cq->size || sv_load(&cq->overrun) || sv_fault_hit(SV_FAULT_CQ);
	if (!full) {
		struct sv_cqe *e = &cq->ring[tail % cq->size];

		e->wc = *wc;
		e->qp = qp;
		e->sq_seq = seq;
		e->send = send;
		atomic_store(&cq->tail, tail + 1);
	}
	sv_unlock(&cq->inner);
	if (full)
		sv_cq_overrun(cq);
	sv_cq_fire(NULL, sv_proc.seg, cq->ent, solicited || wc->status != IBV_WC_SUCCESS);
}

static int cq_pop(struct sv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = 0;

	if (sv_load(&cq->head) == sv_load_acq(&cq->tail))
		return 0;
	sv_lock(&cq->inner);
	while (got < n && sv_load(&cq->head) != sv_load(&cq->tail)) {
		struct sv_cqe *e = &cq->ring[sv_load(&cq->head) % cq->size];

		wc[got++] = e->wc;
		if (e->send)
			sv_store(&e->qp->sq_freed, e->sq_seq + 1);
		sv_store_rel(&cq->head, sv_load(&cq->head) + 1);
	}
	/* An empty ring starts over: a CQ that is polled in time touches little memory. */
	if (sv_load(&cq->head) == sv_load(&cq->tail)) {
		sv_store(&cq->head, 0);
		sv_store(&cq->tail, 0);
	}
	sv_unlock(&cq->inner);
	return got;
}

/* outer held. Turns the descriptors of every active QP into completions. */
static void cq_drain(struct sv_cq *cq, struct sv_sink *sink)
{
	struct sv_bits *b = &cq->ent->active;
	uint64_t top = atomic_exchange(&b->top, 0);

	for (; top; top &= top - 1) {
		uint32_t word = (uint32_t)__builtin_ctzll(top);
		uint64_t leaf = atomic_exchange(&b->leaf[word], 0);

		for (; leaf; leaf &= leaf - 1) {
			uint32_t i = word * 64 + (uint32_t)__builtin_ctzll(leaf);

			for (; i < cq->nmembers; i += SV_BITS) {
				struct sv_qp *qp = cq->members[i];

				if (!qp)
					continue;
				sv_lock(&qp->lock);
				sv_drain(qp, sink);
				sv_unlock(&qp->lock);
			}
		}
	}
}

/*
 * A program that spins would not hinder a device. Here the peer may need this very CPU: now and then let it have it.
 * Who polls a few times before it sleeps never gets there.
 */
static int poll_empty(struct sv_cq *cq)
{
	uint32_t n;

	if (sv_unlikely(sv_load(&cq->overrun)))
		return -1;
	n = sv_load(&cq->idle) + 1;
	sv_store(&cq->idle, n);
	if (sv_unlikely(n % 2048 == 0))
		sched_yield();
	return 0;
}

void sv_cq_stall(struct sv_qp *qp)
{
	struct sv_cq *cq = qp->scq;
	struct sv_qp *i, *prev = NULL;
	bool want = qp->pend != NULL;

	if (want == qp->on_stalled)
		return;
	sv_lock(&cq->inner);
	if (want) {
		qp->stall_next = sv_load(&cq->stalled);
		sv_store(&cq->stalled, qp);
	} else {
		for (i = sv_load(&cq->stalled); i != qp; i = i->stall_next)
			prev = i;
		if (prev)
			prev->stall_next = qp->stall_next;
		else
			sv_store(&cq->stalled, qp->stall_next);
	}
	qp->on_stalled = want;
	sv_unlock(&cq->inner);
}

#define STALLED_BATCH 8

/* Who polls for the completions of blocked sends need not wait for the thread to carry them out. */
static void cq_push_on(struct sv_cq *cq)
{
	struct sv_qp *batch[STALLED_BATCH], *qp;
	int n = 0;

	sv_lock(&cq->inner);
	for (qp = sv_load(&cq->stalled); qp && n < STALLED_BATCH; qp = qp->stall_next) {
		atomic_fetch_add(&qp->refs, 1);
		batch[n++] = qp;
	}
	sv_unlock(&cq->inner);
	for (int i = 0; i < n; i++) {
		sv_lock(&batch[i]->lock);
		sv_send_progress(batch[i]);
		sv_unlock(&batch[i]->lock);
		sv_qp_put(batch[i]);
	}
}

int sv_cq_poll(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct sv_cq *cq = sv_container(ibcq, struct sv_cq, cq);
	int got;

	if (sv_unlikely(!sv_ours(ibcq->context)))
		return -1;
	if (sv_unlikely(sv_load(&cq->stalled) != NULL))
		cq_push_on(cq);
	if (sv_load_acq(&cq->head) == sv_load_acq(&cq->tail) && !atomic_load(&cq->ent->active.top))
		return poll_empty(cq);
	sv_store(&cq->idle, 0);
	sv_lock(&cq->outer);
	got = cq_pop(cq, n, wc);
	if (atomic_load(&cq->ent->active.top)) {
		struct sv_sink sink = {wc + got, n - got, 0};

		cq_drain(cq, &sink);
		got += sink.used;
		if (got < n)
			got += cq_pop(cq, n - got, wc + got);
	}
	sv_unlock(&cq->outer);
	return got;
}

int sv_cq_notify(struct ibv_cq *ibcq, int solicited)
{
	struct sv_cq *cq = sv_container(ibcq, struct sv_cq, cq);

	if (!sv_ours(ibcq->context))
		return EINVAL;
	if (!solicited || atomic_load(&cq->ent->armed) != 1)
		atomic_exchange(&cq->ent->armed, solicited ? 2 : 1);
	sv_fault_hit(SV_FAULT_CANCEL);
	return 0;
}

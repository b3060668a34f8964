/* SPDX-License-Identifier: BSD-2-Clause */
/* The verbs objects of one connection: made and destroyed on the progress thread. */
#include "rdma_stream.h"

#include "config.h"
#include "log.h"

#include <string.h>

/* 10 to 60 us; the CM's default 0 means 655 ms (T1). */
#define MIN_RNR_TIMER 3

/*
 * 4.096 us x 2^17, 0.54 s: with 7 retries a peer that does not answer is an error after 4.3 s (up to four times that on
 * devices that take the timeout as a lower bound). The CM's own value comes from a packet life time that it makes up:
 * 17 s and more on RoCE.
 */
#define ACK_TIMEOUT 17
#define RETRY_COUNT 7

/* What the queues of a connection take: a send and a receive entry of common providers, and its part of the CQ. */
#define QUEUE_BYTES (VKR_SEND_DEPTH * 128 + VKR_RECV_DEPTH * 32 + VKR_CQ_RESERVE * 64)

static int err_or(int fallback)
{
	return errno ? -errno : -fallback;
}

int vkr_ring_create(struct vkr_stream *s, struct vkr_rx_ring *ring, uint32_t len)
{
	memset(ring, 0, sizeof(*ring));
	ring->buf = vkr_arena_alloc(len);
	if (!ring->buf)
		return -ENOMEM;
	ring->mr =
	    vkr_mr_register(s->pd, ring->buf, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &s->stats->mem_mr);
	if (!ring->mr) {
		vkr_arena_free(ring->buf, len);
		ring->buf = NULL;
		return err_or(ENOMEM);
	}
	ring->len = len;
	return 0;
}

void vkr_ring_destroy(struct vkr_stream *s, struct vkr_rx_ring *ring)
{
	vkr_mr_deregister(ring->mr, &s->stats->mem_mr);
	vkr_arena_free(ring->buf, ring->len);
	if (ring->lent)
		vkr_rx_loan_over();
	memset(ring, 0, sizeof(*ring));
}

int vkr_stream_post_receives(struct vkr_stream *s, const uint16_t *idx, int n)
{
	struct ibv_recv_wr wr[32], *bad;
	struct ibv_sge sge[32];
	int i, count, ret;

	for (; n > 0; n -= count, idx += count) {
		count = vkr_min(n, 32);
		for (i = 0; i < count; i++) {
			sge[i].addr = (uintptr_t)(s->ctl + (size_t)idx[i] * VKR_WIRE_SIZE);
			sge[i].length = VKR_WIRE_SIZE;
			sge[i].lkey = s->ctl_mr->lkey;
			wr[i].wr_id = (uint64_t)s->ep.generation << 32 | VKR_WR_RECV | idx[i];
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			wr[i].next = i + 1 < count ? &wr[i + 1] : NULL;
		}
		ret = ibv_post_recv(s->qp, wr, &bad);
		if (ret)
			return ret > 0 ? -ret : err_or(ENOMEM);
	}
	return 0;
}

/* Devices differ in what inline size they grant; ask for less until one agrees. */
static struct ibv_qp *qp_create(struct vkr_stream *s)
{
	static const uint32_t real_sizes[] = {256, 128, 64, 32, 0};
	struct ibv_qp_init_attr attr;
	struct ibv_qp *qp;
	size_t i = 0;

	for (;;) {
		memset(&attr, 0, sizeof(attr));
		attr.send_cq = attr.recv_cq = vkr_cq_verbs(s->ep.cq);
		attr.qp_type = IBV_QPT_RC;
		attr.cap.max_send_wr = VKR_SEND_DEPTH + 1; /* and the marker */
		attr.cap.max_recv_wr = VKR_RECV_DEPTH;
		attr.cap.max_send_sge = (uint32_t)vkr_min(VKR_MAX_SGE, vkr_max(s->dev->max_sge, 1));
		attr.cap.max_recv_sge = 1;
		attr.cap.max_inline_data = vkr_verbs.soft && i == 0 ? vkr_verbs.soft->max_inline : real_sizes[i];
		qp = vkr_verbs.ibv_create_qp(s->pd, &attr);
		if (qp || ++i == VKR_ARRAY_SIZE(real_sizes))
			break;
	}
	if (!qp)
		return NULL;
	s->inline_max = attr.cap.max_inline_data;
	s->max_sge = (int)vkr_min(attr.cap.max_send_sge, (uint32_t)VKR_MAX_SGE);
	return qp;
}

static int qp_state(struct vkr_stream *s, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	int mask = 0;

	memset(&attr, 0, sizeof(attr));
	attr.qp_state = state;
	if (vkr_verbs.rdma_init_qp_attr(s->id, &attr, &mask))
		return err_or(EIO);
	attr.qp_state = state;
	if (state == IBV_QPS_RTR) {
		attr.min_rnr_timer = MIN_RNR_TIMER;
		mask |= IBV_QP_MIN_RNR_TIMER;
		if (s->role == VKR_ROLE_ACCEPT)
			attr.max_dest_rd_atomic = 1;
	} else if (state == IBV_QPS_RTS) {
		/* The peer's REP (or REQ) may have said 0: the first receive it has not posted would kill us. */
		attr.rnr_retry = 7;
		attr.timeout = ACK_TIMEOUT;
		attr.retry_cnt = RETRY_COUNT;
		mask |= IBV_QP_RNR_RETRY | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
		if (s->role == VKR_ROLE_ACCEPT)
			attr.max_rd_atomic = 1;
	}
	return vkr_verbs.ibv_modify_qp(s->qp, &attr, mask) ? err_or(EIO) : 0;
}

static int post_all_receives(struct vkr_stream *s)
{
	uint16_t idx[VKR_RECV_DEPTH];
	int i;

	for (i = 0; i < VKR_RECV_DEPTH; i++)
		idx[i] = (uint16_t)i;
	return vkr_stream_post_receives(s, idx, VKR_RECV_DEPTH);
}

static int control_create(struct vkr_stream *s)
{
	s->ctl = vkr_arena_alloc(VKR_CTL_SIZE);
	if (!s->ctl)
		return -ENOMEM;
	s->ctl_mr = vkr_mr_register(s->pd, s->ctl, VKR_CTL_SIZE, IBV_ACCESS_LOCAL_WRITE, &s->stats->mem_mr);
	if (!s->ctl_mr)
		return err_or(ENOMEM);
	if (!(vkr_config.features & VKR_FEAT_CREDIT))
		return 0;
	/* The peer may write one word of the page, and nothing else. */
	s->word = (_Atomic uint64_t *)(void *)(s->ctl + (size_t)(VKR_RECV_DEPTH + VKR_CTL_SLOTS) * VKR_WIRE_SIZE);
	vkr_store(&s->word[0], 0);
	s->word_mr = vkr_mr_register(s->pd, (void *)s->word, VKR_CREDIT_SIZE,
				     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, &s->stats->mem_mr);
	return s->word_mr ? 0 : err_or(ENOMEM);
}

static int objects_try(struct vkr_stream *s, const char **what)
{
	int ret;

	errno = 0;
	*what = "the RDMA device could not be opened";
	s->dev = vkr_device_get(s->id->verbs);
	if (!s->dev)
		return err_or(ENODEV);
	vkr_cm_device_watch(s->dev, rdma_get_local_addr(s->id));
	*what = "no protection domain left on the RDMA device";
	s->pd = vkr_verbs.ibv_alloc_pd(s->id->verbs);
	if (!s->pd)
		return err_or(ENOMEM);
	*what = "memory could not be registered (ulimit -l?)";
	ret = control_create(s);
	if (!ret)
		ret = vkr_ring_create(s, &s->rx[0], s->ring_first);
	if (ret)
		return ret;
	*what = "no completion queue left on the RDMA device";
	ret = vkr_cq_reserve(s->dev, &s->ep, VKR_CQ_RESERVE);
	if (ret)
		return ret;
	*what = "no queue pair left on the RDMA device";
	s->qp = qp_create(s);
	if (!s->qp)
		return err_or(ENOMEM);
	vkr_gauge_add(&vkr_stats->qps, 1);
	return 0;
}

/* An unread ring loses its registration but not its bytes. */
static void ring_retire(struct vkr_stream *s, struct vkr_rx_ring *ring)
{
	if (ring->received == ring->consumed || s->app_closed) {
		vkr_ring_destroy(s, ring);
		return;
	}
	vkr_mr_deregister(ring->mr, &s->stats->mem_mr);
	ring->mr = NULL;
}

/* All but the CM's id, which is the peer's way to us. */
static void objects_destroy(struct vkr_stream *s)
{
	if (s->qp) {
		if (s->ep.hh.tbl)
			vkr_endpoint_remove(&s->ep);
		vkr_verbs.ibv_destroy_qp(s->qp);
		vkr_gauge_add(&vkr_stats->qps, -1);
	}
	vkr_cq_release(&s->ep);
	memset(&s->ep.hh, 0, sizeof(s->ep.hh));
	pthread_mutex_lock(&s->p.lock);
	s->qp = NULL;
	s->qp_live = false;
	s->tx.ready = false;
	vkr_tx_release(s);
	ring_retire(s, &s->rx[0]);
	ring_retire(s, &s->rx[1]);
	pthread_mutex_unlock(&s->p.lock);
	vkr_mr_deregister(s->word_mr, &s->stats->mem_mr);
	s->word_mr = NULL;
	vkr_mr_deregister(s->ctl_mr, &s->stats->mem_mr);
	s->ctl_mr = NULL;
	vkr_arena_free(s->ctl, VKR_CTL_SIZE);
	s->ctl = NULL;
	if (s->pd)
		vkr_verbs.ibv_dealloc_pd(s->pd);
	s->pd = NULL;
}

/* What is kept for connections that may come goes before one that has. */
static int objects_create(struct vkr_stream *s, const char **what)
{
	int ret = objects_try(s, what);

	if (!ret || !vkr_keep_yield())
		return ret;
	objects_destroy(s);
	return objects_try(s, what);
}

int vkr_stream_verbs_create(struct vkr_stream *s, const char **what)
{
	int ret = objects_create(s, what);

	if (ret)
		return ret;
	s->rd = s->wr = 0;
	vkr_credit_measure(s);
	s->ep.qp_num = s->qp->qp_num;
	*what = "the connection's queue pair could not be set up";
	ret = vkr_endpoint_add(&s->ep);
	if (ret)
		return ret;
	ret = qp_state(s, IBV_QPS_INIT);
	if (!ret)
		ret = post_all_receives(s);
	vkr_store(&s->stats->mem_queue, QUEUE_BYTES);
	return ret;
}

int vkr_stream_verbs_connect(struct vkr_stream *s)
{
	int ret;

	s->qp_live = true;
	/* INIT once more: only since the CM knows the peer do its attributes carry the access flags. */
	ret = qp_state(s, IBV_QPS_INIT);
	if (!ret)
		ret = qp_state(s, IBV_QPS_RTR);
	return ret ? ret : qp_state(s, IBV_QPS_RTS);
}

void vkr_stream_verbs_destroy(struct vkr_stream *s)
{
	objects_destroy(s);
	if (s->id)
		vkr_verbs.rdma_destroy_id(s->id);
	s->id = NULL;
	vkr_store(&s->stats->mem_queue, 0);
}

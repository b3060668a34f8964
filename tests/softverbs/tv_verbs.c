/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices, ends (a QP with its queues and buffer), posting and polling: see tv.h. */
#include "tv.h"

#include <sys/mman.h>

#define PSN 0x123456

const struct tv_opt tv_defaults = {
    .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 0},
    .cqe = 128,
    .rnr_retry = 7,
    .min_rnr_timer = 12, /* 0.64 ms */
    .rd_atomic = 4,
    .qp_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    .mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    .len = 64 * 1024,
};

/* ---------------------------------------------------------------- device */

static void pick_gid(struct tv_dev *d)
{
	static const union ibv_gid zero;
	const char *want = getenv("TV_GID");

	for (int i = want ? atoi(want) : 0; i < d->port.gid_tbl_len; i++) {
		d->gid_index = i;
		if (ibv_query_gid(d->ctx, 1, i, &d->gid) == 0 && (want || memcmp(&d->gid, &zero, sizeof(zero))))
			return;
	}
	tv_fail(__FILE__, __LINE__, "no GID");
}

void tv_dev_open(struct tv_dev *d)
{
	struct ibv_device **list;
	int n = 0;

	memset(d, 0, sizeof(*d));
	list = ibv_get_device_list(&n);
	if (!list || n == 0) {
		if (getenv("TV_REQUIRE"))
			tv_fail(__FILE__, __LINE__, "no device (errno %d)", errno);
		tv_skip("no RDMA device");
	}
	d->ctx = ibv_open_device(list[0]);
	CHECK(d->ctx);
	ibv_free_device_list(list);
	CHECK_EQ(ibv_query_device(d->ctx, &d->attr), 0);
	CHECK_EQ(ibv_query_port(d->ctx, 1, &d->port), 0);
	pick_gid(d);
	d->pd = ibv_alloc_pd(d->ctx);
	CHECK(d->pd);
}

void tv_dev_close(struct tv_dev *d)
{
	CHECK_EQ(ibv_dealloc_pd(d->pd), 0);
	CHECK_EQ(ibv_close_device(d->ctx), 0);
}

/* ---------------------------------------------------------------- ends */

static void make_queues(struct tv_end *e, struct ibv_context *ctx)
{
	const struct tv_opt *o = &e->opt;

	if (o->channel) {
		e->chan = ibv_create_comp_channel(ctx);
		CHECK(e->chan);
	}
	e->scq = o->scq ? o->scq : ibv_create_cq(ctx, o->cqe, e, e->chan, 0);
	CHECK(e->scq);
	e->rcq = o->rcq ? o->rcq : ibv_create_cq(ctx, o->cqe, e, e->chan, 0);
	CHECK(e->rcq);
}

static void make_buffer(struct tv_end *e, struct ibv_pd *pd)
{
	e->len = e->opt.len;
	e->buf = e->opt.buf;
	if (!e->buf) {
		e->buf = mmap(NULL, e->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(e->buf != MAP_FAILED);
	}
	e->mr = ibv_reg_mr(pd, e->buf, e->len, e->opt.mr_access);
	CHECK(e->mr);
}

static struct ibv_qp_init_attr init_attr(struct tv_end *e)
{
	return (struct ibv_qp_init_attr){
	    .qp_context = e,
	    .send_cq = e->scq,
	    .recv_cq = e->rcq,
	    .srq = e->opt.srq,
	    .cap = e->opt.cap,
	    .qp_type = IBV_QPT_RC,
	    .sq_sig_all = e->opt.sig_all,
	};
}

void tv_end_open(struct tv_end *e, struct tv_dev *d, const struct tv_opt *opt)
{
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	memset(e, 0, sizeof(*e));
	e->dev = d;
	e->opt = opt ? *opt : tv_defaults;
	make_queues(e, d->ctx);
	make_buffer(e, d->pd);
	ia = init_attr(e);
	e->qp = ibv_create_qp(d->pd, &ia);
	CHECK(e->qp);
	e->cap = ia.cap;
	attr.qp_access_flags = e->opt.qp_access;
	CHECK_EQ(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
}

void tv_end_open_cm(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id *id, const struct tv_opt *opt)
{
	struct ibv_qp_init_attr ia;

	memset(e, 0, sizeof(*e));
	memset(d, 0, sizeof(*d));
	e->dev = d;
	e->id = id;
	e->opt = opt ? *opt : tv_defaults;
	d->ctx = id->verbs;
	CHECK(d->ctx);
	d->pd = ibv_alloc_pd(d->ctx);
	CHECK(d->pd);
	make_queues(e, d->ctx);
	make_buffer(e, d->pd);
	ia = init_attr(e);
	CHECK_EQ(rdma_create_qp(id, d->pd, &ia), 0);
	e->qp = id->qp;
	CHECK(e->qp);
	e->cap = ia.cap;
}

void tv_end_close(struct tv_end *e)
{
	if (e->id)
		rdma_destroy_qp(e->id);
	else
		CHECK_EQ(ibv_destroy_qp(e->qp), 0);
	if (!e->opt.scq)
		CHECK_EQ(ibv_destroy_cq(e->scq), 0);
	if (!e->opt.rcq)
		CHECK_EQ(ibv_destroy_cq(e->rcq), 0);
	if (e->chan)
		CHECK_EQ(ibv_destroy_comp_channel(e->chan), 0);
	CHECK_EQ(ibv_dereg_mr(e->mr), 0);
	if (!e->opt.buf)
		CHECK_EQ(munmap(e->buf, e->len), 0);
	if (e->id)
		CHECK_EQ(ibv_dealloc_pd(e->dev->pd), 0);
}

void tv_end_wire(struct tv_end *e, struct tv_wire *w)
{
	*w = (struct tv_wire){
	    .qpn = e->qp->qp_num,
	    .psn = PSN,
	    .rkey = e->mr->rkey,
	    .lid = e->dev->port.lid,
	    .addr = (uintptr_t)e->buf,
	    .gid = e->dev->gid,
	};
}

void tv_end_rtr(struct tv_end *e)
{
	struct ibv_qp_attr attr = {
	    .qp_state = IBV_QPS_RTR,
	    .path_mtu = e->dev->port.active_mtu,
	    .dest_qp_num = e->peer.qpn,
	    .rq_psn = e->peer.psn,
	    .max_dest_rd_atomic = e->opt.rd_atomic,
	    .min_rnr_timer = e->opt.min_rnr_timer,
	    .ah_attr =
		{
		    .dlid = e->peer.lid,
		    .port_num = 1,
		    .is_global = 1,
		    .grh = {.dgid = e->peer.gid, .sgid_index = e->dev->gid_index, .hop_limit = 64},
		},
	};

	CHECK_EQ(ibv_modify_qp(e->qp, &attr,
			       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		 0);
}

void tv_end_rts(struct tv_end *e)
{
	struct ibv_qp_attr attr = {
	    .qp_state = IBV_QPS_RTS,
	    .timeout = 14,
	    .retry_cnt = 7,
	    .rnr_retry = e->opt.rnr_retry,
	    .sq_psn = PSN,
	    .max_rd_atomic = e->opt.rd_atomic,
	};

	CHECK_EQ(ibv_modify_qp(e->qp, &attr,
			       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				   IBV_QP_MAX_QP_RD_ATOMIC),
		 0);
}

void tv_end_join(struct tv_end *a, struct tv_end *b)
{
	tv_end_wire(a, &b->peer);
	tv_end_wire(b, &a->peer);
	tv_end_rtr(a);
	tv_end_rtr(b);
	tv_end_rts(a);
	tv_end_rts(b);
}

void tv_end_meet(struct tv_end *e, struct tv_side *s)
{
	struct tv_wire mine;

	tv_end_wire(e, &mine);
	tv_put(s->ctl, &mine, sizeof(mine));
	tv_get(s->ctl, &e->peer, sizeof(e->peer));
	tv_end_rtr(e);
	tv_end_rts(e);
	tv_sync(s);
}

void tv_end_err(struct tv_end *e)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

	CHECK_EQ(ibv_modify_qp(e->qp, &attr, IBV_QP_STATE), 0);
}

enum ibv_qp_state tv_end_state(struct tv_end *e)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr ia;

	CHECK_EQ(ibv_query_qp(e->qp, &attr, IBV_QP_STATE, &ia), 0);
	return attr.qp_state;
}

void tv_end_wait_state(struct tv_end *e, enum ibv_qp_state want)
{
	uint64_t end = tv_ms() + 10000;

	while (tv_end_state(e) != want) {
		if (tv_ms() > end)
			tv_fail(__FILE__, __LINE__, "QP state %d, not %d after 10 s", tv_end_state(e), want);
		tv_relax();
	}
}

/* ---------------------------------------------------------------- posting */

void tv_wr(struct tv_end *e, struct ibv_send_wr *wr, struct ibv_sge *sge, enum ibv_wr_opcode op, size_t off, size_t len,
	   uint64_t id)
{
	*sge = (struct ibv_sge){.addr = (uintptr_t)e->buf + off, .length = len, .lkey = e->mr->lkey};
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = id;
	wr->sg_list = sge;
	wr->num_sge = len ? 1 : 0; /* to some devices a length of 0 means 2 GiB */
	wr->opcode = op;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->imm_data = htonl((uint32_t)id);
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP || op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->wr.atomic.remote_addr = e->peer.addr + off;
		wr->wr.atomic.rkey = e->peer.rkey;
	} else {
		wr->wr.rdma.remote_addr = e->peer.addr + off;
		wr->wr.rdma.rkey = e->peer.rkey;
	}
}

int tv_post_wr(struct tv_end *e, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	int rc = ibv_post_send(e->qp, wr, &bad);

	if (rc)
		CHECK(bad);
	return rc;
}

void tv_post_flags(struct tv_end *e, enum ibv_wr_opcode op, size_t off, size_t len, uint64_t id, unsigned flags)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	tv_wr(e, &wr, &sge, op, off, len, id);
	wr.send_flags = flags;
	CHECK_EQ(tv_post_wr(e, &wr), 0);
}

void tv_post(struct tv_end *e, enum ibv_wr_opcode op, size_t off, size_t len, uint64_t id)
{
	tv_post_flags(e, op, off, len, id, IBV_SEND_SIGNALED);
}

int tv_try_recv(struct tv_end *e, size_t off, size_t len, uint64_t id)
{
	struct ibv_sge sge = {.addr = (uintptr_t)e->buf + off, .length = len, .lkey = e->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = len ? 1 : 0}, *bad = NULL;
	int rc = ibv_post_recv(e->qp, &wr, &bad);

	if (rc)
		CHECK(bad == &wr);
	return rc;
}

void tv_recv(struct tv_end *e, size_t off, size_t len, uint64_t id)
{
	CHECK_EQ(tv_try_recv(e, off, len, id), 0);
}

/* ---------------------------------------------------------------- polling */

bool tv_poll(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	uint64_t end = 0;
	int n;

	for (int spins = 0;; spins++) {
		n = ibv_poll_cq(cq, 1, wc);
		CHECK_OP(n, >=, 0);
		if (n)
			return true;
		if (!end)
			end = tv_ms() + ms;
		else if (tv_ms() >= end)
			return false;
		if (spins > 50)
			tv_relax();
	}
}

void tv_none(struct ibv_cq *cq, int ms)
{
	struct ibv_wc wc;

	if (tv_poll(cq, &wc, ms))
		tv_fail(__FILE__, __LINE__, "unexpected completion: wr_id %#llx, %s", (unsigned long long)wc.wr_id,
			ibv_wc_status_str(wc.status));
}

struct ibv_wc tv_want_at(const char *file, int line, struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	if (!tv_poll(cq, &wc, 10000 * tv_scale()))
		tv_fail(file, line, "no completion of wr_id %#llx within 10 s", (unsigned long long)id);
	if (wc.wr_id != id || wc.status != status)
		tv_fail(file, line, "completion of wr_id %#llx with %s, expected wr_id %#llx with %s",
			(unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status), (unsigned long long)id,
			ibv_wc_status_str(status));
	return wc;
}

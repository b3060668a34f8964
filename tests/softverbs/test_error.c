/* SPDX-License-Identifier: BSD-2-Clause */
/* Completions with an error, and what becomes of both QPs: ibv_poll_cq(3), ibv_modify_qp(3), IB
 * specification 9.9, 10.3. */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

struct rig {
	struct tv_dev d;
	struct tv_end a, b;
};

static void rig_open(struct rig *r, const struct tv_opt *o)
{
	tv_dev_open(&r->d);
	tv_end_open(&r->a, &r->d, o);
	tv_end_open(&r->b, &r->d, o);
	tv_end_join(&r->a, &r->b);
}

static void rig_close(struct rig *r)
{
	tv_end_close(&r->a);
	tv_end_close(&r->b);
	tv_dev_close(&r->d);
}

/* ---------------------------------------------------------------- flush */

/* Every request of both queues is flushed once, in order, unsignaled ones too; a later post is flushed as well. */
static void flush_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r, NULL);
	for (int i = 0; i < 20; i++)
		tv_recv(&r.a, 0, 64, 100 + i);
	/* b has no receives and is asked for ever: these stay. */
	for (int i = 0; i < 10; i++)
		tv_post_flags(&r.a, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, i,
			      i % 3 ? 0 : IBV_SEND_SIGNALED);
	tv_none(r.a.scq, 20);
	tv_end_err(&r.a);
	for (int i = 0; i < 10; i++)
		CHECK_EQ(tv_want(r.a.scq, i, IBV_WC_WR_FLUSH_ERR).qp_num, r.a.qp->qp_num);
	for (int i = 0; i < 20; i++)
		CHECK_EQ(tv_want(r.a.rcq, 100 + i, IBV_WC_WR_FLUSH_ERR).qp_num, r.a.qp->qp_num);
	tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, 50, 0);
	tv_want(r.a.scq, 50, IBV_WC_WR_FLUSH_ERR);
	tv_recv(&r.a, 0, 64, 51);
	if (tv_strict()) /* rxe keeps it */
		tv_want(r.a.rcq, 51, IBV_WC_WR_FLUSH_ERR);
	tv_none(r.a.scq, 10);
	tv_none(r.a.rcq, 10);
	CHECK_EQ(tv_end_state(&r.a), IBV_QPS_ERR);
	CHECK_EQ(tv_end_state(&r.b), IBV_QPS_RTS); /* the peer learns nothing by itself */
	rig_close(&r);
}

/* What was executed before ERR is not flushed: an unsignaled success stays silent, a signaled one is reported. */
static void flush_after_success_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r, NULL);
	tv_recv(&r.b, 0, 64, 1);
	tv_recv(&r.b, 0, 64, 2);
	tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, 1, 0);
	tv_post(&r.a, IBV_WR_RDMA_WRITE, 0, 64, 2);
	tv_ok(r.b.rcq, 1);
	tv_ok(r.a.scq, 2); /* so 1 was executed */
	tv_post(&r.a, IBV_WR_RDMA_WRITE, 0, 64, 3);
	tv_ok(r.a.scq, 3);
	tv_end_err(&r.a);
	tv_end_err(&r.b);
	tv_want(r.b.rcq, 2, IBV_WC_WR_FLUSH_ERR);
	tv_none(r.a.scq, 20);
	rig_close(&r);
}

/* A CQ big enough for a full queue takes a full flush. */
static void flush_full_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct rig r;

	o.cap.max_send_wr = o.cap.max_recv_wr = 1000;
	o.cqe = 2048;
	rig_open(&r, &o);
	for (uint32_t i = 0; i < r.a.cap.max_send_wr && i < 2000; i++)
		tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, i, 0);
	for (uint32_t i = 0; i < r.a.cap.max_recv_wr && i < 2000; i++)
		tv_recv(&r.a, 0, 64, i);
	tv_end_err(&r.a);
	for (uint32_t i = 0; i < r.a.cap.max_send_wr && i < 2000; i++)
		tv_want(r.a.scq, i, IBV_WC_WR_FLUSH_ERR);
	for (uint32_t i = 0; i < r.a.cap.max_recv_wr && i < 2000; i++)
		tv_want(r.a.rcq, i, IBV_WC_WR_FLUSH_ERR);
	rig_close(&r);
}

/* ---------------------------------------------------------------- remote access */

struct bad {
	const char *name;
	enum ibv_wr_opcode op;
	int64_t off;
	uint32_t len;
	unsigned access; /* of the MR aimed at */
	int key;         /* 0 right, 1 wrong, 2 of another PD, 3 deregistered */
};

static const struct bad remote_bad[] = {
    {"write with a wrong key", IBV_WR_RDMA_WRITE, 0, 64, 7, 1},
    {"write of an immediate with a wrong key", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, 7, 1},
    {"read with a wrong key", IBV_WR_RDMA_READ, 0, 64, 7, 1},
    {"write before the start", IBV_WR_RDMA_WRITE, -1, 64, 7, 0},
    {"write past the end", IBV_WR_RDMA_WRITE, 8192 - 63, 64, 7, 0},
    {"write far past the end", IBV_WR_RDMA_WRITE, 1 << 30, 64, 7, 0},
    {"read past the end", IBV_WR_RDMA_READ, 8192 - 63, 64, 7, 0},
    {"write longer than the region", IBV_WR_RDMA_WRITE, 0, 8193, 7, 0},
    {"write without REMOTE_WRITE", IBV_WR_RDMA_WRITE, 0, 64, 5, 0},
    {"write of an immediate without REMOTE_WRITE", IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, 5, 0},
    {"read without REMOTE_READ", IBV_WR_RDMA_READ, 0, 64, 3, 0},
    {"atomic without REMOTE_ATOMIC", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 7, 0},
    {"write by a key of another PD", IBV_WR_RDMA_WRITE, 0, 64, 7, 2},
    {"read by a key of another PD", IBV_WR_RDMA_READ, 0, 64, 7, 2},
    {"write by a deregistered key", IBV_WR_RDMA_WRITE, 0, 64, 7, 3},
    {"write that wraps around", IBV_WR_RDMA_WRITE, INT64_MIN, 64, 7, 0},
};
enum { REMOTE_BAD = sizeof(remote_bad) / sizeof(remote_bad[0]) };

static void victim_role(struct tv_side *s)
{
	for (int i = 0; i < REMOTE_BAD; i++) {
		const struct bad *t = &remote_bad[i];
		struct tv_dev d;
		struct tv_end e;
		struct ibv_pd *pd;
		struct ibv_mr *mr;
		uint8_t *buf = aligned_alloc(4096, 3 * 4096);
		uint32_t rkey;

		tv_dev_open(&d);
		pd = t->key == 2 ? ibv_alloc_pd(d.ctx) : d.pd;
		CHECK(pd);
		tv_end_open(&e, &d, NULL);
		memset(buf, 0x55, 3 * 4096);
		mr = ibv_reg_mr(pd, buf + 2048, 8192, t->access);
		CHECK(mr);
		rkey = t->key == 1 ? mr->rkey ^ 0x5a5a5a : mr->rkey;
		if (t->key == 3)
			CHECK_EQ(ibv_dereg_mr(mr), 0);
		tv_recv(&e, 0, 64, 1);
		tv_end_meet(&e, s);
		tv_put(s->ctl, &(uint64_t){(uintptr_t)buf + 2048}, 8);
		tv_put(s->ctl, &rkey, 4);
		tv_sync(s); /* the requester has its error */
		/* The responder's QP dies with it, and not a byte has moved. */
		tv_end_wait_state(&e, IBV_QPS_ERR);
		if (t->op == IBV_WR_RDMA_WRITE_WITH_IMM) {
			struct ibv_wc wc; /* it may have taken the receive: flushed, or with the access error */

			CHECK(tv_poll(e.rcq, &wc, 10000));
			CHECK_EQ(wc.wr_id, 1);
			CHECK_NE(wc.status, IBV_WC_SUCCESS);
		} else {
			tv_want(e.rcq, 1, IBV_WC_WR_FLUSH_ERR);
		}
		for (int j = 0; j < 3 * 4096; j++)
			CHECK_EQ(buf[j], 0x55);
		if (t->key != 3)
			CHECK_EQ(ibv_dereg_mr(mr), 0);
		tv_end_close(&e);
		if (t->key == 2)
			CHECK_EQ(ibv_dealloc_pd(pd), 0);
		free(buf);
		tv_dev_close(&d);
		tv_sync(s);
	}
}

static void offender_role(struct tv_side *s)
{
	for (int i = 0; i < REMOTE_BAD; i++) {
		const struct bad *t = &remote_bad[i];
		struct ibv_send_wr wr;
		struct ibv_sge sge;
		struct ibv_wc wc;
		struct tv_dev d;
		struct tv_end e;
		uint64_t addr;
		uint32_t rkey;

		tv_dev_open(&d);
		tv_end_open(&e, &d, NULL);
		tv_end_meet(&e, s);
		tv_get(s->ctl, &addr, 8);
		tv_get(s->ctl, &rkey, 4);
		memset(e.buf, 0xaa, e.len);
		tv_wr(&e, &wr, &sge, t->op, 0, t->len, 1);
		if (t->op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr.wr.atomic.remote_addr = addr + t->off;
			wr.wr.atomic.rkey = rkey;
		} else {
			wr.wr.rdma.remote_addr = addr + (uint64_t)t->off;
			wr.wr.rdma.rkey = rkey;
		}
		tv_recv(&e, 0, 8, 3);
		CHECK_EQ(tv_post_wr(&e, &wr), 0);
		tv_post_flags(&e, IBV_WR_RDMA_WRITE, 0, 8, 2, 0);
		CHECK(tv_poll(e.scq, &wc, 10000));
		if (wc.wr_id != 1 || wc.status != IBV_WC_REM_ACCESS_ERR)
			tv_fail(__FILE__, __LINE__, "%s: wr_id %d, %s", t->name, (int)wc.wr_id,
				ibv_wc_status_str(wc.status));
		tv_want(e.scq, 2, IBV_WC_WR_FLUSH_ERR);
		tv_want(e.rcq, 3, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(tv_end_state(&e), IBV_QPS_ERR);
		for (uint32_t j = 0; j < e.len; j++) /* nothing was read either */
			CHECK_EQ(e.buf[j], 0xaa);
		tv_sync(s);
		tv_end_close(&e);
		tv_dev_close(&d);
		tv_sync(s);
	}
}

/* The QP's own access flags forbid, whatever the MR allows: an invalid request by IB, an access error on some devices.
 */
static void qp_access_role(struct tv_side *s)
{
	static const enum ibv_wr_opcode op[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
	struct tv_opt o = tv_defaults;

	for (int k = 0; k < 3; k++) {
		struct ibv_wc wc;
		struct rig r;

		o.qp_access = IBV_ACCESS_LOCAL_WRITE | (k == 1 ? IBV_ACCESS_REMOTE_WRITE : IBV_ACCESS_REMOTE_READ);
		rig_open(&r, &o);
		memset(r.a.buf, 1, 64);
		tv_post(&r.a, op[k], 0, 8, 1);
		CHECK(tv_poll(r.a.scq, &wc, 10000));
		CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR || wc.status == IBV_WC_REM_ACCESS_ERR);
		CHECK_EQ(r.b.buf[0], 0);
		tv_end_wait_state(&r.b, IBV_QPS_ERR);
		rig_close(&r);
	}
}

/* Exactly to the edges is right. "No key is checked of a zero-length operation." */
static void edges_role(struct tv_side *s)
{
	static const enum ibv_wr_opcode op[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct rig r;

	rig_open(&r, NULL);
	for (int k = 0; k < 2; k++) {
		tv_post(&r.a, op[k], 0, r.a.len, 1);
		tv_post(&r.a, op[k], r.a.len - 1, 1, 2);
		tv_post(&r.a, op[k], 0, 1, 3);
		tv_wr(&r.a, &wr, &sge, op[k], 0, 0, 4);
		wr.wr.rdma.rkey = 0;
		wr.wr.rdma.remote_addr = 0;
		CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
		for (int i = 1; i <= 4; i++)
			tv_ok(r.a.scq, i);
	}
	tv_recv(&r.b, 0, 0, 9);
	tv_wr(&r.a, &wr, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 5);
	wr.wr.rdma.rkey = 0;
	wr.wr.rdma.remote_addr = 0;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	tv_ok(r.a.scq, 5);
	CHECK_EQ(tv_ok(r.b.rcq, 9).byte_len, 0);
	rig_close(&r);
}

/* ---------------------------------------------------------------- local protection */

static void local_send_role(struct tv_side *s)
{
	static const enum ibv_wr_opcode op[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};

	/* 0 wrong key, 1 another PD's, 2 past the end, 3 deregistered, 4 a READ into memory without LOCAL_WRITE */
	for (int k = 0; k < 3; k++)
		for (int how = 0; how < 5; how++) {
			struct ibv_send_wr wr;
			struct ibv_sge sge;
			struct ibv_pd *pd;
			struct ibv_mr *mr;
			struct ibv_wc wc;
			struct rig r;

			if (how == 4 && op[k] != IBV_WR_RDMA_READ)
				continue;
			rig_open(&r, NULL);
			tv_recv(&r.b, 0, 64, 9);
			pd = how == 1 ? ibv_alloc_pd(r.d.ctx) : r.d.pd;
			CHECK(pd);
			mr = ibv_reg_mr(pd, r.a.buf, 4096, how == 4 ? 0 : IBV_ACCESS_LOCAL_WRITE);
			CHECK(mr);
			tv_wr(&r.a, &wr, &sge, op[k], 0, 64, 1);
			sge.lkey = how == 0 ? mr->lkey ^ 0x5a5a5a : mr->lkey;
			if (how == 2)
				sge.addr += 4096 - 63;
			if (how == 3)
				CHECK_EQ(ibv_dereg_mr(mr), 0);
			CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
			tv_post(&r.a, IBV_WR_RDMA_WRITE, 0, 8, 2);
			CHECK(tv_poll(r.a.scq, &wc, 10000));
			CHECK_EQ(wc.wr_id, 1);
			/* LOC_QP_OP_ERR: rxe */
			CHECK(wc.status == IBV_WC_LOC_PROT_ERR || (!tv_strict() && wc.status == IBV_WC_LOC_QP_OP_ERR));
			tv_want(r.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
			CHECK_EQ(tv_end_state(&r.a), IBV_QPS_ERR);
			if (how != 3)
				CHECK_EQ(ibv_dereg_mr(mr), 0);
			if (how == 1)
				CHECK_EQ(ibv_dealloc_pd(pd), 0);
			rig_close(&r);
		}
}

/*
 * A receive whose buffer may not be written: an operation error for the sender, a protection error here. 0 wrong key, 1
 * no LOCAL_WRITE, 2 past the end, 3 deregistered
 */
static void local_recv_role(struct tv_side *s)
{
	for (int how = 0; how < 4; how++) {
		struct ibv_recv_wr wr = {.wr_id = 1, .num_sge = 1}, *bad;
		struct ibv_sge sge;
		struct ibv_wc wc;
		struct ibv_mr *mr;
		struct rig r;

		rig_open(&r, NULL);
		mr = ibv_reg_mr(r.d.pd, r.b.buf, 4096, how == 1 ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr);
		sge = (struct ibv_sge){(uintptr_t)r.b.buf + (how == 2 ? 4096 - 63 : 0), 64,
				       mr->lkey ^ (how == 0 ? 0x5a5a5a : 0)};
		wr.sg_list = &sge;
		CHECK_EQ(ibv_post_recv(r.b.qp, &wr, &bad), 0);
		if (how == 3)
			CHECK_EQ(ibv_dereg_mr(mr), 0);
		memset(r.a.buf, 1, 64);
		tv_post(&r.a, IBV_WR_SEND, 0, 64, 1);
		CHECK(tv_poll(r.a.scq, &wc, 10000));
		if (wc.status != IBV_WC_REM_OP_ERR)
			tv_fail(__FILE__, __LINE__, "how %d: %s", how, ibv_wc_status_str(wc.status));
		CHECK(tv_poll(r.b.rcq, &wc, 10000));
		CHECK(wc.status == IBV_WC_LOC_PROT_ERR || wc.status == IBV_WC_LOC_QP_OP_ERR);
		CHECK_EQ(tv_end_state(&r.a), IBV_QPS_ERR);
		tv_end_wait_state(&r.b, IBV_QPS_ERR);
		CHECK_EQ(r.b.buf[0], 0);
		if (how != 3)
			CHECK_EQ(ibv_dereg_mr(mr), 0);
		rig_close(&r);
	}
}

/* ---------------------------------------------------------------- lengths */

/* An invalid request by IB; rxe makes it an operation error. */
static void want_too_long(struct tv_end *e, uint64_t id)
{
	struct ibv_wc wc;

	CHECK(tv_poll(e->scq, &wc, 10000));
	CHECK_EQ(wc.wr_id, id);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR || (!tv_strict() && wc.status == IBV_WC_REM_OP_ERR));
}

static void want_too_short(struct tv_end *e, uint64_t id)
{
	struct ibv_wc wc;

	CHECK(tv_poll(e->rcq, &wc, 10000));
	CHECK_EQ(wc.wr_id, id);
	CHECK(wc.status == IBV_WC_LOC_LEN_ERR || (!tv_strict() && wc.status == IBV_WC_LOC_QP_OP_ERR));
}

static void too_short_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r, NULL);
	tv_recv(&r.b, 0, 63, 1);
	tv_recv(&r.b, 0, 64, 2);
	memset(r.b.buf, 0x33, 128);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 1);
	tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, 2, 0);
	want_too_long(&r.a, 1);
	tv_want(r.a.scq, 2, IBV_WC_WR_FLUSH_ERR);
	want_too_short(&r.b, 1);
	tv_want(r.b.rcq, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQ(r.b.buf[63], 0x33); /* never past the buffer */
	tv_end_wait_state(&r.a, IBV_QPS_ERR);
	tv_end_wait_state(&r.b, IBV_QPS_ERR);
	rig_close(&r);
	/* A receive of length 0 takes an immediate write of any length, not a byte of a send. */
	rig_open(&r, NULL);
	tv_recv(&r.b, 0, 0, 1);
	tv_recv(&r.b, 0, 0, 2);
	tv_post(&r.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 4096, 1);
	CHECK_EQ(tv_ok(r.b.rcq, 1).byte_len, 4096);
	tv_ok(r.a.scq, 1);
	tv_post(&r.a, IBV_WR_SEND, 0, 1, 2);
	want_too_long(&r.a, 2);
	want_too_short(&r.b, 2);
	rig_close(&r);
}

/* One QP's error is its own: its neighbours on the same CQs, PD and MR go on. */
static void neighbours_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_end x, y;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct rig r;

	rig_open(&r, NULL);
	o.scq = r.a.scq;
	o.rcq = r.a.rcq;
	tv_end_open(&x, &r.d, &o);
	o.scq = r.b.scq;
	o.rcq = r.b.rcq;
	tv_end_open(&y, &r.d, &o);
	tv_end_join(&x, &y);
	tv_wr(&r.a, &wr, &sge, IBV_WR_RDMA_WRITE, 0, 8, 1);
	wr.wr.rdma.rkey ^= 0x5a5a5a;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	tv_want(r.a.scq, 1, IBV_WC_REM_ACCESS_ERR);
	tv_end_wait_state(&r.b, IBV_QPS_ERR);
	for (int i = 0; i < 100; i++) {
		tv_recv(&y, 0, 64, i);
		tv_fill(x.buf, 64, i);
		tv_post(&x, IBV_WR_SEND, 0, 64, i);
		CHECK_EQ(tv_ok(r.a.scq, i).qp_num, x.qp->qp_num);
		CHECK_EQ(tv_ok(r.b.rcq, i).qp_num, y.qp->qp_num);
		CHECK_FILL(y.buf, 64, i);
	}
	tv_end_close(&x);
	tv_end_close(&y);
	rig_close(&r);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(flush)
SOLO(flush_after_success)
SOLO(flush_full)
SOLO(qp_access)
SOLO(edges)
SOLO(local_send)
SOLO(local_recv)
SOLO(too_short)
SOLO(neighbours)

static void test_remote_access(void **state)
{
	tv_pair(victim_role, offender_role, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_flush),      cmocka_unit_test(test_flush_after_success),
	    cmocka_unit_test(test_flush_full), cmocka_unit_test(test_remote_access),
	    cmocka_unit_test(test_qp_access),  cmocka_unit_test(test_edges),
	    cmocka_unit_test(test_local_send), cmocka_unit_test(test_local_recv),
	    cmocka_unit_test(test_too_short),  cmocka_unit_test(test_neighbours),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("error", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Shared receive queues: ibv_create_srq(3), ibv_modify_srq(3), ibv_post_srq_recv(3). */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

enum { QPS = 3 };

struct rig {
	struct tv_dev d;
	struct ibv_srq *srq;
	struct ibv_cq *cq; /* of all receivers */
	uint32_t max_wr;
	struct tv_end a[QPS], b[QPS]; /* b[] share the SRQ */
	uint8_t *buf;
	struct ibv_mr *mr;
};

static void rig_open(struct rig *r, uint8_t rnr_retry)
{
	struct ibv_srq_init_attr ia = {.srq_context = r, .attr = {.max_wr = 16, .max_sge = 1}};
	struct tv_opt o = tv_defaults;

	tv_dev_open(&r->d);
	r->srq = ibv_create_srq(r->d.pd, &ia);
	CHECK(r->srq);
	CHECK_OP(ia.attr.max_wr, >=, 16);
	CHECK_OP(ia.attr.max_sge, >=, 1);
	CHECK(r->srq->srq_context == r && r->srq->pd == r->d.pd);
	r->max_wr = ia.attr.max_wr;
	r->cq = ibv_create_cq(r->d.ctx, 1024, NULL, NULL, 0);
	CHECK(r->cq);
	r->buf = aligned_alloc(4096, 65536);
	r->mr = ibv_reg_mr(r->d.pd, r->buf, 65536, IBV_ACCESS_LOCAL_WRITE);
	CHECK(r->mr);
	o.rnr_retry = rnr_retry;
	o.min_rnr_timer = 1;
	for (int i = 0; i < QPS; i++) {
		o.srq = NULL;
		o.rcq = NULL;
		tv_end_open(&r->a[i], &r->d, &o);
		o.srq = r->srq;
		o.rcq = r->cq;
		tv_end_open(&r->b[i], &r->d, &o);
		tv_end_join(&r->a[i], &r->b[i]);
	}
}

static void rig_close(struct rig *r)
{
	for (int i = 0; i < QPS; i++) {
		tv_end_close(&r->a[i]);
		if (r->b[i].qp)
			tv_end_close(&r->b[i]);
	}
	CHECK_EQ(ibv_destroy_srq(r->srq), 0);
	CHECK_EQ(ibv_destroy_cq(r->cq), 0);
	CHECK_EQ(ibv_dereg_mr(r->mr), 0);
	free(r->buf);
	tv_dev_close(&r->d);
}

static int post(struct rig *r, int slot)
{
	struct ibv_sge sge = {(uintptr_t)r->buf + slot * 64, 64, r->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
	int rc = ibv_post_srq_recv(r->srq, &wr, &bad);

	if (rc)
		CHECK(bad == &wr);
	return rc;
}

static void share_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r, 7);
	for (int i = 0; i < 12; i++)
		CHECK_EQ(post(&r, i), 0);
	/* Taken in order of posting, whoever receives; the completion names the QP. */
	for (int i = 0; i < 12; i++) {
		struct tv_end *a = &r.a[i % QPS], *b = &r.b[i % QPS];
		struct ibv_wc wc;

		tv_fill(a->buf, 64, i);
		tv_post(a, i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, i);
		tv_ok(a->scq, i);
		wc = tv_ok(r.cq, i);
		CHECK_EQ(wc.qp_num, b->qp->qp_num);
		CHECK_EQ(wc.byte_len, 64);
		CHECK_FILL(i % 2 ? r.buf + i * 64 : b->buf, 64, i);
	}
	/* Empty: receiver not ready, until somebody posts. */
	tv_post(&r.a[1], IBV_WR_SEND, 0, 64, 50);
	tv_none(r.a[1].scq, 20);
	CHECK_EQ(post(&r, 3), 0);
	tv_ok(r.a[1].scq, 50);
	CHECK_EQ(tv_ok(r.cq, 3).qp_num, r.b[1].qp->qp_num);
	CHECK_EQ(ibv_destroy_srq(r.srq), EBUSY);
	rig_close(&r);
}

static void full_role(struct tv_side *s)
{
	struct rig r;
	struct ibv_srq_attr attr;
	uint32_t n = 0;
	int rc;

	rig_open(&r, 0);
	while ((rc = post(&r, n % 64)) == 0) {
		n++;
		CHECK_OP(n, <=, tv_strict() ? r.max_wr : 4 * r.max_wr); /* rxe's queues hold more than they say */
	}
	CHECK_EQ(rc, ENOMEM);
	CHECK_OP(n, >=, r.max_wr);
	CHECK_EQ(ibv_query_srq(r.srq, &attr), 0);
	CHECK_OP(attr.max_wr, >=, r.max_wr);
	CHECK_EQ(attr.srq_limit, 0);
	tv_post(&r.a[0], IBV_WR_SEND, 0, 8, 1);
	tv_ok(r.cq, 0);
	CHECK_EQ(post(&r, 0), 0);
	CHECK_EQ(post(&r, 0), ENOMEM);
	/* The QP's own receive queue is not used. */
	if (tv_strict())
		CHECK_NE(tv_try_recv(&r.b[0], 0, 8, 1), 0);
	rig_close(&r);
}

static void rnr_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r, 0);
	CHECK_EQ(post(&r, 0), 0);
	tv_post(&r.a[0], IBV_WR_SEND, 0, 8, 1);
	tv_ok(r.a[0].scq, 1);
	tv_ok(r.cq, 0);
	tv_post(&r.a[1], IBV_WR_SEND, 0, 8, 2); /* another one's appetite starves this one */
	tv_want(r.a[1].scq, 2, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK_EQ(tv_end_state(&r.a[0]), IBV_QPS_RTS);
	rig_close(&r);
}

static bool async_is(struct rig *r, enum ibv_event_type type, int ms)
{
	struct ibv_async_event ev;

	while (tv_readable(r->d.ctx->async_fd, ms)) {
		CHECK_EQ(ibv_get_async_event(r->d.ctx, &ev), 0);
		ibv_ack_async_event(&ev);
		if (ev.event_type == IBV_EVENT_COMM_EST)
			continue;
		CHECK_EQ(ev.event_type, type);
		if (type == IBV_EVENT_SRQ_LIMIT_REACHED)
			CHECK(ev.element.srq == r->srq);
		return true;
	}
	return false;
}

static void limit_role(struct tv_side *s)
{
	struct ibv_srq_attr attr = {.srq_limit = 5};
	struct rig r;

	rig_open(&r, 7);
	for (int i = 0; i < 10; i++)
		CHECK_EQ(post(&r, i), 0);
	CHECK_EQ(ibv_modify_srq(r.srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_EQ(ibv_query_srq(r.srq, &attr), 0);
	CHECK_EQ(attr.srq_limit, 5);
	for (int i = 0; i < 5; i++) { /* 5 are left, which is not below the limit */
		tv_post(&r.a[0], IBV_WR_SEND, 0, 8, i);
		tv_ok(r.cq, i);
		tv_ok(r.a[0].scq, i);
	}
	CHECK(!async_is(&r, IBV_EVENT_SRQ_LIMIT_REACHED, 30));
	tv_post(&r.a[2], IBV_WR_SEND, 0, 8, 5);
	tv_ok(r.cq, 5);
	CHECK(async_is(&r, IBV_EVENT_SRQ_LIMIT_REACHED, 10000));
	/* Once: it is disarmed, and says so. */
	CHECK_EQ(ibv_query_srq(r.srq, &attr), 0);
	CHECK_EQ(attr.srq_limit, 0);
	tv_post(&r.a[2], IBV_WR_SEND, 0, 8, 6);
	tv_ok(r.cq, 6);
	CHECK(!async_is(&r, IBV_EVENT_SRQ_LIMIT_REACHED, 30));
	attr.srq_limit = r.max_wr + 1;
	if (tv_strict())
		CHECK_NE(ibv_modify_srq(r.srq, &attr, IBV_SRQ_LIMIT), 0);
	rig_close(&r);
}

/* A QP on an SRQ that goes to ERR says when it will take nothing any more; the SRQ's receives are not flushed. */
static void last_wqe_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct rig r;

	if (!tv_strict())
		tv_skip("rxe tells of no last WQE");
	rig_open(&r, 7);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(post(&r, i), 0);
	tv_post(&r.a[0], IBV_WR_SEND, 0, 8, 1);
	tv_ok(r.cq, 0);
	tv_end_err(&r.b[0]);
	do {
		CHECK(tv_readable(r.d.ctx->async_fd, 10000));
		CHECK_EQ(ibv_get_async_event(r.d.ctx, &ev), 0);
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_COMM_EST);
	CHECK_EQ(ev.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(ev.element.qp == r.b[0].qp);
	tv_none(r.cq, 20);
	/* The others have them. */
	for (int i = 1; i < 4; i++) {
		tv_post(&r.a[1], IBV_WR_SEND, 0, 8, i);
		CHECK_EQ(tv_ok(r.cq, i).qp_num, r.b[1].qp->qp_num);
	}
	/* Destroying a QP takes no receive with it either. */
	CHECK_EQ(post(&r, 7), 0);
	tv_end_close(&r.b[1]);
	r.b[1].qp = NULL;
	tv_post(&r.a[2], IBV_WR_SEND, 0, 8, 9);
	CHECK_EQ(tv_ok(r.cq, 7).qp_num, r.b[2].qp->qp_num);
	rig_close(&r);
}

/* ---------------------------------------------------------------- two processes */

enum { MESSAGES = 5000 };

static void srq_server(struct tv_side *s)
{
	struct ibv_srq_init_attr ia = {.attr = {.max_wr = 32, .max_sge = 1}};
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e[2];
	struct ibv_srq *srq;
	struct ibv_recv_wr *bad;
	uint32_t next[2] = {0, 0};
	uint8_t *buf = aligned_alloc(4096, 8192);
	struct ibv_mr *mr;

	tv_dev_open(&d);
	srq = ibv_create_srq(d.pd, &ia);
	mr = ibv_reg_mr(d.pd, buf, 8192, IBV_ACCESS_LOCAL_WRITE);
	o.rcq = ibv_create_cq(d.ctx, 512, NULL, NULL, 0);
	CHECK(srq && mr && o.rcq);
	o.srq = srq;
	o.min_rnr_timer = 1;
	for (int i = 0; i < 2; i++) {
		tv_end_open(&e[i], &d, &o);
		tv_end_meet(&e[i], s);
	}
	for (int i = 0, posted = 0; i < MESSAGES; i++) {
		struct ibv_wc wc;
		int from;

		/* Rarely more than a few: senders meet an empty queue all the time. */
		for (; posted < i + 1 + i % 6 && posted < MESSAGES; posted++) {
			struct ibv_sge sge = {(uintptr_t)buf + posted % 64 * 64, 64, mr->lkey};
			struct ibv_recv_wr wr = {.wr_id = posted % 64, .sg_list = &sge, .num_sge = 1};

			CHECK_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
		}
		CHECK(tv_poll(o.rcq, &wc, 10000));
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		from = wc.qp_num == e[1].qp->qp_num;
		CHECK_EQ(wc.qp_num, e[from].qp->qp_num);
		CHECK_EQ(ntohl(wc.imm_data), next[from]);
		CHECK_FILL(buf + wc.wr_id * 64, 64, next[from] + 7 * from);
		next[from]++;
	}
	CHECK_EQ(next[0] + next[1], MESSAGES);
	tv_sync(s);
	for (int i = 0; i < 2; i++)
		tv_end_close(&e[i]);
	CHECK_EQ(ibv_destroy_srq(srq), 0);
	CHECK_EQ(ibv_destroy_cq(o.rcq), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	free(buf);
	tv_dev_close(&d);
}

static void srq_client(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e[2];
	uint32_t done[2] = {0, 0}, sent[2] = {0, 0};

	tv_dev_open(&d);
	for (int i = 0; i < 2; i++) {
		tv_end_open(&e[i], &d, NULL);
		tv_end_meet(&e[i], s);
	}
	for (; done[0] + done[1] < MESSAGES; tv_relax()) {
		for (int q = 0; q < 2; q++) {
			struct ibv_wc wc;

			while (sent[q] - done[q] < 8 && sent[q] < MESSAGES / 2) {
				size_t off = sent[q] % 8 * 64;

				tv_fill(e[q].buf + off, 64, sent[q] + 7 * q);
				tv_post(&e[q], IBV_WR_SEND_WITH_IMM, off, 64, sent[q]++);
			}
			while (ibv_poll_cq(e[q].scq, 1, &wc) == 1) {
				CHECK_EQ(wc.status, IBV_WC_SUCCESS);
				CHECK_EQ(wc.wr_id, done[q]);
				done[q]++;
			}
		}
	}
	tv_sync(s);
	for (int i = 0; i < 2; i++)
		tv_end_close(&e[i]);
	tv_dev_close(&d);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(share)
SOLO(full)
SOLO(rnr)
SOLO(limit)
SOLO(last_wqe)

static void test_processes(void **state)
{
	tv_pair(srq_server, srq_client, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_share), cmocka_unit_test(test_full),     cmocka_unit_test(test_rnr),
	    cmocka_unit_test(test_limit), cmocka_unit_test(test_last_wqe), cmocka_unit_test(test_processes),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("srq", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Receiver not ready: rnr_retry of the requester, min_rnr_timer of the responder. A count of n means n retries after
 * the first refusal, each at least the responder's timer later; 7 means for ever.
 */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

static void open_pair(struct tv_dev *d, struct tv_end *a, struct tv_end *b, uint8_t retry, uint8_t timer)
{
	struct tv_opt o = tv_defaults;

	o.rnr_retry = retry;
	o.min_rnr_timer = timer;
	tv_dev_open(d);
	tv_end_open(a, d, &o);
	tv_end_open(b, d, &o);
	tv_end_join(a, b);
}

static void close_pair(struct tv_dev *d, struct tv_end *a, struct tv_end *b)
{
	tv_end_close(a);
	tv_end_close(b);
	tv_dev_close(d);
}

static const enum ibv_wr_opcode consuming[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM};

static void zero_role(struct tv_side *s)
{
	for (int k = 0; k < 3; k++) {
		struct tv_dev d;
		struct tv_end a, b;

		open_pair(&d, &a, &b, 0, 1);
		tv_recv(&b, 0, 64, 1);
		tv_post(&a, consuming[k], 0, 64, 1); /* this one finds a receive */
		tv_ok(a.scq, 1);
		tv_ok(b.rcq, 1);
		tv_post(&a, consuming[k], 0, 64, 2);
		tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 3);
		tv_want(a.scq, 2, IBV_WC_RNR_RETRY_EXC_ERR);
		tv_want(a.scq, 3, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(tv_end_state(&a), IBV_QPS_ERR);
		close_pair(&d, &a, &b);
	}
}

static void counted_role(struct tv_side *s)
{
	/* Timer 24 is 40.96 ms: three waits are 122.88. */
	struct tv_dev d;
	struct tv_end a, b;
	uint64_t t0, t;

	open_pair(&d, &a, &b, 3, 24);
	t0 = tv_ms();
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_want(a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	t = tv_ms() - t0;
	CHECK_OP(t, >=, 122);
	CHECK_OP(t, <, 5000);
	CHECK_EQ(tv_end_state(&a), IBV_QPS_ERR);
	close_pair(&d, &a, &b);
}

/* A receive that comes between two retries saves the message, and the count starts anew for the next one. */
static void saved_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;
	struct ibv_wc wc;

	open_pair(&d, &a, &b, 3, 24);
	for (int i = 0; i < 3; i++) {
		tv_fill(a.buf, 64, i);
		tv_post(&a, IBV_WR_SEND, 0, 64, i);
		CHECK(!tv_poll(a.scq, &wc, 60)); /* past the first retry, before the last */
		tv_recv(&b, 0, 64, 10 + i);
		tv_ok(a.scq, i);
		tv_ok(b.rcq, 10 + i);
		CHECK_FILL(b.buf, 64, i);
	}
	close_pair(&d, &a, &b);
}

static void forever_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;

	/* Timer 1 is 10 us: hundreds of retries pass. */
	open_pair(&d, &a, &b, 7, 1);
	tv_fill(a.buf, 64, 1);
	for (int i = 0; i < 5; i++)
		tv_post(&a, consuming[i % 3], 0, 64, i);
	tv_post(&a, IBV_WR_RDMA_WRITE, 1024, 64, 5);
	tv_none(a.scq, 300);
	CHECK_EQ(b.buf[1024], 0); /* RC is in order: what waits behind a refused message has not been executed */
	for (int i = 0; i < 5; i++) {
		tv_recv(&b, 0, 64, i);
		tv_ok(a.scq, i);
		tv_ok(b.rcq, i);
		CHECK_FILL(b.buf, 64, 1);
		if (i < 4)
			tv_none(a.scq, 5);
	}
	tv_ok(a.scq, 5);
	close_pair(&d, &a, &b);
}

/* The responder's timer counts, and may be changed in RTS. */
static void timer_role(struct tv_side *s)
{
	struct ibv_qp_attr attr = {.min_rnr_timer = 1};
	struct tv_dev d;
	struct tv_end a, b;
	uint64_t t0;

	open_pair(&d, &a, &b, 1, 28);                                  /* 163.84 ms */
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_MIN_RNR_TIMER), 0); /* the requester's own: no effect */
	t0 = tv_ms();
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_want(a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK_OP(tv_ms() - t0, >=, 163);
	close_pair(&d, &a, &b);
	open_pair(&d, &a, &b, 1, 31); /* 491.52 ms */
	CHECK_EQ(ibv_modify_qp(b.qp, &attr, IBV_QP_MIN_RNR_TIMER), 0);
	t0 = tv_ms();
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_want(a.scq, 1, IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK_OP(tv_ms() - t0, <, 400 * tv_scale());
	close_pair(&d, &a, &b);
}

/* Plain writes, reads and atomics need no receive. */
static void unaffected_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;

	open_pair(&d, &a, &b, 0, 1);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 4096, 1);
	tv_post(&a, IBV_WR_RDMA_READ, 0, 4096, 2);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 0, 3);
	tv_ok(a.scq, 1);
	tv_ok(a.scq, 2);
	tv_ok(a.scq, 3);
	close_pair(&d, &a, &b);
}

/* Two processes: the receiver posts only when told that the sender is stuck, and polls rarely. */
enum { BURST = 500 };

static void late_sender(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	o.min_rnr_timer = 1;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	for (int i = 0; i < BURST + 24; i++) {
		if (i >= 24)
			tv_ok(e.scq, i - 24);
		if (i < BURST) {
			tv_fill(e.buf + i % 32 * 64, 64, i);
			tv_post(&e, IBV_WR_SEND, i % 32 * 64, 64, i);
		}
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void late_receiver(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	int got = 0;

	o.min_rnr_timer = 1;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	while (got < BURST) {
		int n = got % 7 + 1 < BURST - got ? got % 7 + 1 : BURST - got;

		if (got % 50 == 0)
			tv_none(e.rcq, 3); /* nothing was posted: nothing can come */
		for (int i = 0; i < n; i++)
			tv_recv(&e, i * 64, 64, got + i);
		for (int i = 0; i < n; i++) {
			tv_ok(e.rcq, got + i);
			CHECK_FILL(e.buf + i * 64, 64, got + i);
		}
		got += n;
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* The receiver posts and goes away to do something else: the message must arrive without any call of its. */
static void absent_receiver(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	tv_sync(s); /* the sender has posted, and waits */
	tv_recv(&e, 0, 64, 1);
	tv_sync(s); /* comes once the sender has its completion: this side polls nothing meanwhile */
	tv_ok(e.rcq, 1);
	CHECK_FILL(e.buf, 64, 8);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void patient_sender(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	tv_fill(e.buf, 64, 8);
	tv_post(&e, IBV_WR_SEND, 0, 64, 1);
	tv_none(e.scq, 20);
	tv_sync(s);
	tv_ok(e.scq, 1);
	tv_sync(s);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* The sender sleeps on its channel while it waits for the receiver: a timer or the receiver must wake it. */
static void sleeping_sender(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_cq *cq;
	void *ctx;

	o.channel = true;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	tv_fill(e.buf, 64, 8);
	CHECK_EQ(ibv_req_notify_cq(e.scq, 0), 0);
	tv_post(&e, IBV_WR_SEND, 0, 64, 1);
	tv_sync(s);
	CHECK_EQ(ibv_get_cq_event(e.chan, &cq, &ctx), 0);
	ibv_ack_cq_events(cq, 1);
	tv_ok(e.scq, 1);
	tv_sync(s);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(zero)
SOLO(counted)
SOLO(saved)
SOLO(forever)
SOLO(timer)
SOLO(unaffected)

static void test_late(void **state)
{
	tv_pair(late_sender, late_receiver, 30);
}

static void test_absent(void **state)
{
	tv_pair(absent_receiver, patient_sender, 20);
}

static void test_sleeping(void **state)
{
	tv_pair(absent_receiver, sleeping_sender, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_zero),    cmocka_unit_test(test_counted), cmocka_unit_test(test_saved),
	    cmocka_unit_test(test_forever), cmocka_unit_test(test_timer),   cmocka_unit_test(test_unaffected),
	    cmocka_unit_test(test_late),    cmocka_unit_test(test_absent),  cmocka_unit_test(test_sleeping),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("rnr", tests, NULL, NULL);
}

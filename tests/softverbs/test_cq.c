/* SPDX-License-Identifier: BSD-2-Clause */
/* Completion queues and channels: ibv_create_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3), ibv_resize_cq(3). */
#include "tv.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>

#define QUIET_MS 50 /* how long "nothing comes" is watched */

static void no_event(struct ibv_comp_channel *ch)
{
	CHECK(!tv_readable(ch->fd, QUIET_MS));
}

static void take_event(struct ibv_comp_channel *ch, struct ibv_cq *cq, void *cq_context)
{
	struct ibv_cq *got = NULL;
	void *ctx = NULL;

	CHECK(tv_readable(ch->fd, 10000));
	CHECK_EQ(ibv_get_cq_event(ch, &got, &ctx), 0);
	CHECK(got == cq);
	CHECK(ctx == cq_context);
	ibv_ack_cq_events(got, 1);
}

static void create_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	int marker;

	tv_dev_open(&d);
	ch = ibv_create_comp_channel(d.ctx);
	CHECK(ch);
	for (int n = 1; n <= 4096; n *= 4) {
		cq = ibv_create_cq(d.ctx, n, &marker, ch, d.ctx->num_comp_vectors - 1);
		CHECK(cq);
		CHECK_OP(cq->cqe, >=, n);
		CHECK(cq->cq_context == &marker && cq->channel == ch && cq->context == d.ctx);
		/* "fails if any CQs are still associated" */
		CHECK_EQ(ibv_destroy_comp_channel(ch), EBUSY);
		CHECK_EQ(ibv_destroy_cq(cq), 0);
	}
	CHECK(!ibv_create_cq(d.ctx, d.attr.max_cqe + 1, NULL, NULL, 0));
	CHECK(!ibv_create_cq(d.ctx, 16, NULL, ch, d.ctx->num_comp_vectors));
	CHECK(!ibv_create_cq(d.ctx, 16, NULL, ch, -1));
	CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
	/* "fails if any queue pair is still associated" */
	tv_end_open(&e, &d, NULL);
	CHECK_EQ(ibv_destroy_cq(e.scq), EBUSY);
	CHECK_EQ(ibv_destroy_cq(e.rcq), EBUSY);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* One process with two joined ends, both queues of each on its own channel. */
struct rig {
	struct tv_dev d;
	struct tv_end a, b;
};

static void rig_open(struct rig *r)
{
	struct tv_opt o = tv_defaults;

	o.channel = true;
	tv_dev_open(&r->d);
	tv_end_open(&r->a, &r->d, &o);
	tv_end_open(&r->b, &r->d, &o);
	tv_end_join(&r->a, &r->b);
}

static void rig_close(struct rig *r)
{
	tv_end_close(&r->a);
	tv_end_close(&r->b);
	tv_dev_close(&r->d);
}

static void one_shot_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r);
	for (int i = 0; i < 4; i++)
		tv_recv(&r.b, 0, 64, i);
	/* Not armed: no event. */
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 1);
	tv_ok(r.b.rcq, 0);
	no_event(r.b.chan);
	/* Armed: one event for any number of completions. */
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 0), 0);
	no_event(r.b.chan);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 2);
	take_event(r.b.chan, r.b.rcq, &r.b);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 3);
	tv_ok(r.b.rcq, 1);
	tv_ok(r.b.rcq, 2);
	no_event(r.b.chan);
	/* Armed twice is armed once. */
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 0), 0);
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 0), 0);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 4);
	take_event(r.b.chan, r.b.rcq, &r.b);
	tv_ok(r.b.rcq, 3);
	no_event(r.b.chan);
	/* Send completions make events too. */
	for (int i = 1; i <= 4; i++)
		tv_ok(r.a.scq, i);
	CHECK_EQ(ibv_req_notify_cq(r.a.scq, 0), 0);
	tv_post(&r.a, IBV_WR_RDMA_WRITE, 0, 64, 5);
	take_event(r.a.chan, r.a.scq, &r.a);
	tv_ok(r.a.scq, 5);
	rig_close(&r);
}

/* The sleeper's loop of the man page, with the peer in another process: no completion may be slept through. */
enum { ROUNDS = 3000 };

static void sleeper_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_wc wc;
	int got = 0;

	o.channel = true;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	for (int i = 0; i < 32; i++)
		tv_recv(&e, 0, 64, i);
	CHECK_EQ(ibv_req_notify_cq(e.rcq, 0), 0);
	tv_end_meet(&e, s);
	while (got < ROUNDS) {
		take_event(e.chan, e.rcq, &e);
		CHECK_EQ(ibv_req_notify_cq(e.rcq, 0), 0);
		while (ibv_poll_cq(e.rcq, 1, &wc) == 1) {
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			CHECK_EQ(ntohl(wc.imm_data), got);
			got++;
			tv_recv(&e, 0, 64, 0);
			if (got % 3 == 0) /* the peer waits for some, so that both sleep often */
				tv_put(s->ctl, &got, sizeof(got));
		}
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void waker_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	int seen;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	for (int i = 0; i < ROUNDS; i++) {
		tv_post(&e, i % 2 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM, 0, i % 64, i);
		tv_ok(e.scq, i);
		if (i % 3 == 2) {
			tv_get(s->ctl, &seen, sizeof(seen));
			CHECK_EQ(seen, i + 1);
		}
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void solicited_role(struct tv_side *s)
{
	struct rig r;

	rig_open(&r);
	for (int i = 0; i < 8; i++)
		tv_recv(&r.b, 0, 64, i);
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 1), 0);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 0);
	tv_post(&r.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, 1);
	tv_ok(r.b.rcq, 0);
	tv_ok(r.b.rcq, 1);
	no_event(r.b.chan);
	/* Still armed. */
	tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, 2, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	take_event(r.b.chan, r.b.rcq, &r.b);
	tv_ok(r.b.rcq, 2);
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 1), 0);
	tv_post_flags(&r.a, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, 3, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	take_event(r.b.chan, r.b.rcq, &r.b);
	tv_ok(r.b.rcq, 3);
	/* A successful send completion is unsolicited. */
	for (int i = 0; i < 4; i++)
		tv_ok(r.a.scq, i);
	CHECK_EQ(ibv_req_notify_cq(r.a.scq, 1), 0);
	tv_post_flags(&r.a, IBV_WR_SEND, 0, 64, 4, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED);
	tv_ok(r.a.scq, 4);
	tv_ok(r.b.rcq, 4);
	no_event(r.a.chan);
	/* Armed for solicited, then for all: all wins. */
	CHECK_EQ(ibv_req_notify_cq(r.a.scq, 0), 0);
	tv_post(&r.a, IBV_WR_SEND, 0, 64, 5);
	take_event(r.a.chan, r.a.scq, &r.a);
	tv_ok(r.a.scq, 5);
	tv_ok(r.b.rcq, 5);
	/* "or if the status is not successful": flushed receives. */
	CHECK_EQ(ibv_req_notify_cq(r.b.rcq, 1), 0);
	tv_end_err(&r.b);
	take_event(r.b.chan, r.b.rcq, &r.b);
	tv_want(r.b.rcq, 6, IBV_WC_WR_FLUSH_ERR);
	tv_want(r.b.rcq, 7, IBV_WC_WR_FLUSH_ERR);
	rig_close(&r);
}

static void shared_channel_role(struct tv_side *s)
{
	enum { N = 5 };
	struct tv_opt o = tv_defaults;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq[N], *got;
	struct tv_end a[N], b[N];
	struct tv_dev d;
	void *ctx;
	unsigned seen = 0;

	tv_dev_open(&d);
	ch = ibv_create_comp_channel(d.ctx);
	CHECK(ch);
	tv_nonblock(ch->fd);
	for (int i = 0; i < N; i++) {
		cq[i] = ibv_create_cq(d.ctx, 64, &cq[i], ch, 0);
		CHECK(cq[i]);
		tv_end_open(&a[i], &d, NULL);
		o.rcq = cq[i];
		tv_end_open(&b[i], &d, &o);
		tv_end_join(&a[i], &b[i]);
		tv_recv(&b[i], 0, 64, i);
		CHECK_EQ(ibv_req_notify_cq(cq[i], 0), 0);
	}
	errno = 0;
	CHECK_EQ(ibv_get_cq_event(ch, &got, &ctx), -1);
	CHECK_EQ(errno, EAGAIN);
	for (int i = 0; i < N; i++)
		tv_post(&a[i], IBV_WR_SEND, 0, 64, i);
	/* One event a CQ, each naming its own; nothing is lost when all come before the first get. */
	for (int i = 0; i < N; i++)
		tv_ok(cq[i], i);
	for (int i = 0; i < N; i++) {
		CHECK(tv_readable(ch->fd, 10000));
		CHECK_EQ(ibv_get_cq_event(ch, &got, &ctx), 0);
		CHECK(ctx >= (void *)&cq[0] && ctx <= (void *)&cq[N - 1]);
		CHECK(*(struct ibv_cq **)ctx == got);
		CHECK(!(seen & 1u << ((struct ibv_cq **)ctx - cq)));
		seen |= 1u << ((struct ibv_cq **)ctx - cq);
		ibv_ack_cq_events(got, 1);
	}
	CHECK_EQ(seen, (1u << N) - 1);
	CHECK(!tv_readable(ch->fd, 0));
	CHECK_EQ(ibv_get_cq_event(ch, &got, &ctx), -1);
	for (int i = 0; i < N; i++) {
		tv_end_close(&a[i]);
		tv_end_close(&b[i]);
		CHECK_EQ(ibv_destroy_cq(cq[i]), 0);
	}
	CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
	tv_dev_close(&d);
}

static int destroyed;

static void *destroy_thread(void *cq)
{
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	__atomic_store_n(&destroyed, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* "destroying a CQ will wait for all completion events to be acknowledged" */
static void ack_role(struct tv_side *s)
{
	struct rig r;
	struct ibv_cq *cq, *got;
	struct ibv_comp_channel *ch;
	struct tv_opt o = tv_defaults;
	pthread_t t;
	void *ctx;

	rig_open(&r);
	ch = ibv_create_comp_channel(r.d.ctx);
	cq = ibv_create_cq(r.d.ctx, 64, NULL, ch, 0);
	CHECK(ch && cq);
	tv_end_close(&r.a);
	o.scq = cq;
	tv_end_open(&r.a, &r.d, &o);
	tv_end_close(&r.b);
	tv_end_open(&r.b, &r.d, NULL);
	tv_end_join(&r.a, &r.b);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
		tv_post(&r.a, IBV_WR_RDMA_WRITE, 0, 64, i);
		CHECK_EQ(ibv_get_cq_event(ch, &got, &ctx), 0); /* blocks */
		CHECK(got == cq);
		tv_ok(cq, i);
	}
	tv_end_close(&r.a);
	CHECK_EQ(pthread_create(&t, NULL, destroy_thread, cq), 0);
	ibv_ack_cq_events(cq, 2);
	CHECK(!tv_readable(ch->fd, 100)); /* time for a destroy that does not wait */
	CHECK_EQ(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 0);
	ibv_ack_cq_events(cq, 1);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(destroyed, 1);
	CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
	tv_end_close(&r.b);
	tv_dev_close(&r.d);
}

/* An event that nobody took does not outlive its CQ. */
static void stale_event_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_comp_channel *ch;
	struct ibv_cq *cq;
	struct tv_dev d;
	struct tv_end a, b;

	tv_dev_open(&d);
	ch = ibv_create_comp_channel(d.ctx);
	cq = ibv_create_cq(d.ctx, 64, NULL, ch, 0);
	CHECK(ch && cq);
	o.scq = cq;
	tv_end_open(&a, &d, &o);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	CHECK(tv_readable(ch->fd, 10000));
	tv_end_close(&a);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	if (tv_strict())
		CHECK(!tv_readable(ch->fd, QUIET_MS));
	CHECK_EQ(ibv_destroy_comp_channel(ch), 0);
	tv_end_close(&b);
	tv_dev_close(&d);
}

/*
 * Providers of rdma-core remove a destroyed QP's completions from a CQ that lives on (rxe does not): the QP number may
 * be reused. Whatever is left must be of the living QP.
 */
static void stale_completion_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_cq *cq;
	struct tv_dev d;
	struct tv_end a, b, c;

	tv_dev_open(&d);
	cq = ibv_create_cq(d.ctx, 256, NULL, NULL, 0);
	CHECK(cq);
	o.scq = o.rcq = cq;
	tv_end_open(&a, &d, &o);
	tv_end_open(&b, &d, NULL);
	tv_end_open(&c, &d, &o);
	tv_end_join(&a, &b);
	tv_recv(&a, 0, 64, 50);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_end_err(&a); /* 1 and 50 are in the CQ now or never */
	tv_end_close(&a);
	tv_recv(&c, 0, 64, 60);
	tv_end_err(&c);
	if (tv_strict())
		CHECK_EQ(tv_want(cq, 60, IBV_WC_WR_FLUSH_ERR).qp_num, c.qp->qp_num);
	tv_end_close(&b);
	tv_end_close(&c);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	tv_dev_close(&d);
}

static void resize_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end a, b;
	struct ibv_cq *cq;
	int rc;

	tv_dev_open(&d);
	cq = ibv_create_cq(d.ctx, 32, NULL, NULL, 0);
	CHECK(cq);
	o.scq = cq;
	tv_end_open(&a, &d, &o);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	for (int i = 0; i < 20; i++)
		tv_post(&a, IBV_WR_RDMA_WRITE, 0, 8, i);
	tv_ok(cq, 0); /* and the rest follows in order, whatever the size becomes */
	rc = ibv_resize_cq(cq, 200);
	if (rc == ENOSYS || rc == EOPNOTSUPP)
		tv_skip("this provider cannot resize a CQ");
	CHECK_EQ(rc, 0);
	CHECK_OP(cq->cqe, >=, 200);
	for (int i = 1; i < 10; i++)
		tv_ok(cq, i);
	CHECK_NE(ibv_resize_cq(cq, d.attr.max_cqe + 1), 0);
	CHECK_OP(cq->cqe, >=, 200);
	/* "cqe must be at least the number of unpolled entries": 10 of them once all writes are done. */
	for (int i = 20; i < 28; i++)
		tv_post(&a, IBV_WR_RDMA_WRITE, 0, 8, i);
	CHECK_EQ(ibv_resize_cq(cq, 64), 0);
	CHECK_OP(cq->cqe, >=, 64);
	for (int i = 10; i < 28; i++)
		tv_ok(cq, i);
	tv_none(cq, 10);
	tv_end_close(&a);
	tv_end_close(&b);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	tv_dev_close(&d);
}

/* "In case of a CQ overrun, the async event IBV_EVENT_CQ_ERR will be triggered, and the CQ cannot be used." */
static void overrun_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_async_event ev;
	struct ibv_cq *cq;
	struct tv_dev d;
	struct tv_end a, b, c, f;

	tv_dev_open(&d);
	cq = ibv_create_cq(d.ctx, 8, NULL, NULL, 0);
	CHECK(cq);
	o.scq = cq;
	o.cap.max_send_wr = cq->cqe + 16;
	tv_end_open(&a, &d, &o);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	tv_end_open(&c, &d, NULL);
	tv_end_open(&f, &d, NULL);
	tv_end_join(&c, &f);
	for (int i = 0; i <= cq->cqe + 2; i++)
		tv_post(&a, IBV_WR_RDMA_WRITE, 0, 8, i);
	do { /* QP_FATAL of the QP may come as well, in any order */
		CHECK(tv_readable(d.ctx->async_fd, 10000));
		CHECK_EQ(ibv_get_async_event(d.ctx, &ev), 0);
		ibv_ack_async_event(&ev);
	} while (ev.event_type == IBV_EVENT_QP_FATAL);
	CHECK_EQ(ev.event_type, IBV_EVENT_CQ_ERR);
	CHECK(ev.element.cq == cq);
	if (tv_strict()) /* rxe leaves the QP as it is */
		tv_end_wait_state(&a, IBV_QPS_ERR);
	/* Others are not touched. */
	tv_post(&c, IBV_WR_RDMA_WRITE, 0, 8, 1);
	tv_ok(c.scq, 1);
	tv_end_close(&c);
	tv_end_close(&f);
	tv_end_close(&a);
	tv_end_close(&b);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	tv_dev_close(&d);
}

/* Exactly full is no overrun, round and round. */
static void full_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_cq *cq;
	struct ibv_wc *wc;
	struct tv_dev d;
	struct tv_end a, b;
	int n = 0;

	tv_dev_open(&d);
	cq = ibv_create_cq(d.ctx, 8, NULL, NULL, 0);
	CHECK(cq);
	o.scq = cq;
	o.cap.max_send_wr = cq->cqe;
	tv_end_open(&a, &d, &o);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	wc = calloc(cq->cqe, sizeof(*wc));
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < cq->cqe; i++)
			tv_post(&a, IBV_WR_RDMA_WRITE, 0, 8, i);
		for (int i = 0; i < cq->cqe; i += n) { /* many at once: in order, never more than asked for */
			n = ibv_poll_cq(cq, round % 2 ? 3 : cq->cqe, wc);
			CHECK_OP(n, >=, 0);
			CHECK_OP(n, <=, round % 2 ? 3 : cq->cqe);
			for (int j = 0; j < n; j++) {
				CHECK_EQ(wc[j].wr_id, i + j);
				CHECK_EQ(wc[j].status, IBV_WC_SUCCESS);
			}
		}
		CHECK_EQ(ibv_poll_cq(cq, 1, wc), 0);
	}
	CHECK(!tv_readable(d.ctx->async_fd, 0));
	free(wc);
	tv_end_close(&a);
	tv_end_close(&b);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	tv_dev_close(&d);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(create)
SOLO(one_shot)
SOLO(solicited)
SOLO(shared_channel)
SOLO(ack)
SOLO(stale_event)
SOLO(stale_completion)
SOLO(resize)
SOLO(overrun)
SOLO(full)

static void test_sleeper(void **state)
{
	tv_pair(sleeper_role, waker_role, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_create),
	    cmocka_unit_test(test_one_shot),
	    cmocka_unit_test(test_solicited),
	    cmocka_unit_test(test_shared_channel),
	    cmocka_unit_test(test_ack),
	    cmocka_unit_test(test_stale_event),
	    cmocka_unit_test(test_stale_completion),
	    cmocka_unit_test(test_resize),
	    cmocka_unit_test(test_overrun),
	    cmocka_unit_test(test_full),
	    cmocka_unit_test(test_sleeper),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("cq", tests, NULL, NULL);
}

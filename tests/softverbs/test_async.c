/* SPDX-License-Identifier: BSD-2-Clause */
/* Asynchronous events: ibv_get_async_event(3). CQ_ERR and the SRQ's are in test_cq.c and test_srq.c. */
#include "tv.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>

static void empty_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct tv_dev d;

	tv_dev_open(&d);
	CHECK(!tv_readable(d.ctx->async_fd, 20));
	tv_nonblock(d.ctx->async_fd);
	errno = 0;
	CHECK_EQ(ibv_get_async_event(d.ctx, &ev), -1);
	CHECK_EQ(errno, EAGAIN);
	tv_dev_close(&d);
}

/* Data that reaches a QP in RTR makes one COMM_EST; in RTS none. */
static void comm_est_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct tv_dev d;
	struct tv_end a, b;

	if (!tv_strict())
		tv_skip("rxe tells of no established communication");
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_wire(&a, &b.peer);
	tv_end_wire(&b, &a.peer);
	for (int i = 0; i < 3; i++)
		tv_recv(&b, 0, 64, i);
	tv_end_rtr(&b);
	tv_end_rtr(&a);
	tv_end_rts(&a);
	tv_post(&a, IBV_WR_SEND, 0, 64, 0);
	tv_ok(a.scq, 0);
	CHECK(tv_readable(d.ctx->async_fd, 10000));
	CHECK_EQ(ibv_get_async_event(d.ctx, &ev), 0);
	CHECK_EQ(ev.event_type, IBV_EVENT_COMM_EST);
	CHECK(ev.element.qp == b.qp);
	CHECK(ev.element.qp->qp_context == &b);
	ibv_ack_async_event(&ev);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_ok(a.scq, 1);
	tv_end_rts(&b);
	tv_post(&a, IBV_WR_SEND, 0, 64, 2);
	for (int i = 0; i < 3; i++)
		tv_ok(b.rcq, i);
	CHECK(!tv_readable(d.ctx->async_fd, 30));
	tv_end_close(&a);
	tv_end_close(&b);
	tv_dev_close(&d);
}

static int destroyed;

static void *destroy_thread(void *qp)
{
	CHECK_EQ(ibv_destroy_qp(qp), 0);
	__atomic_store_n(&destroyed, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* "destroying an object will wait for all affiliated events for the object to be acknowledged" */
static void ack_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct tv_dev d;
	struct tv_end a, b;
	pthread_t t;

	if (!tv_strict())
		tv_skip("rxe tells of no established communication");
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_wire(&a, &b.peer);
	tv_end_wire(&b, &a.peer);
	tv_recv(&b, 0, 64, 1);
	tv_end_rtr(&b);
	tv_end_rtr(&a);
	tv_end_rts(&a);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	CHECK_EQ(ibv_get_async_event(d.ctx, &ev), 0); /* blocks */
	CHECK_EQ(ev.event_type, IBV_EVENT_COMM_EST);
	tv_ok(a.scq, 1);
	CHECK_EQ(pthread_create(&t, NULL, destroy_thread, b.qp), 0);
	CHECK(!tv_readable(d.ctx->async_fd, 100)); /* time for a destroy that does not wait */
	CHECK_EQ(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 0);
	ibv_ack_async_event(&ev);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(ibv_destroy_cq(b.scq), 0);
	CHECK_EQ(ibv_destroy_cq(b.rcq), 0);
	CHECK_EQ(ibv_dereg_mr(b.mr), 0);
	tv_end_close(&a);
	tv_dev_close(&d);
}

/* An event that nobody took dies with its object. */
static void stale_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;

	if (!tv_strict())
		tv_skip("rxe tells of no established communication");
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_wire(&a, &b.peer);
	tv_end_wire(&b, &a.peer);
	tv_recv(&b, 0, 64, 1);
	tv_end_rtr(&b);
	tv_end_rtr(&a);
	tv_end_rts(&a);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	CHECK(tv_readable(d.ctx->async_fd, 10000));
	tv_end_close(&b);
	CHECK(!tv_readable(d.ctx->async_fd, 30));
	tv_end_close(&a);
	tv_dev_close(&d);
}

/* Events belong to the context whose object they are about. */
static void contexts_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct tv_dev d, other;
	struct tv_end a, b;

	if (!tv_strict())
		tv_skip("rxe tells of no established communication");
	tv_dev_open(&d);
	tv_dev_open(&other);
	tv_end_open(&a, &other, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_wire(&a, &b.peer);
	tv_end_wire(&b, &a.peer);
	tv_recv(&b, 0, 64, 1);
	tv_end_rtr(&b);
	tv_end_rtr(&a);
	tv_end_rts(&a);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	CHECK(tv_readable(d.ctx->async_fd, 10000));
	CHECK_EQ(ibv_get_async_event(d.ctx, &ev), 0);
	CHECK(ev.element.qp == b.qp);
	ibv_ack_async_event(&ev);
	CHECK(!tv_readable(other.ctx->async_fd, 20));
	tv_end_close(&a);
	tv_end_close(&b);
	tv_dev_close(&d);
	tv_dev_close(&other);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(empty)
SOLO(comm_est)
SOLO(ack)
SOLO(stale)
SOLO(contexts)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_empty), cmocka_unit_test(test_comm_est), cmocka_unit_test(test_ack),
	    cmocka_unit_test(test_stale), cmocka_unit_test(test_contexts),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("async", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* "The verbs are fully thread-safe": several threads on one QP, one CQ, one channel, one device. Clean under TSan. */
#include "tv.h"

#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>

static void run(int n, void *(*fn)(void *), void *args, size_t size)
{
	pthread_t t[16];

	CHECK_OP(n, <=, 16);
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, fn, (char *)args + i * size), 0);
	for (int i = 0; i < n; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

/* ---------------------------------------------------------------- one QP, many posters; one CQ, many pollers */

enum { POSTERS = 4, EACH = 5000, DEPTH = 64, TOTAL = POSTERS * EACH };

struct shared {
	struct tv_end *e;
	uint32_t inflight, sent, received;
	uint8_t *seen; /* by immediate, once each */
};

struct worker {
	struct shared *sh;
	int n;
};

/* Takes up to 8 completions of the send CQ. */
static void reap_sends(struct shared *sh)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(sh->e->scq, 8, wc);

	CHECK_OP(n, >=, 0);
	for (int i = 0; i < n; i++)
		CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
	if (n)
		__atomic_sub_fetch(&sh->inflight, n, __ATOMIC_ACQ_REL);
	else
		tv_relax();
}

static void *poster(void *arg)
{
	struct worker *w = arg;
	struct shared *sh = w->sh;

	for (int i = 0; i < EACH; i++) {
		uint32_t id = w->n * EACH + i;

		while (__atomic_add_fetch(&sh->inflight, 1, __ATOMIC_ACQ_REL) > DEPTH) {
			__atomic_sub_fetch(&sh->inflight, 1, __ATOMIC_ACQ_REL);
			reap_sends(sh);
		}
		tv_post(sh->e, i % 2 ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM, w->n * 4096, 32, id);
	}
	return NULL;
}

static void posters_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct shared sh = {0};
	struct worker w[POSTERS];
	struct tv_dev d;
	struct tv_end e;

	o.cap.max_send_wr = 2 * DEPTH;
	o.cqe = 4 * DEPTH;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	sh.e = &e;
	for (int i = 0; i < POSTERS; i++)
		w[i] = (struct worker){&sh, i};
	run(POSTERS, poster, w, sizeof(w[0]));
	while (__atomic_load_n(&sh.inflight, __ATOMIC_ACQUIRE))
		reap_sends(&sh);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void *taker(void *arg)
{
	struct shared *sh = ((struct worker *)arg)->sh;

	while (__atomic_load_n(&sh->received, __ATOMIC_ACQUIRE) < TOTAL) {
		struct ibv_wc wc[8];
		int n = ibv_poll_cq(sh->e->rcq, 8, wc);

		CHECK_OP(n, >=, 0);
		for (int i = 0; i < n; i++) {
			CHECK_EQ(wc[i].status, IBV_WC_SUCCESS);
			CHECK_OP(ntohl(wc[i].imm_data), <, TOTAL);
			CHECK_EQ(__atomic_exchange_n(&sh->seen[ntohl(wc[i].imm_data)], 1, __ATOMIC_ACQ_REL), 0);
			tv_recv(sh->e, wc[i].wr_id * 64, 64, wc[i].wr_id);
		}
		if (n)
			__atomic_add_fetch(&sh->received, n, __ATOMIC_ACQ_REL);
		else
			tv_relax();
	}
	return NULL;
}

static void takers_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct shared sh = {.seen = calloc(TOTAL, 1)};
	struct worker w[3];
	struct tv_dev d;
	struct tv_end e;

	o.cap.max_recv_wr = 128;
	o.cqe = 256;
	o.min_rnr_timer = 1;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	for (int i = 0; i < 128; i++)
		tv_recv(&e, i * 64, 64, i);
	sh.e = &e;
	tv_end_meet(&e, s);
	for (int i = 0; i < 3; i++)
		w[i] = (struct worker){&sh, i};
	run(3, taker, w, sizeof(w[0]));
	CHECK_EQ(sh.received, TOTAL);
	tv_sync(s);
	free(sh.seen);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- one channel, many sleepers */

/*
 * The sleep protocol of a program with several waiting threads: an event wakes one; it re-arms, then empties the CQ.
 * No completion is slept through.
 */
struct sleepers {
	struct tv_end *e;
	uint32_t got;
	int quit_fd;
};
enum { WAKES = 4000 };

static void *sleeper(void *arg)
{
	struct sleepers *sl = *(struct sleepers **)arg;

	while (__atomic_load_n(&sl->got, __ATOMIC_ACQUIRE) < WAKES) {
		struct ibv_cq *cq;
		struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
		void *ctx;

		if (!tv_readable(sl->e->chan->fd, 10)) /* the bound is for the end only: lost wakes fail by count */
			continue;
		if (ibv_get_cq_event(sl->e->chan, &cq, &ctx)) {
			CHECK_EQ(errno, EAGAIN); /* another one was faster */
			continue;
		}
		ibv_ack_cq_events(cq, 1);
		CHECK_EQ(ibv_req_notify_cq(cq, 0), 0);
		while (ibv_poll_cq(cq, 1, &wc) == 1) {
			CHECK_EQ(wc.status, IBV_WC_SUCCESS);
			tv_recv(sl->e, 0, 0, 0);
			__atomic_add_fetch(&sl->got, 1, __ATOMIC_ACQ_REL);
		}
	}
	return NULL;
}

static void sleepers_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct sleepers sl = {0}, *arg[4] = {&sl, &sl, &sl, &sl};
	struct tv_dev d;
	struct tv_end e;

	o.channel = true;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_nonblock(e.chan->fd);
	for (int i = 0; i < 32; i++)
		tv_recv(&e, 0, 0, 0);
	CHECK_EQ(ibv_req_notify_cq(e.rcq, 0), 0);
	sl.e = &e;
	tv_end_meet(&e, s);
	run(4, sleeper, arg, sizeof(arg[0]));
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void wakers_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	for (int i = 0; i < WAKES; i++) {
		tv_post(&e, IBV_WR_SEND, 0, 0, i);
		tv_ok(e.scq, i);
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- objects made and destroyed by all */

static void *maker(void *arg)
{
	struct tv_dev *d = ((struct worker *)arg)->sh->e->dev;

	for (int i = 0; i < 60; i++) {
		struct tv_end a, b;

		tv_end_open(&a, d, NULL);
		tv_end_open(&b, d, NULL);
		tv_end_join(&a, &b);
		tv_recv(&b, 0, 64, 1);
		tv_post(&a, IBV_WR_SEND, 0, 64, 1);
		tv_ok(a.scq, 1);
		tv_ok(b.rcq, 1);
		if (i % 2)
			tv_end_err(&a);
		tv_end_close(&a);
		tv_end_close(&b);
	}
	return NULL;
}

static void makers_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e = {.dev = &d};
	struct shared sh = {.e = &e};
	struct worker w[4] = {{&sh, 0}, {&sh, 1}, {&sh, 2}, {&sh, 3}};

	tv_dev_open(&d);
	run(4, maker, w, sizeof(w[0]));
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- connections made by several threads at once */

static void *connector(void *arg)
{
	uint16_t port = *(uint16_t *)arg;

	for (int i = 0; i < 50; i++) {
		struct rdma_event_channel *ch = tv_channel();
		struct tv_end e;

		tv_cm_client(&e, ch, port, NULL);
		tv_post(&e, IBV_WR_RDMA_WRITE, 0, 64, 1);
		tv_ok(e.scq, 1);
		tv_cm_end(&e, ch);
		rdma_destroy_event_channel(ch);
	}
	return NULL;
}

static void connectors_role(struct tv_side *s)
{
	uint16_t port[3];

	for (int i = 0; i < 3; i++)
		tv_get(s->ctl, &port[i], 2);
	run(3, connector, port, sizeof(port[0]));
	tv_sync(s);
}

static void *acceptor(void *arg)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	uint16_t port = 0;

	lis = tv_listen(ch, "0.0.0.0", &port, 16);
	tv_put((*(struct tv_side **)arg)->ctl, &port, 2);
	for (int i = 0; i < 50; i++) {
		struct tv_end e;

		tv_cm_server(&e, ch, NULL);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
	return NULL;
}

static void acceptors_role(struct tv_side *s)
{
	struct tv_side *arg[3] = {s, s, s};

	run(3, acceptor, arg, sizeof(arg[0]));
	tv_sync(s);
}

/* ---------------------------------------------------------------- ERR while others post and poll */

static void *late_poster(void *arg)
{
	struct shared *sh = ((struct worker *)arg)->sh;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	int rc;

	tv_wr(sh->e, &wr, &sge, IBV_WR_RDMA_WRITE, 0, 64, 1);
	do {
		rc = tv_post_wr(sh->e, &wr);
		if (rc == 0)
			__atomic_add_fetch(&sh->sent, 1, __ATOMIC_ACQ_REL);
		else
			CHECK_EQ(rc, ENOMEM); /* full */
	} while (!__atomic_load_n(&sh->received, __ATOMIC_ACQUIRE));
	return NULL;
}

static void flush_race_role(struct tv_side *s)
{
	if (!tv_strict())
		tv_skip("rxe flushes nothing that is posted in ERR");
	for (int round = 0; round < 20; round++) {
		struct tv_opt o = tv_defaults;
		struct shared sh = {0};
		struct worker w[2] = {{&sh, 0}, {&sh, 1}};
		struct tv_dev d;
		struct tv_end a, b;
		struct ibv_wc wc = {.status = IBV_WC_SUCCESS};
		pthread_t t[2];
		uint32_t done = 0;
		bool err = false;

		o.cap.max_send_wr = 256;
		o.cqe = 1024;
		tv_dev_open(&d);
		tv_end_open(&a, &d, &o);
		tv_end_open(&b, &d, NULL);
		tv_end_join(&a, &b);
		sh.e = &a;
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_create(&t[i], NULL, late_poster, &w[i]), 0);
		while (done < 2000) {
			if (!err && done > 500) {
				tv_end_err(&a);
				err = true;
			}
			if (ibv_poll_cq(a.scq, 1, &wc) == 1)
				done++;
			if (wc.status == IBV_WC_SUCCESS)
				continue;
			CHECK(err);
			CHECK_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
		}
		__atomic_store_n(&sh.received, 1, __ATOMIC_RELEASE);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(pthread_join(t[i], NULL), 0);
		/* Each that was taken comes back once. */
		while (done < sh.sent) {
			CHECK(tv_poll(a.scq, &wc, 10000));
			done++;
		}
		tv_none(a.scq, 2);
		tv_end_close(&a);
		tv_end_close(&b);
		tv_dev_close(&d);
	}
}

static void test_posters(void **state)
{
	tv_pair(posters_role, takers_role, 40);
}

static void test_sleepers(void **state)
{
	tv_pair(sleepers_role, wakers_role, 40);
}

static void test_makers(void **state)
{
	tv_solo(makers_role, 30);
}

static void test_connections(void **state)
{
	tv_pair(acceptors_role, connectors_role, 40);
}

static void test_flush_race(void **state)
{
	tv_solo(flush_race_role, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_posters),     cmocka_unit_test(test_sleepers),   cmocka_unit_test(test_makers),
	    cmocka_unit_test(test_connections), cmocka_unit_test(test_flush_race),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}

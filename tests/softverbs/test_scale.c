/* SPDX-License-Identifier: BSD-2-Clause */
/* A thousand connections between two processes, and thousands of connections one after another: nothing grows. */
#include "tv.h"

#include <setjmp.h>
#include <sys/resource.h>
#include <cmocka.h>

enum { CONNS = 1000, FD_BUDGET = 64 };

struct conn {
	struct rdma_cm_id *id;
	struct tv_wire peer;
	struct ibv_mr *mr;
};

struct side {
	struct rdma_event_channel *ch;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct conn *c;
	uint8_t *arena; /* a slot of 4096 a connection: 0 in, 1024 out */
	struct ibv_mr *all;
	uint32_t first_qpn;
};

static void add_qp(struct side *d, struct rdma_cm_id *id, int i)
{
	struct ibv_qp_init_attr ia = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_recv_wr wr = {.wr_id = i}, *bad;

	if (!d->pd) {
		d->pd = ibv_alloc_pd(id->verbs);
		d->cq = ibv_create_cq(id->verbs, 8 * CONNS, NULL, NULL, 0);
		d->arena = aligned_alloc(4096, CONNS * 4096);
		memset(d->arena, 0, CONNS * 4096);
		d->all = ibv_reg_mr(d->pd, d->arena, CONNS * 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		CHECK(d->pd && d->cq && d->all);
	}
	ia.send_cq = ia.recv_cq = d->cq;
	id->context = (void *)(intptr_t)i;
	d->c[i].id = id;
	CHECK_EQ(rdma_create_qp(id, d->pd, &ia), 0);
	/* A region of its own for each, as a server that isolates its clients has. */
	d->c[i].mr = ibv_reg_mr(d->pd, d->arena + i * 4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(d->c[i].mr);
	CHECK_EQ(ibv_post_recv(id->qp, &wr, &bad), 0);
}

static void offer(struct side *d, int i, struct rdma_conn_param *p, struct tv_wire *w)
{
	*w = (struct tv_wire){.addr = (uintptr_t)d->arena + i * 4096, .rkey = d->c[i].mr->rkey};
	tv_param(p);
	p->private_data = w;
	p->private_data_len = sizeof(*w);
}

/* Write to every peer, then take all completions: one of the send and one of the peer's immediate each. */
static void all_to_all(struct side *d, int round)
{
	uint8_t *seen = calloc(CONNS, 1);

	for (int i = 0; i < CONNS; i++) {
		uint8_t *out = d->arena + i * 4096 + 1024;
		struct ibv_sge sge = {(uintptr_t)out, 256, d->all->lkey};
		struct ibv_send_wr *bad, wr = {.wr_id = CONNS + i,
					       .sg_list = &sge,
					       .num_sge = 1,
					       .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
					       .send_flags = IBV_SEND_SIGNALED};

		tv_fill(out, 256, round + (uint32_t)d->c[i].peer.addr / 4096);
		wr.wr.rdma.remote_addr = d->c[i].peer.addr;
		wr.wr.rdma.rkey = d->c[i].peer.rkey;
		CHECK_EQ(ibv_post_send(d->c[i].id->qp, &wr, &bad), 0);
	}
	for (int n = 0; n < 2 * CONNS; n++) {
		struct ibv_recv_wr rw, *bad;
		struct ibv_wc wc;
		uint64_t i;

		CHECK(tv_poll(d->cq, &wc, 20000));
		CHECK_EQ(wc.status, IBV_WC_SUCCESS);
		i = wc.wr_id % CONNS;
		CHECK_EQ(wc.qp_num, d->c[i].id->qp->qp_num);
		CHECK(!(seen[i] & (1 << (wc.wr_id / CONNS))));
		seen[i] |= 1 << (wc.wr_id / CONNS);
		if (wc.wr_id >= CONNS)
			continue;
		CHECK_EQ(wc.byte_len, 256);
		CHECK_FILL(d->arena + i * 4096, 256, round + (uint32_t)((uintptr_t)d->arena + i * 4096) / 4096);
		rw = (struct ibv_recv_wr){.wr_id = i};
		CHECK_EQ(ibv_post_recv(d->c[i].id->qp, &rw, &bad), 0);
	}
	free(seen);
}

static void many(struct tv_side *s, struct side *d, int fds_before)
{
	tv_sync(s);
	CHECK_OP(tv_fd_count() - fds_before, <=, FD_BUDGET);
	for (int round = 0; round < 5; round++) {
		all_to_all(d, round);
		tv_sync(s); /* or the peer's next round would be among this one's completions */
	}
}

static void free_all(struct side *d)
{
	for (int i = 0; i < CONNS; i++) {
		rdma_destroy_qp(d->c[i].id);
		CHECK_EQ(rdma_destroy_id(d->c[i].id), 0);
		CHECK_EQ(ibv_dereg_mr(d->c[i].mr), 0);
	}
	CHECK_EQ(ibv_dereg_mr(d->all), 0);
	CHECK_EQ(ibv_destroy_cq(d->cq), 0);
	CHECK_EQ(ibv_dealloc_pd(d->pd), 0);
	free(d->arena);
	free(d->c);
	rdma_destroy_event_channel(d->ch);
}

static void many_server(struct tv_side *s)
{
	struct side d = {.ch = tv_channel(), .c = calloc(CONNS, sizeof(struct conn))};
	int fds = tv_fd_count(), up = 0, n = 0, down = 0;
	struct rdma_cm_id *lis;
	uint16_t port = 0;

	lis = tv_listen(d.ch, "0.0.0.0", &port, CONNS);
	tv_put(s->ctl, &port, 2);
	while (up < CONNS) {
		struct rdma_cm_event *ev = tv_any_event(d.ch, 20000);
		struct rdma_conn_param p;
		struct tv_wire w;

		CHECK(ev);
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			add_qp(&d, ev->id, n);
			memcpy(&d.c[n].peer, ev->param.conn.private_data, sizeof(struct tv_wire));
			offer(&d, n, &p, &w);
			CHECK_EQ(rdma_accept(ev->id, &p), 0);
			n++;
		} else {
			CHECK_EQ(ev->event, RDMA_CM_EVENT_ESTABLISHED);
			up++;
		}
		tv_ack(ev);
	}
	many(s, &d, fds);
	while (down < CONNS) {
		struct rdma_cm_event *ev = tv_any_event(d.ch, 20000);

		CHECK(ev);
		if (ev->event == RDMA_CM_EVENT_DISCONNECTED) {
			down++;
			CHECK_EQ(rdma_disconnect(ev->id), 0);
		} else {
			CHECK_EQ(ev->event, RDMA_CM_EVENT_TIMEWAIT_EXIT);
		}
		tv_ack(ev);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	free_all(&d);
	tv_sync(s);
}

static void many_client(struct tv_side *s)
{
	struct side d = {.ch = tv_channel(), .c = calloc(CONNS, sizeof(struct conn))};
	int fds = tv_fd_count(), up = 0, started = 0, down = 0;
	uint16_t port;

	tv_get(s->ctl, &port, 2);
	while (up < CONNS) {
		struct rdma_cm_event *ev;

		for (; started < CONNS && started - up < 64; started++) {
			struct rdma_event_channel *tmp = tv_channel();
			struct rdma_cm_id *id = tv_resolve(tmp, tv_addr4(), port);
			struct rdma_conn_param p;
			struct tv_wire w;

			CHECK_EQ(rdma_migrate_id(id, d.ch), 0);
			rdma_destroy_event_channel(tmp);
			add_qp(&d, id, started);
			offer(&d, started, &p, &w);
			CHECK_EQ(rdma_connect(id, &p), 0);
		}
		ev = tv_any_event(d.ch, 20000);
		CHECK(ev);
		CHECK_EQ(ev->event, RDMA_CM_EVENT_ESTABLISHED);
		memcpy(&d.c[(intptr_t)ev->id->context].peer, ev->param.conn.private_data, sizeof(struct tv_wire));
		tv_ack(ev);
		up++;
	}
	many(s, &d, fds);
	for (int i = 0; i < CONNS; i++)
		CHECK_EQ(rdma_disconnect(d.c[i].id), 0);
	while (down < CONNS) {
		struct rdma_cm_event *ev = tv_any_event(d.ch, 20000);

		CHECK(ev);
		down += ev->event == RDMA_CM_EVENT_DISCONNECTED;
		tv_ack(ev);
	}
	free_all(&d);
	tv_sync(s);
}

/* ---------------------------------------------------------------- connect, say something, disconnect: 5,000 times */

enum { CYCLES = 5000, WARM = 1000 };

struct use {
	int fds;
	long rss;
};

static void check_use(struct use *u, int i)
{
	if (i == WARM)
		*u = (struct use){tv_fd_count(), tv_rss_kib()};
	if (i == CYCLES - 1) {
		CHECK_OP(tv_fd_count() - u->fds, <=, 2);
		/* 4,000 cycles: less than 1 KiB each would already be 4 MiB. A sanitizer's quarantine grows by itself.
		 */
		if (tv_scale() == 1)
			CHECK_OP(tv_rss_kib() - u->rss, <, 3072);
	}
}

static void cycle_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_opt o = tv_defaults;
	struct rdma_cm_id *lis;
	struct tv_end e;
	struct use u;
	uint16_t port = 0;

	o.len = 4096;
	o.first_recv = 8;
	lis = tv_listen(ch, "0.0.0.0", &port, 16);
	tv_put(s->ctl, &port, 2);
	for (int i = 0; i < CYCLES; i++) {
		tv_cm_server(&e, ch, &o);
		CHECK_EQ(ntohl(tv_ok(e.rcq, 77).imm_data), i);
		tv_post(&e, IBV_WR_SEND_WITH_IMM, 64, 8, i);
		tv_ok(e.scq, i);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		check_use(&u, i);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

static void cycle_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_opt o = tv_defaults;
	struct tv_end e;
	struct use u;
	uint16_t port;

	o.len = 4096;
	o.first_recv = 8;
	tv_get(s->ctl, &port, 2);
	for (int i = 0; i < CYCLES; i++) {
		tv_cm_client(&e, ch, port, &o);
		tv_post(&e, IBV_WR_SEND_WITH_IMM, 64, 8, i);
		tv_ok(e.scq, i);
		CHECK_EQ(ntohl(tv_ok(e.rcq, 77).imm_data), i);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		check_use(&u, i);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- many peers: a process each, one after another */

enum { PEERS = 60 };

static void brief_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_end e;

	tv_cm_client(&e, ch, *(uint16_t *)s->arg, NULL);
	tv_post(&e, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_ok(e.scq, 1);
	tv_cm_end(&e, ch);
	rdma_destroy_event_channel(ch);
}

static void peers_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct tv_end e;
	uint16_t port = 0;
	int fds = 0;

	lis = tv_listen(ch, "0.0.0.0", &port, 16);
	tv_put(s->ctl, &port, 2);
	for (int i = 0; i < PEERS; i++) {
		char c = 'x';

		tv_cm_server(&e, ch, NULL);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		tv_get(s->ctl, &c, 1); /* the peer's process has ended */
		if (i == 20)
			fds = tv_fd_count();
		tv_put(s->ctl, &c, 1);
	}
	CHECK_OP(tv_fd_count() - fds, <=, 8); /* what the last peers held may take a moment to go */
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void test_peers(void **state)
{
	int sv[2];
	uint16_t port;
	pid_t server;

	tv_socketpair(sv);
	server = tv_spawn(peers_server, sv[1], sv[0], NULL, 60);
	close(sv[1]);
	if (!tv_ctl_try(sv[0], &port, 2)) {
		if (tv_wait(server) == 77)
			skip();
		fail();
	}
	for (int i = 0; i < PEERS; i++) {
		char c = 'e';
		int rc = tv_wait(tv_spawn(brief_client, -1, sv[0], &port, 20));

		/* A client is rejected with status 8 when the server has gone: then that is what went wrong. */
		if (rc)
			tv_wait(server);
		assert_int_equal(rc, 0);
		tv_put(sv[0], &c, 1);
		assert_true(tv_ctl_try(sv[0], &c, 1));
	}
	assert_int_equal(tv_wait(server), 0);
	close(sv[0]);
}

/* ---------------------------------------------------------------- a crowd of processes at once */

enum { CROWD = 40, CROWDS = 5 };

/* Each maps the others' memory: a sanitizer's address space has room for fewer. */
static int crowd(void)
{
	return CROWD / (int)tv_scale();
}

/* Event by event: requests, established and disconnected ones come in any mixture. */
static void crowd_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	uint16_t port = 0;
	int up = 0, down = 0;

	lis = tv_listen(ch, "0.0.0.0", &port, 128);
	tv_put(s->ctl, &port, 2);
	while (down < crowd() * CROWDS) {
		struct rdma_cm_event *ev = tv_any_event(ch, 20000);
		struct rdma_cm_id *id;
		struct rdma_conn_param p;
		struct tv_wire w;
		struct tv_end *e;

		if (!ev)
			tv_fail(__FILE__, __LINE__, "no event: %d came up, %d went down", up, down);
		id = ev->id;
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			e = calloc(1, sizeof(*e));
			tv_end_open_cm(e, calloc(1, sizeof(struct tv_dev)), id, NULL);
			id->context = e;
			tv_end_wire(e, &w);
			tv_param(&p);
			p.private_data = &w;
			p.private_data_len = sizeof(w);
			CHECK_EQ(rdma_accept(id, &p), 0);
		}
		up += ev->event == RDMA_CM_EVENT_ESTABLISHED;
		if (ev->event != RDMA_CM_EVENT_DISCONNECTED) {
			tv_ack(ev);
			continue;
		}
		down++;
		tv_ack(ev);
		e = id->context;
		CHECK_EQ(rdma_disconnect(id), 0);
		tv_end_close(e);
		CHECK_EQ(rdma_destroy_id(id), 0);
		free(e->dev);
		free(e);
	}
	CHECK_EQ(up, crowd() * CROWDS);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void crowd_client(struct tv_side *s)
{
	char c;

	tv_put(s->ctl, "r", 1);
	tv_get(s->ctl, &c, 1);
	brief_client(s);
}

static void crowd_run(uint16_t port)
{
	int gate[CROWD];
	pid_t pid[CROWD];
	char c;

	for (int i = 0; i < crowd(); i++) {
		int sv[2];

		tv_socketpair(sv);
		gate[i] = sv[0];
		pid[i] = tv_spawn(crowd_client, sv[1], sv[0], &port, 30);
		close(sv[1]);
		assert_true(tv_ctl_try(sv[0], &c, 1));
	}
	for (int i = 0; i < crowd(); i++)
		tv_put(gate[i], "g", 1);
	for (int i = 0; i < crowd(); i++) {
		assert_int_equal(tv_wait(pid[i]), 0);
		close(gate[i]);
	}
}

static void test_crowd(void **state)
{
	int sv[2];
	uint16_t port;
	pid_t server;

	tv_socketpair(sv);
	server = tv_spawn(crowd_server, sv[1], sv[0], NULL, 60);
	close(sv[1]);
	if (!tv_ctl_try(sv[0], &port, 2)) {
		if (tv_wait(server) == 77)
			skip();
		fail();
	}
	for (int i = 0; i < CROWDS; i++)
		crowd_run(port);
	assert_int_equal(tv_wait(server), 0);
	close(sv[0]);
}

static void test_many(void **state)
{
	tv_procs(many_server, many_client, 60);
}

static void test_cycles(void **state)
{
	tv_procs(cycle_server, cycle_client, 90);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_many),
	    cmocka_unit_test(test_peers),
	    cmocka_unit_test(test_crowd),
	    cmocka_unit_test(test_cycles),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("scale", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections where the CM owns the QP (rdma_create_qp): rdma_connect(3), rdma_accept(3), rdma_reject(3),
 * rdma_disconnect(3), private data, parameters. QPs of one's own are in test_cm_own.c, addresses in test_cm_addr.c.
 */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

#define REQ_DATA 56
#define REP_DATA 196
#define REJ_DATA 148

static void give_port(struct tv_side *s, uint16_t port)
{
	tv_put(s->ctl, &port, 2);
}

static uint16_t take_port(struct tv_side *s)
{
	uint16_t port;

	tv_get(s->ctl, &port, 2);
	return port;
}

static void listen_here(struct tv_side *s, struct rdma_event_channel **ch, struct rdma_cm_id **lis, int backlog)
{
	uint16_t port = 0;

	*ch = tv_channel();
	*lis = tv_listen(*ch, "0.0.0.0", &port, backlog);
	give_port(s, port);
}

static void stop_listening(struct rdma_event_channel *ch, struct rdma_cm_id *lis)
{
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- data over a connection, disconnect */

enum { ROUNDS = 20 };

static void talk(struct tv_end *e, int round)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	/* Each writes to the other and sends. The receive was posted before the connection was made. */
	tv_fill(e->buf + 8192, 1000, round);
	tv_wr(e, &wr, &sge, IBV_WR_RDMA_WRITE, 8192, 1000, 1);
	wr.wr.rdma.remote_addr = e->peer.addr + 4096;
	CHECK_EQ(tv_post_wr(e, &wr), 0);
	tv_ok(e->scq, 1);
	tv_post(e, IBV_WR_SEND_WITH_IMM, 8192, 100, round);
	tv_ok(e->scq, round);
	CHECK_EQ(ntohl(tv_ok(e->rcq, 77).imm_data), round);
	CHECK_FILL(e->buf, 100, round);
	CHECK_FILL(e->buf + 4096, 1000, round);
}

static void basic_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_opt o = tv_defaults;
	struct tv_end e;

	o.first_recv = 100;
	listen_here(s, &ch, &lis, 5);
	for (int i = 0; i < ROUNDS; i++) {
		tv_cm_server(&e, ch, &o);
		CHECK_EQ(ntohs(rdma_get_src_port(e.id)), ntohs(rdma_get_src_port(lis)));
		CHECK_NE(rdma_get_dst_port(e.id), 0);
		CHECK_EQ(tv_end_state(&e), IBV_QPS_RTS);
		talk(&e, i);
		tv_recv(&e, 0, 100, 5);
		tv_sync(s);
		if (i % 2) { /* the other one ends it */
			tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
			CHECK_EQ(rdma_disconnect(e.id), 0);
		} else {
			CHECK_EQ(rdma_disconnect(e.id), 0);
			tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		}
		/* "transitions any associated QP to the error state, which will flush any posted work requests" */
		CHECK_EQ(tv_end_state(&e), IBV_QPS_ERR);
		tv_want(e.rcq, 5, IBV_WC_WR_FLUSH_ERR);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		tv_sync(s);
	}
	stop_listening(ch, lis);
}

static void basic_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);
	struct tv_opt o = tv_defaults;
	struct tv_end e;

	o.first_recv = 100;
	for (int i = 0; i < ROUNDS; i++) {
		tv_cm_client(&e, ch, port, &o);
		CHECK_EQ(ntohs(rdma_get_dst_port(e.id)), port);
		CHECK_EQ(tv_end_state(&e), IBV_QPS_RTS);
		talk(&e, i);
		tv_recv(&e, 0, 100, 5);
		tv_sync(s);
		if (i % 2 == 0) {
			tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
			CHECK_EQ(rdma_disconnect(e.id), 0);
		} else {
			CHECK_EQ(rdma_disconnect(e.id), 0);
			tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		}
		tv_want(e.rcq, 5, IBV_WC_WR_FLUSH_ERR);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		tv_sync(s);
	}
	rdma_destroy_event_channel(ch);
}

/* Both at once. */
static void crossing_role(struct tv_side *s, bool server)
{
	struct rdma_event_channel *ch = NULL;
	struct rdma_cm_id *lis = NULL;
	struct tv_end e;
	uint16_t port = 0;

	if (server) {
		listen_here(s, &ch, &lis, 5);
	} else {
		ch = tv_channel();
		port = take_port(s);
	}
	for (int i = 0; i < 50; i++) {
		if (server)
			tv_cm_server(&e, ch, NULL);
		else
			tv_cm_client(&e, ch, port, NULL);
		tv_sync(s);
		tv_cm_end(&e, ch);
		tv_sync(s);
	}
	if (lis)
		CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void crossing_server(struct tv_side *s)
{
	crossing_role(s, true);
}

static void crossing_client(struct tv_side *s)
{
	crossing_role(s, false);
}

/* DISCONNECTED, then TIMEWAIT_EXIT, on both sides, on ids that are kept. */
static void timewait_role(struct tv_side *s, bool server)
{
	struct rdma_event_channel *ch = NULL;
	struct rdma_cm_id *lis = NULL;
	struct rdma_cm_event *ev;
	struct tv_end e;

	if (server) {
		listen_here(s, &ch, &lis, 5);
		tv_cm_server(&e, ch, NULL);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
	} else {
		ch = tv_channel();
		tv_cm_client(&e, ch, take_port(s), NULL);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	}
	ev = tv_event(ch, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(ev->id == e.id);
	tv_ack(ev);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(e.id), 0);
	free(e.dev);
	if (lis)
		CHECK_EQ(rdma_destroy_id(lis), 0);
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

static void timewait_server(struct tv_side *s)
{
	timewait_role(s, true);
}

static void timewait_client(struct tv_side *s)
{
	timewait_role(s, false);
}

/* Destroying the id without disconnecting tells the peer. */
static void vanish_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_end e;

	listen_here(s, &ch, &lis, 5);
	for (int i = 0; i < 10; i++) {
		tv_cm_server(&e, ch, NULL);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
	}
	tv_sync(s);
	stop_listening(ch, lis);
}

static void vanish_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);
	struct tv_end e;

	for (int i = 0; i < 10; i++) {
		tv_cm_client(&e, ch, port, NULL);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- private data and parameters */

static const int sizes[] = {0, 1, 8, 55, 56};

static void data_server(struct tv_side *s)
{
	static const uint8_t zeros[256];
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	uint8_t mine[REP_DATA];

	listen_here(s, &ch, &lis, 5);
	for (int i = 0; i < 5; i++) {
		struct rdma_cm_event *ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_conn_param p, *got = &ev->param.conn;
		const uint8_t *data = got->private_data;
		struct tv_dev d;
		struct tv_end e;

		CHECK(ev->listen_id == lis && ev->id != lis && ev->id->verbs);
		CHECK(ev->id->channel == ch && ev->id->context == lis->context);
		CHECK_EQ(ev->status, 0);
		/* "may be larger than the amount sent. Any additional space will be zeroed out." */
		CHECK_EQ(got->private_data_len, REQ_DATA);
		CHECK(data);
		CHECK_FILL(data, sizes[i], i);
		CHECK_MEM(data + sizes[i], zeros, REQ_DATA - sizes[i]);
		/* "matches the initiator depth specified by the remote node", and the other way round. */
		CHECK_EQ(got->responder_resources, 3);
		CHECK_EQ(got->initiator_depth, 2);
		CHECK_EQ(got->retry_count, 5);
		CHECK_EQ(got->rnr_retry_count, 6);
		CHECK_EQ(got->srq, 0);
		CHECK_NE(got->qp_num, 0);
		tv_end_open_cm(&e, &d, ev->id, NULL);
		tv_param(&p);
		p.responder_resources = 3;
		p.initiator_depth = 1;
		p.rnr_retry_count = 4;
		p.private_data = mine;
		p.private_data_len = i == 4 ? REP_DATA : sizes[i];
		tv_fill(mine, p.private_data_len, i + 50);
		CHECK_EQ(rdma_accept(ev->id, &p), 0);
		memset(mine, 0xee, sizeof(mine)); /* "contents are copied" */
		tv_ack(ev);
		ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(ev->id == e.id);
		tv_ack(ev);
		if (tv_strict()) {
			struct ibv_qp_attr qa;
			struct ibv_qp_init_attr ia;

			/* What REQ asked governs the acceptor's QP. */
			CHECK_EQ(ibv_query_qp(e.qp, &qa, IBV_QP_RNR_RETRY, &ia), 0);
			CHECK_EQ(qa.rnr_retry, 6);
			CHECK_EQ(qa.retry_cnt, 5);
			CHECK_EQ(qa.max_rd_atomic, 1);
			CHECK_EQ(qa.max_dest_rd_atomic, 3);
		}
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
	}
	tv_sync(s);
	stop_listening(ch, lis);
}

static void data_client(struct tv_side *s)
{
	static const uint8_t zeros[256];
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);
	uint8_t mine[256];

	for (int i = 0; i < 5; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
		struct rdma_conn_param p, *got;
		struct rdma_cm_event *ev;
		const uint8_t *data;
		struct tv_dev d;
		struct tv_end e;
		int n = i == 4 ? REP_DATA : sizes[i];

		tv_end_open_cm(&e, &d, id, NULL);
		tv_param(&p);
		p.responder_resources = 2;
		p.initiator_depth = 3;
		p.retry_count = 5;
		p.rnr_retry_count = 6;
		p.private_data = mine;
		/* "The length is limited to 56 bytes for RDMA_PS_TCP." The id is good for another try. */
		p.private_data_len = 57;
		CHECK_FAILS(rdma_connect(id, &p), EINVAL);
		p.private_data_len = sizes[i];
		tv_fill(mine, sizes[i], i);
		CHECK_EQ(rdma_connect(id, &p), 0);
		memset(mine, 0xee, sizeof(mine));
		ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
		got = &ev->param.conn;
		CHECK(ev->id == id);
		CHECK_EQ(got->private_data_len, REP_DATA);
		data = got->private_data;
		CHECK(data);
		CHECK_FILL(data, n, i + 50);
		CHECK_MEM(data + n, zeros, REP_DATA - n);
		CHECK_EQ(got->responder_resources, 1);
		CHECK_EQ(got->initiator_depth, 3);
		CHECK_NE(got->qp_num, 0);
		tv_ack(ev);
		if (tv_strict()) {
			struct ibv_qp_attr qa;
			struct ibv_qp_init_attr ia;

			/* What REP says governs the connector's RNR count; min_rnr_timer is 0: 655 ms. */
			CHECK_EQ(ibv_query_qp(e.qp, &qa, IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER, &ia), 0);
			CHECK_EQ(qa.rnr_retry, 4);
			CHECK_EQ(qa.retry_cnt, 5);
			CHECK_EQ(qa.min_rnr_timer, 0);
			CHECK_EQ(qa.max_rd_atomic, 3);
		}
		CHECK_EQ(rdma_disconnect(id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- reject, nobody there */

static void reject_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	uint8_t mine[REJ_DATA];

	listen_here(s, &ch, &lis, 5);
	for (int i = 0; i < 3; i++) {
		int n = i == 0 ? 0 : i == 1 ? 10 : REJ_DATA;

		ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
		tv_fill(mine, n, i);
		CHECK_EQ(rdma_reject(ev->id, n ? mine : NULL, n), 0);
		id = ev->id;
		tv_ack(ev); /* first: "destruction of an rdma_cm_id will block until related events have been
			       acknowledged" */
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	/* An id that is destroyed instead of answered rejects too. */
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = ev->id;
	tv_ack(ev);
	CHECK_EQ(rdma_destroy_id(id), 0);
	tv_sync(s);
	CHECK(!tv_readable(ch->fd, 10));
	stop_listening(ch, lis);
}

static void reject_client(struct tv_side *s)
{
	static const uint8_t zeros[256];
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);

	for (int i = 0; i < 4; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
		struct rdma_conn_param p;
		struct rdma_cm_event *ev;
		struct tv_dev d;
		struct tv_end e;
		int n = i == 0 ? 0 : i == 1 ? 10 : REJ_DATA;

		tv_end_open_cm(&e, &d, id, NULL);
		tv_recv(&e, 0, 64, 3);
		tv_param(&p);
		CHECK_EQ(rdma_connect(id, &p), 0);
		ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
		CHECK(ev->id == id);
		CHECK_EQ(ev->status, 28); /* IB_CM_REJ_CONSUMER_DEFINED */
		if (i < 3 && (n || ev->param.conn.private_data_len)) {
			CHECK_EQ(ev->param.conn.private_data_len, REJ_DATA);
			CHECK_FILL(ev->param.conn.private_data, n, i);
			CHECK_MEM((const uint8_t *)ev->param.conn.private_data + n, zeros, REJ_DATA - n);
		}
		tv_ack(ev);
		/* The CM owns the QP, so it is in ERR. */
		CHECK_EQ(tv_end_state(&e), IBV_QPS_ERR);
		tv_want(e.rcq, 3, IBV_WC_WR_FLUSH_ERR);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

static void nobody_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	uint16_t port = 0;

	/* A port that certainly nobody listens on: bound, not listening; then one whose listener has gone. */
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id;
		struct tv_dev d;
		struct tv_end e;

		lis = tv_listen(ch, "0.0.0.0", &port, 5);
		CHECK_EQ(rdma_destroy_id(lis), 0);
		if (i == 0) {
			struct sockaddr_storage ss;

			CHECK_EQ(rdma_create_id(ch, &lis, NULL, RDMA_PS_TCP), 0);
			tv_sockaddr(&ss, "0.0.0.0", port);
			CHECK_EQ(rdma_bind_addr(lis, (struct sockaddr *)&ss), 0);
		}
		id = tv_resolve(ch, tv_addr4(), port);
		tv_end_open_cm(&e, &d, id, NULL);
		tv_param(&p);
		CHECK_EQ(rdma_connect(id, &p), 0);
		ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
		CHECK_EQ(ev->status, 8); /* IB_CM_REJ_INVALID_SERVICE_ID */
		tv_ack(ev);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
		if (i == 0)
			CHECK_EQ(rdma_destroy_id(lis), 0);
		port = 0;
	}
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- a listener that moves to another process */

static void moved_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_end e;

	listen_here(s, &ch, &lis, 5);
	tv_cm_server(&e, ch, NULL);
	tv_sync(s);
	tv_cm_end(&e, ch);
	stop_listening(ch, lis);
	tv_sync(s);
	tv_sync(s); /* alive all the while */
}

/* The status of the refusal; where a listener is named, it refuses. */
static int refused(struct rdma_event_channel *ch, uint16_t port, struct rdma_event_channel *at)
{
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_dev d;
	struct tv_end e;
	int status;

	tv_end_open_cm(&e, &d, id, NULL);
	tv_param(&p);
	CHECK_EQ(rdma_connect(id, &p), 0);
	if (at) {
		struct rdma_cm_id *request;

		ev = tv_event(at, RDMA_CM_EVENT_CONNECT_REQUEST);
		request = ev->id;
		CHECK_EQ(rdma_reject(request, NULL, 0), 0);
		tv_ack(ev);
		CHECK_EQ(rdma_destroy_id(request), 0);
	}
	ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
	status = ev->status;
	tv_ack(ev);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(id), 0);
	return status;
}

static void moved_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel(), *own = tv_channel();
	uint16_t port = take_port(s);
	struct rdma_cm_id *lis;
	struct tv_end e;

	tv_cm_client(&e, ch, port, NULL);
	tv_sync(s);
	tv_cm_end(&e, ch);
	tv_sync(s);
	lis = tv_listen(own, "0.0.0.0", &port, 5);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(refused(ch, port, own), 28); /* the new listener's own answer */
	CHECK_EQ(rdma_destroy_id(lis), 0);
	CHECK_EQ(refused(ch, port, NULL), 8);
	CHECK_EQ(refused(ch, port, NULL), 8);
	lis = tv_listen(own, "0.0.0.0", &port, 5);
	CHECK_EQ(refused(ch, port, own), 28);
	stop_listening(own, lis);
	rdma_destroy_event_channel(ch);
	tv_sync(s);
}

/* Calls out of order fail and harm nothing. */
static void order_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id;
	struct sockaddr_storage ss;
	struct rdma_conn_param p;

	tv_param(&p);
	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	CHECK_EQ(rdma_disconnect(id), -1);
	CHECK_EQ(rdma_reject(id, NULL, 0), -1);
	tv_sockaddr(&ss, tv_addr4(), 7);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	p.qp_num = 1;
	CHECK_EQ(rdma_connect(id, &p), -1); /* no route yet */
	CHECK_EQ(rdma_accept(id, &p), -1);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_FAILS(rdma_resolve_route(id, 2000), EINVAL);
	CHECK_EQ(rdma_disconnect(id), -1);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

#define PAIR(name, a, b)                                                                                               \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		tv_pair(a, b, 30);                                                                                     \
	}
#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
PAIR(basic, basic_server, basic_client)
PAIR(crossing, crossing_server, crossing_client)
PAIR(timewait, timewait_server, timewait_client)
PAIR(vanish, vanish_server, vanish_client)
PAIR(data, data_server, data_client)
PAIR(reject, reject_server, reject_client)
PAIR(moved, moved_server, moved_client)
SOLO(nobody)
SOLO(order)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_basic),  cmocka_unit_test(test_crossing), cmocka_unit_test(test_timewait),
	    cmocka_unit_test(test_vanish), cmocka_unit_test(test_data),     cmocka_unit_test(test_reject),
	    cmocka_unit_test(test_nobody), cmocka_unit_test(test_order),    cmocka_unit_test(test_moved),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("cm_conn", tests, NULL, NULL);
}

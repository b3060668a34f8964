/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections over a QP of the application's own (ibv_create_qp, id->qp NULL): rdma_connect(3), rdma_init_qp_attr(3),
 * rdma_establish(3), RDMA_CM_EVENT_CONNECT_RESPONSE. Either side may do so without the other's knowing. And the
 * synchronous endpoints of rdma_create_ep(3).
 */
#include "tv.h"

#include <rdma/rdma_verbs.h>
#include <setjmp.h>
#include <cmocka.h>

static void listen_here(struct tv_side *s, struct rdma_event_channel **ch, struct rdma_cm_id **lis)
{
	uint16_t port = 0;

	*ch = tv_channel();
	*lis = tv_listen(*ch, "0.0.0.0", &port, 8);
	tv_put(s->ctl, &port, 2);
}

static uint16_t take_port(struct tv_side *s)
{
	uint16_t port;

	tv_get(s->ctl, &port, 2);
	return port;
}

/* An end on a resolved or requested id, its QP made by ibv_create_qp and moved to INIT by the CM's attributes. */
static void own_open(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr ia = {.qp_type = IBV_QPT_RC, .cap = tv_defaults.cap};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
	int mask = 0;

	memset(e, 0, sizeof(*e));
	memset(d, 0, sizeof(*d));
	e->dev = d;
	e->opt = tv_defaults;
	d->ctx = id->verbs;
	CHECK(d->ctx);
	d->pd = ibv_alloc_pd(d->ctx);
	CHECK(d->pd);
	e->scq = ibv_create_cq(d->ctx, 128, NULL, NULL, 0);
	e->rcq = ibv_create_cq(d->ctx, 128, NULL, NULL, 0);
	CHECK(e->scq && e->rcq);
	e->len = 65536;
	e->buf = aligned_alloc(4096, e->len);
	memset(e->buf, 0, e->len);
	e->opt.buf = e->buf;
	e->mr = ibv_reg_mr(d->pd, e->buf, e->len, tv_defaults.mr_access);
	CHECK(e->mr);
	ia.send_cq = e->scq;
	ia.recv_cq = e->rcq;
	e->qp = ibv_create_qp(d->pd, &ia);
	CHECK(e->qp);
	CHECK(!id->qp);
	CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
	CHECK_EQ(mask & (IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS),
		 IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
	CHECK_EQ(attr.qp_state, IBV_QPS_INIT);
	CHECK_EQ(attr.port_num, id->port_num);
	attr.qp_access_flags |= tv_defaults.qp_access;
	CHECK_EQ(ibv_modify_qp(e->qp, &attr, mask), 0);
}

static void own_close(struct tv_end *e, struct rdma_cm_id *id)
{
	uint8_t *buf = e->buf;

	tv_end_close(e);
	free(buf);
	CHECK_EQ(ibv_dealloc_pd(e->dev->pd), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);
}

/* INIT to RTR to RTS by the CM's attributes, with a patience of our own. */
static void own_ready(struct tv_end *e, struct rdma_cm_id *id, uint32_t peer_qpn, int cm_rnr_retry)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask = 0;

	CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
	CHECK(mask & IBV_QP_DEST_QPN && mask & IBV_QP_AV && mask & IBV_QP_MIN_RNR_TIMER);
	CHECK_EQ(attr.dest_qp_num, peer_qpn);
	attr.min_rnr_timer = 1;
	CHECK_EQ(ibv_modify_qp(e->qp, &attr, mask), 0);
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
	CHECK_EQ(rdma_init_qp_attr(id, &attr, &mask), 0);
	CHECK(mask & IBV_QP_RNR_RETRY && mask & IBV_QP_RETRY_CNT && mask & IBV_QP_SQ_PSN);
	CHECK_EQ(attr.rnr_retry, cm_rnr_retry);
	attr.rnr_retry = 7;
	CHECK_EQ(ibv_modify_qp(e->qp, &attr, mask), 0);
	CHECK_EQ(tv_end_state(e), IBV_QPS_RTS);
}

static void params(struct rdma_conn_param *p, struct tv_end *e, struct tv_wire *w, uint8_t rnr_retry)
{
	*w = (struct tv_wire){.qpn = e->qp->qp_num, .rkey = e->mr->rkey, .addr = (uintptr_t)e->buf};
	tv_param(p);
	p->qp_num = e->qp->qp_num;
	p->rnr_retry_count = rnr_retry;
	p->private_data = w;
	p->private_data_len = sizeof(*w);
}

static void exchange(struct tv_end *e, int round)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	tv_fill(e->buf + 8192, 4096, round);
	tv_wr(e, &wr, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, 8192, 4096, round);
	wr.wr.rdma.remote_addr = e->peer.addr + 16384;
	CHECK_EQ(tv_post_wr(e, &wr), 0);
	tv_ok(e->scq, round);
	CHECK_EQ(ntohl(tv_ok(e->rcq, 77).imm_data), round);
	CHECK_FILL(e->buf + 16384, 4096, round);
}

/* As the connector of a native server: its REP says rnr_retry 0. */
static void own_connect(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id **out, struct rdma_event_channel *ch,
			uint16_t port)
{
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire w;

	own_open(e, d, id);
	tv_recv(e, 0, 100, 77);
	params(&p, e, &w, 6);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(ev->id == id);
	CHECK_EQ(ev->param.conn.private_data_len, 196);
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	CHECK_EQ(ev->param.conn.qp_num, e->peer.qpn);
	CHECK_EQ(ev->param.conn.rnr_retry_count, 0);
	tv_ack(ev);
	CHECK_EQ(tv_end_state(e), IBV_QPS_INIT);
	own_ready(e, id, e->peer.qpn, 0);
	CHECK_EQ(rdma_establish(id), 0);
	*out = id;
}

static void own_accept(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id **out, struct rdma_event_channel *ch)
{
	struct rdma_cm_event *ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = ev->id;
	struct rdma_conn_param p;
	struct tv_wire w;

	own_open(e, d, id);
	tv_recv(e, 0, 100, 77);
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	CHECK_EQ(ev->param.conn.qp_num, e->peer.qpn);
	CHECK_EQ(ev->param.conn.rnr_retry_count, 6);
	tv_ack(ev);
	own_ready(e, id, e->peer.qpn, 6);
	params(&p, e, &w, 0);
	CHECK_EQ(rdma_accept(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(ev->id == id);
	tv_ack(ev);
	*out = id;
}

/* The same by a QP that the CM owns. */
static void cm_connect(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id **out, struct rdma_event_channel *ch,
		       uint16_t port)
{
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire w;

	tv_end_open_cm(e, d, id, NULL);
	tv_recv(e, 0, 100, 77);
	params(&p, e, &w, 6);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	tv_ack(ev);
	/* "should not be used on an rdma_cm_id on which a QP has been created" */
	CHECK_EQ(rdma_establish(id), -1);
	*out = id;
}

static void cm_accept(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id **out, struct rdma_event_channel *ch)
{
	struct rdma_cm_event *ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = ev->id;
	struct rdma_conn_param p;
	struct tv_wire w;

	tv_end_open_cm(e, d, id, NULL);
	tv_recv(e, 0, 100, 77);
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	tv_ack(ev);
	params(&p, e, &w, 0);
	CHECK_EQ(rdma_accept(id, &p), 0);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	*out = id;
}

enum { ROUNDS = 8 };

static void close_end(struct tv_end *e, struct rdma_cm_id *id, bool own)
{
	if (own) {
		own_close(e, id);
	} else {
		tv_end_close(e);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
}

/* After this side's DISCONNECTED and rdma_disconnect: a QP of one's own has not been touched. */
static void after(struct tv_end *e, bool own)
{
	if (own) {
		CHECK_EQ(tv_end_state(e), IBV_QPS_RTS);
		tv_none(e->rcq, 10);
		tv_end_err(e);
	}
	tv_want(e->rcq, 5, IBV_WC_WR_FLUSH_ERR);
}

static void server(struct tv_side *s, bool own)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct tv_dev d;
	struct tv_end e;

	listen_here(s, &ch, &lis);
	for (int i = 0; i < ROUNDS; i++) {
		(own ? own_accept : cm_accept)(&e, &d, &id, ch);
		exchange(&e, i);
		tv_recv(&e, 0, 64, 5);
		tv_sync(s);
		if (i % 2)
			CHECK_EQ(rdma_disconnect(id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		if (i % 2 == 0)
			CHECK_EQ(rdma_disconnect(id), 0);
		after(&e, own);
		close_end(&e, id, own);
		tv_sync(s);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void client(struct tv_side *s, bool own)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);
	struct rdma_cm_id *id;
	struct tv_dev d;
	struct tv_end e;

	for (int i = 0; i < ROUNDS; i++) {
		(own ? own_connect : cm_connect)(&e, &d, &id, ch, port);
		exchange(&e, i);
		tv_recv(&e, 0, 64, 5);
		if (own) /* "only generated on ids that have no QP": and no ESTABLISHED there */
			CHECK(!tv_readable(ch->fd, 5));
		tv_sync(s);
		if (i % 2 == 0)
			CHECK_EQ(rdma_disconnect(id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		if (i % 2)
			CHECK_EQ(rdma_disconnect(id), 0);
		after(&e, own);
		close_end(&e, id, own);
		tv_sync(s);
	}
	rdma_destroy_event_channel(ch);
}

static void own_server(struct tv_side *s)
{
	server(s, true);
}

static void cm_server(struct tv_side *s)
{
	server(s, false);
}

static void own_client(struct tv_side *s)
{
	client(s, true);
}

static void cm_client(struct tv_side *s)
{
	client(s, false);
}

/* ---------------------------------------------------------------- data before ESTABLISHED */

/* The connector may send as soon as it is in RTS: the acceptor's completion may come before its event. */
static void early_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	struct rdma_conn_param p;
	struct tv_wire w;
	struct tv_dev d;
	struct tv_end e;

	listen_here(s, &ch, &lis);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = ev->id;
	own_open(&e, &d, id);
	tv_recv(&e, 0, 100, 77);
	memcpy(&e.peer, ev->param.conn.private_data, sizeof(e.peer));
	tv_ack(ev);
	own_ready(&e, id, e.peer.qpn, 6);
	params(&p, &e, &w, 0);
	CHECK_EQ(rdma_accept(id, &p), 0);
	tv_ok(e.rcq, 77); /* without rdma_establish on the other side */
	CHECK_FILL(e.buf, 100, 4);
	tv_sync(s);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_disconnect(id), 0);
	own_close(&e, id);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void early_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), take_port(s));
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire w;
	struct tv_dev d;
	struct tv_end e;

	own_open(&e, &d, id);
	params(&p, &e, &w, 6);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_RESPONSE);
	memcpy(&e.peer, ev->param.conn.private_data, sizeof(e.peer));
	tv_ack(ev);
	own_ready(&e, id, e.peer.qpn, 0);
	tv_fill(e.buf, 100, 4);
	tv_post(&e, IBV_WR_SEND, 0, 100, 1);
	tv_ok(e.scq, 1);
	tv_sync(s);
	CHECK_EQ(rdma_establish(id), 0);
	CHECK_EQ(rdma_disconnect(id), 0);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	own_close(&e, id);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- reject, refusal after the response */

static void reject_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	struct rdma_conn_param p;
	struct tv_wire w;
	struct tv_dev d;
	struct tv_end e;

	listen_here(s, &ch, &lis);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = ev->id;
	CHECK_EQ(rdma_reject(id, "no", 2), 0);
	tv_ack(ev);
	CHECK_EQ(rdma_destroy_id(id), 0);
	/* Accepted, but the connector does not like the response: REJECTED here. */
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	id = ev->id;
	own_open(&e, &d, id);
	memcpy(&e.peer, ev->param.conn.private_data, sizeof(e.peer));
	tv_ack(ev);
	own_ready(&e, id, e.peer.qpn, 6);
	params(&p, &e, &w, 0);
	CHECK_EQ(rdma_accept(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
	CHECK(ev->id == id);
	CHECK_NE(ev->status, 0);
	tv_ack(ev);
	CHECK_EQ(tv_end_state(&e), IBV_QPS_RTS); /* ours to move */
	own_close(&e, id);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

static void reject_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);

	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
		struct rdma_conn_param p;
		struct rdma_cm_event *ev;
		struct tv_wire w;
		struct tv_dev d;
		struct tv_end e;

		own_open(&e, &d, id);
		tv_recv(&e, 0, 64, 3);
		params(&p, &e, &w, 6);
		CHECK_EQ(rdma_connect(id, &p), 0);
		if (i == 0) {
			ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
			CHECK_EQ(ev->status, 28);
			CHECK_EQ(memcmp(ev->param.conn.private_data, "no", 3), 0);
			tv_ack(ev);
		} else {
			tv_expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE);
			CHECK_EQ(rdma_reject(id, NULL, 0), 0);
		}
		CHECK_EQ(tv_end_state(&e), IBV_QPS_INIT);
		tv_none(e.rcq, 5);
		own_close(&e, id);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- endpoints */

static void ep_server(struct tv_side *s)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *res;
	struct ibv_qp_init_attr ia = {.cap = tv_defaults.cap, .sq_sig_all = 1};
	struct rdma_cm_id *lis, *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	uint8_t buf[64];
	uint16_t port;

	CHECK_EQ(rdma_getaddrinfo(tv_addr4(), "0", &hints, &res), 0);
	CHECK_EQ(rdma_create_ep(&lis, res, NULL, &ia), 0);
	rdma_freeaddrinfo(res);
	CHECK_EQ(rdma_listen(lis, 1), 0);
	port = ntohs(rdma_get_src_port(lis));
	tv_put(s->ctl, &port, 2);
	CHECK_EQ(rdma_get_request(lis, &id), 0);
	CHECK(id->qp && id->recv_cq && id->recv_cq_channel && id->send_cq);
	mr = rdma_reg_msgs(id, buf, sizeof(buf));
	CHECK(mr);
	CHECK_EQ(rdma_post_recv(id, NULL, buf, sizeof(buf), mr), 0);
	CHECK_EQ(rdma_accept(id, NULL), 0);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_FILL(buf, sizeof(buf), 1);
	tv_fill(buf, sizeof(buf), 2);
	CHECK_EQ(rdma_post_send(id, NULL, buf, sizeof(buf), mr, 0), 0);
	CHECK_EQ(rdma_get_send_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	tv_sync(s);
	CHECK_EQ(rdma_disconnect(id), 0);
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(lis);
}

static void ep_client(struct tv_side *s)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *res;
	struct ibv_qp_init_attr ia = {.cap = tv_defaults.cap, .sq_sig_all = 1};
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	uint8_t buf[128];
	char port[8];

	snprintf(port, sizeof(port), "%u", take_port(s));
	CHECK_EQ(rdma_getaddrinfo(tv_addr4(), port, &hints, &res), 0);
	CHECK_EQ(rdma_create_ep(&id, res, NULL, &ia), 0);
	rdma_freeaddrinfo(res);
	mr = rdma_reg_msgs(id, buf, sizeof(buf));
	CHECK(mr);
	CHECK_EQ(rdma_post_recv(id, NULL, buf + 64, 64, mr), 0);
	CHECK_EQ(rdma_connect(id, NULL), 0);
	tv_fill(buf, 64, 1);
	CHECK_EQ(rdma_post_send(id, NULL, buf, 64, mr, 0), 0);
	CHECK_EQ(rdma_get_send_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_EQ(rdma_get_recv_comp(id, &wc), 1);
	CHECK_EQ(wc.status, IBV_WC_SUCCESS);
	CHECK_FILL(buf + 64, 64, 2);
	tv_sync(s);
	rdma_disconnect(id); /* the other side may have been first */
	CHECK_EQ(rdma_dereg_mr(mr), 0);
	rdma_destroy_ep(id);
}

#define PAIR(name, a, b)                                                                                               \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		tv_pair(a, b, 30);                                                                                     \
	}
PAIR(own_own, own_server, own_client)
PAIR(own_cm, own_server, cm_client)
PAIR(cm_own, cm_server, own_client)
PAIR(early, early_server, early_client)
PAIR(reject, reject_server, reject_client)
PAIR(endpoints, ep_server, ep_client)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_own_own), cmocka_unit_test(test_own_cm), cmocka_unit_test(test_cm_own),
	    cmocka_unit_test(test_early),   cmocka_unit_test(test_reject), cmocka_unit_test(test_endpoints),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("cm_own", tests, NULL, NULL);
}

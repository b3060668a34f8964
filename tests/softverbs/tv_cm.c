/* SPDX-License-Identifier: BSD-2-Clause */
/* rdma_cm helpers: see tv.h. */
#include "tv.h"

const char *tv_addr4(void)
{
	const char *s = getenv("TV_ADDR4");

	return s ? s : "127.0.0.1";
}

const char *tv_addr6(void)
{
	const char *s = getenv("TV_ADDR6");

	return s ? s : "::1";
}

socklen_t tv_sockaddr(struct sockaddr_storage *ss, const char *ip, uint16_t port)
{
	struct sockaddr_in *in = (void *)ss;
	struct sockaddr_in6 *in6 = (void *)ss;

	memset(ss, 0, sizeof(*ss));
	if (inet_pton(AF_INET, ip, &in->sin_addr) == 1) {
		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		return sizeof(*in);
	}
	CHECK_EQ(inet_pton(AF_INET6, ip, &in6->sin6_addr), 1);
	in6->sin6_family = AF_INET6;
	in6->sin6_port = htons(port);
	return sizeof(*in6);
}

struct rdma_event_channel *tv_channel(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();

	if (!ch && !getenv("TV_REQUIRE"))
		tv_skip("no rdma_cm");
	CHECK(ch);
	return ch;
}

struct rdma_cm_event *tv_any_event(struct rdma_event_channel *ch, int ms)
{
	struct rdma_cm_event *ev = NULL;

	if (!tv_readable(ch->fd, ms * tv_scale()))
		return NULL;
	CHECK_EQ(rdma_get_cm_event(ch, &ev), 0);
	CHECK(ev);
	return ev;
}

struct rdma_cm_event *tv_event_at(const char *file, int line, struct rdma_event_channel *ch,
				  enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev = tv_any_event(ch, 10000);

	if (!ev)
		tv_fail(file, line, "no event within 10 s, expected %s", rdma_event_str(type));
	if (ev->event != type)
		tv_fail(file, line, "event %s with status %d, expected %s", rdma_event_str(ev->event), ev->status,
			rdma_event_str(type));
	return ev;
}

void tv_ack(struct rdma_cm_event *ev)
{
	CHECK_EQ(rdma_ack_cm_event(ev), 0);
}

struct rdma_cm_id *tv_listen(struct rdma_event_channel *ch, const char *ip, uint16_t *port, int backlog)
{
	struct sockaddr_storage ss;
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, ip, *port);
	CHECK_EQ(rdma_bind_addr(id, (struct sockaddr *)&ss), 0);
	CHECK_EQ(rdma_listen(id, backlog), 0);
	*port = ntohs(rdma_get_src_port(id));
	CHECK_NE(*port, 0);
	return id;
}

struct rdma_cm_id *tv_resolve(struct rdma_event_channel *ch, const char *ip, uint16_t port)
{
	struct sockaddr_storage ss;
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, ip, port);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

void tv_param(struct rdma_conn_param *p)
{
	*p = (struct rdma_conn_param){
	    .responder_resources = 4,
	    .initiator_depth = 4,
	    .retry_count = 7,
	    .rnr_retry_count = 7,
	};
}

/* The CM leaves 0, which is 655 ms: a test with late receives would crawl. */
static void quick_rnr(struct tv_end *e)
{
	struct ibv_qp_attr attr = {.min_rnr_timer = e->opt.min_rnr_timer};

	if (!e->opt.no_rnr_timer)
		CHECK_EQ(ibv_modify_qp(e->qp, &attr, IBV_QP_MIN_RNR_TIMER), 0);
}

void tv_cm_client(struct tv_end *e, struct rdma_event_channel *ch, uint16_t port, const struct tv_opt *opt)
{
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
	struct tv_dev *d = calloc(1, sizeof(*d));
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire mine;

	CHECK(d);
	tv_end_open_cm(e, d, id, opt);
	if (e->opt.first_recv)
		tv_recv(e, 0, e->opt.first_recv, 77);
	tv_end_wire(e, &mine);
	tv_param(&p);
	p.private_data = &mine;
	p.private_data_len = sizeof(mine);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK_OP(ev->param.conn.private_data_len, >=, sizeof(mine));
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	tv_ack(ev);
	quick_rnr(e);
}

void tv_cm_server(struct tv_end *e, struct rdma_event_channel *ch, const struct tv_opt *opt)
{
	struct rdma_cm_event *ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = ev->id;
	struct tv_dev *d = calloc(1, sizeof(*d));
	struct rdma_conn_param p;
	struct tv_wire mine;

	CHECK(d);
	tv_end_open_cm(e, d, id, opt);
	if (e->opt.first_recv)
		tv_recv(e, 0, e->opt.first_recv, 77);
	CHECK_OP(ev->param.conn.private_data_len, >=, sizeof(mine));
	memcpy(&e->peer, ev->param.conn.private_data, sizeof(e->peer));
	tv_ack(ev);
	tv_end_wire(e, &mine);
	tv_param(&p);
	p.private_data = &mine;
	p.private_data_len = sizeof(mine);
	CHECK_EQ(rdma_accept(id, &p), 0);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	quick_rnr(e);
}

void tv_cm_end(struct tv_end *e, struct rdma_event_channel *ch)
{
	struct tv_dev *d = e->dev;

	/* EINVAL: the peer was first, and this end has answered already. */
	if (rdma_disconnect(e->id))
		CHECK_EQ(errno, EINVAL);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	tv_end_close(e);
	CHECK_EQ(rdma_destroy_id(e->id), 0);
	free(d);
}

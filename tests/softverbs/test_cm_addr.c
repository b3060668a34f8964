/* SPDX-License-Identifier: BSD-2-Clause */
/* Connections by address family, the backlog, and requests whose sender has gone. */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

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

static void families_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = 0;
	int one = 1;

	/* 0: [::] serves IPv6, IPv4 and v4-mapped. 1: with AFONLY on two listeners each gets its own. */
	for (int phase = 0; phase < 2; phase++) {
		struct rdma_cm_id *v6, *v4 = NULL;
		struct sockaddr_storage ss;
		struct tv_end e;

		port = 0;
		CHECK_EQ(rdma_create_id(ch, &v6, NULL, RDMA_PS_TCP), 0);
		if (phase)
			CHECK_EQ(rdma_set_option(v6, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
		tv_sockaddr(&ss, "::", 0);
		CHECK_EQ(rdma_bind_addr(v6, (struct sockaddr *)&ss), 0);
		CHECK_EQ(rdma_listen(v6, 8), 0);
		port = ntohs(rdma_get_src_port(v6));
		if (phase) {
			CHECK_EQ(rdma_create_id(ch, &v4, NULL, RDMA_PS_TCP), 0);
			CHECK_EQ(rdma_set_option(v4, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
			tv_sockaddr(&ss, "0.0.0.0", port);
			CHECK_EQ(rdma_bind_addr(v4, (struct sockaddr *)&ss), 0);
			CHECK_EQ(rdma_listen(v4, 8), 0);
		}
		give_port(s, port);
		for (int i = 0; i < 2; i++) { /* IPv6 first, then IPv4 */
			CHECK(tv_readable(ch->fd, 10000));
			tv_cm_server(&e, ch, NULL);
			CHECK_EQ(rdma_get_local_addr(e.id)->sa_family, rdma_get_peer_addr(e.id)->sa_family);
			if (i == 0)
				CHECK_EQ(rdma_get_peer_addr(e.id)->sa_family, AF_INET6);
			CHECK_EQ(ntohs(rdma_get_src_port(e.id)), port);
			tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
			CHECK_EQ(rdma_disconnect(e.id), 0);
			tv_end_close(&e);
			CHECK_EQ(rdma_destroy_id(e.id), 0);
			free(e.dev);
		}
		CHECK_EQ(rdma_destroy_id(v6), 0);
		if (v4)
			CHECK_EQ(rdma_destroy_id(v4), 0);
		tv_sync(s);
	}
	rdma_destroy_event_channel(ch);
}

static void connect_to(struct rdma_event_channel *ch, const char *ip, uint16_t port)
{
	struct rdma_cm_id *id = tv_resolve(ch, ip, port);
	struct rdma_conn_param p;
	struct tv_wire w;
	struct tv_dev d;
	struct tv_end e;

	tv_end_open_cm(&e, &d, id, NULL);
	tv_end_wire(&e, &w);
	tv_param(&p);
	p.private_data = &w;
	p.private_data_len = sizeof(w);
	CHECK_EQ(rdma_connect(id, &p), 0);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK_EQ(ntohs(rdma_get_dst_port(id)), port);
	CHECK_EQ(rdma_disconnect(id), 0);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(id), 0);
}

static void families_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();

	for (int phase = 0; phase < 2; phase++) {
		uint16_t port = take_port(s);

		connect_to(ch, tv_addr6(), port);
		connect_to(ch, tv_addr4(), port);
		tv_sync(s);
	}
	rdma_destroy_event_channel(ch);
}

/* An IPv6-only listener refuses IPv4 and the other way round. */
static void wrong_family_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	static const char *const any[] = {"::", "0.0.0.0"};
	int one = 1;

	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *lis, *id;
		struct sockaddr_storage ss;
		struct rdma_conn_param p;
		struct rdma_cm_event *ev;
		struct tv_dev d;
		struct tv_end e;

		CHECK_EQ(rdma_create_id(ch, &lis, NULL, RDMA_PS_TCP), 0);
		CHECK_EQ(rdma_set_option(lis, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
		tv_sockaddr(&ss, any[i], 0);
		CHECK_EQ(rdma_bind_addr(lis, (struct sockaddr *)&ss), 0);
		CHECK_EQ(rdma_listen(lis, 8), 0);
		id = tv_resolve(ch, i ? tv_addr6() : tv_addr4(), ntohs(rdma_get_src_port(lis)));
		tv_end_open_cm(&e, &d, id, NULL);
		tv_param(&p);
		CHECK_EQ(rdma_connect(id, &p), 0);
		ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
		CHECK(ev->status == 8 || ev->status == 28); /* Linux has a service for the port, and refuses: 28 */
		tv_ack(ev);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
		CHECK_EQ(rdma_destroy_id(lis), 0);
	}
	rdma_destroy_event_channel(ch);
}

/* ::ffff:a.b.c.d reaches an IPv4 listener. */
static void mapped_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_end e;

	if (!tv_strict())
		tv_skip("Linux resolves no mapped address");
	listen_here(s, &ch, &lis, 5);
	tv_cm_server(&e, ch, NULL);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_disconnect(e.id), 0);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(e.id), 0);
	free(e.dev);
	tv_sync(s);
	stop_listening(ch, lis);
}

static void mapped_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	char ip[64];

	snprintf(ip, sizeof(ip), "::ffff:%s", tv_addr4());
	if (!tv_strict())
		tv_skip("Linux resolves no mapped address");
	connect_to(ch, ip, take_port(s));
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- backlog */

enum { BACKLOG = 4, TRIES = 12 };

/*
 * Requests that nobody has taken from the channel count against the backlog; the ones within it wait and can be
 * accepted later, the ones beyond it fail: at once on softverbs; Linux drops them, and they would be tried again for a
 * minute.
 */
static void backlog_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_end e[BACKLOG];
	struct tv_dev d[BACKLOG];
	int n = 0, up = 0;

	if (!tv_strict())
		tv_skip("takes a minute");
	listen_here(s, &ch, &lis, BACKLOG);
	tv_sync(s); /* all have been sent, and those beyond the backlog have failed */
	while (up < BACKLOG) {
		struct rdma_cm_event *ev = tv_any_event(ch, 10000);
		struct rdma_conn_param p;

		CHECK(ev);
		if (ev->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			CHECK_OP(n, <, BACKLOG);
			tv_end_open_cm(&e[n], &d[n], ev->id, NULL);
			tv_param(&p);
			CHECK_EQ(rdma_accept(ev->id, &p), 0);
			n++;
		} else {
			CHECK_EQ(ev->event, RDMA_CM_EVENT_ESTABLISHED);
			up++;
		}
		tv_ack(ev);
	}
	CHECK(!tv_readable(ch->fd, 50));
	tv_sync(s);
	for (int i = 0; i < BACKLOG; i++)
		CHECK_EQ(rdma_disconnect(e[i].id), 0);
	for (int i = 0; i < BACKLOG; i++)
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	for (int i = 0; i < BACKLOG; i++) {
		tv_end_close(&e[i]);
		CHECK_EQ(rdma_destroy_id(e[i].id), 0);
	}
	tv_sync(s);
	stop_listening(ch, lis);
}

static void backlog_client(struct tv_side *s)
{
	uint16_t port = tv_strict() ? take_port(s) : 0;
	struct {
		struct rdma_event_channel *ch;
		struct tv_dev d;
		struct tv_end e;
		bool failed;
	} c[TRIES];
	int failed = 0;

	if (!tv_strict())
		tv_skip("takes a minute");
	for (int i = 0; i < TRIES; i++) {
		struct rdma_conn_param p;
		struct tv_wire w;
		struct rdma_cm_id *id;

		c[i].ch = tv_channel();
		id = tv_resolve(c[i].ch, tv_addr4(), port);
		tv_end_open_cm(&c[i].e, &c[i].d, id, NULL);
		tv_end_wire(&c[i].e, &w);
		tv_param(&p);
		p.private_data = &w;
		p.private_data_len = sizeof(w);
		CHECK_EQ(rdma_connect(id, &p), 0);
		c[i].failed = false;
	}
	for (int i = BACKLOG; i < TRIES; i++) {
		struct rdma_cm_event *ev = tv_event(c[i].ch, RDMA_CM_EVENT_REJECTED);

		CHECK_NE(ev->status, 0);
		tv_ack(ev);
		c[i].failed = true;
		failed++;
	}
	CHECK_EQ(failed, TRIES - BACKLOG);
	for (int i = 0; i < BACKLOG; i++)
		CHECK(!tv_readable(c[i].ch->fd, 0));
	tv_sync(s);
	for (int i = 0; i < BACKLOG; i++)
		tv_expect(c[i].ch, RDMA_CM_EVENT_ESTABLISHED);
	tv_sync(s);
	for (int i = 0; i < TRIES; i++) {
		if (!c[i].failed) {
			tv_expect(c[i].ch, RDMA_CM_EVENT_DISCONNECTED);
			CHECK_EQ(rdma_disconnect(c[i].e.id), 0);
		}
		tv_end_close(&c[i].e);
		CHECK_EQ(rdma_destroy_id(c[i].e.id), 0);
		rdma_destroy_event_channel(c[i].ch);
	}
	tv_sync(s);
}

/* The connector gives up while its request waits: the acceptor's attempt to take it fails, one way or another. */
static void gone_server(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	struct rdma_conn_param p;

	listen_here(s, &ch, &lis, 5);
	for (int i = 0; i < 20; i++) {
		ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
		id = ev->id;
		tv_sync(s); /* the connector destroys its id now */
		tv_sync(s);
		tv_ack(ev);
		tv_param(&p);
		p.qp_num = 0x1234; /* no QP: Linux would refuse to make one on such an id */
		if (rdma_accept(id, &p) == 0) {
			ev = tv_any_event(ch, 10000);
			CHECK(ev && ev->id == id);
			CHECK_NE(ev->event, RDMA_CM_EVENT_ESTABLISHED);
			tv_ack(ev);
		}
		CHECK_EQ(rdma_destroy_id(id), 0);
		tv_sync(s);
	}
	stop_listening(ch, lis);
}

static void gone_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = take_port(s);

	for (int i = 0; i < 20; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);
		struct rdma_conn_param p;
		struct tv_dev d;
		struct tv_end e;

		tv_end_open_cm(&e, &d, id, NULL);
		tv_param(&p);
		CHECK_EQ(rdma_connect(id, &p), 0);
		tv_sync(s);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
		tv_sync(s);
		tv_sync(s);
		CHECK(!tv_readable(ch->fd, 0));
	}
	rdma_destroy_event_channel(ch);
}

/* Ports that nobody asked for: no two are the same, and none is among those that TCP sockets get (the kernel's
 * connection manager has its ports for itself, and takes them from the same range). */
static void ports_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis[32];
	bool seen[65536] = {false};

	for (int i = 0; i < 32; i++) {
		uint16_t port = 0;

		lis[i] = tv_listen(ch, "127.0.0.1", &port, 4);
		if (tv_strict())
			CHECK_OP(port, >=, 61000);
		CHECK_OP(port, !=, 0);
		CHECK(!seen[port]);
		seen[port] = true;
	}
	for (int i = 0; i < 32; i++)
		CHECK_EQ(rdma_destroy_id(lis[i]), 0);
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
PAIR(families, families_server, families_client)
PAIR(mapped, mapped_server, mapped_client)
PAIR(backlog, backlog_server, backlog_client)
PAIR(gone, gone_server, gone_client)
SOLO(wrong_family)
SOLO(ports)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_families), cmocka_unit_test(test_mapped), cmocka_unit_test(test_wrong_family),
	    cmocka_unit_test(test_backlog),  cmocka_unit_test(test_gone),   cmocka_unit_test(test_ports),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("cm_addr", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* rdma_cm without connections: ids, addresses, binding, listening, resolving, channels: rdma_cm(7) and its pages. */
#include "tv.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <cmocka.h>

static struct rdma_cm_id *new_id(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *id = NULL;

	CHECK_EQ(rdma_create_id(ch, &id, ch, RDMA_PS_TCP), 0);
	CHECK(id);
	return id;
}

static int bind_to(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	struct sockaddr_storage ss;

	tv_sockaddr(&ss, ip, port);
	return rdma_bind_addr(id, (struct sockaddr *)&ss);
}

static void afonly(struct rdma_cm_id *id)
{
	int one = 1;

	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
}

/* Linux says EADDRNOTAVAIL where a wildcard is one of the two, EADDRINUSE where the addresses are equal. */
static void in_use_as(struct rdma_cm_id *id, const char *ip, uint16_t port, int err)
{
	errno = 0;
	CHECK_EQ(bind_to(id, ip, port), -1);
	CHECK_EQ(errno, err);
}

static void in_use(struct rdma_cm_id *id, const char *ip, uint16_t port)
{
	in_use_as(id, ip, port, EADDRNOTAVAIL);
}

static void ids_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id = new_id(ch);

	CHECK(id->channel == ch && id->context == ch && id->ps == RDMA_PS_TCP);
	CHECK(!id->verbs && !id->qp);
	CHECK(!tv_readable(ch->fd, 10));
	tv_nonblock(ch->fd);
	CHECK_FAILS(rdma_get_cm_event(ch, &ev), EAGAIN);
	CHECK_EQ(rdma_destroy_id(id), 0);
	for (int i = 0; i < 300; i++)
		CHECK_EQ(rdma_destroy_id(new_id(ch)), 0);
	rdma_destroy_event_channel(ch);
}

static void ports_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *a = new_id(ch), *b = new_id(ch), *many[50];
	uint16_t port;

	/* Port 0: one is chosen at bind, and differs. */
	CHECK_EQ(bind_to(a, "0.0.0.0", 0), 0);
	port = ntohs(rdma_get_src_port(a));
	CHECK_OP(port, >, 1023);
	CHECK_EQ(rdma_get_local_addr(a)->sa_family, AF_INET);
	CHECK_EQ(ntohs(((struct sockaddr_in *)rdma_get_local_addr(a))->sin_port), port);
	for (int i = 0; i < 50; i++) {
		many[i] = new_id(ch);
		CHECK_EQ(bind_to(many[i], i % 2 ? tv_addr4() : "0.0.0.0", 0), 0);
		CHECK_NE(ntohs(rdma_get_src_port(many[i])), port);
		for (int j = 0; j < i; j++)
			CHECK_NE(rdma_get_src_port(many[i]), rdma_get_src_port(many[j]));
	}
	for (int i = 0; i < 50; i++)
		CHECK_EQ(rdma_destroy_id(many[i]), 0);
	/* Taken, by equal and by overlapping addresses, listening or only bound. */
	in_use(b, "0.0.0.0", port);
	in_use(b, tv_addr4(), port);
	CHECK_EQ(rdma_listen(a, 5), 0);
	in_use(b, "0.0.0.0", port);
	/* Bound twice. */
	CHECK_FAILS(bind_to(a, "0.0.0.0", 0), EINVAL);
	/* Free again. */
	CHECK_EQ(rdma_destroy_id(a), 0);
	CHECK_EQ(bind_to(b, tv_addr4(), port), 0);
	CHECK(b->verbs); /* "If binding to a specific local address, the id will also be bound to a local device." */
	CHECK_EQ(rdma_listen(b, 5), 0);
	a = new_id(ch);
	errno = 0;
	CHECK_EQ(bind_to(a, tv_addr4(), port), -1);
	CHECK_EQ(errno, EADDRINUSE);
	CHECK_EQ(rdma_destroy_id(a), 0);
	CHECK_EQ(rdma_destroy_id(b), 0);
	rdma_destroy_event_channel(ch);
}

/* The port space is the host's, not the process's, and is no TCP port. */
static void port_owner(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port = 0;
	struct rdma_cm_id *id = tv_listen(ch, "0.0.0.0", &port, 5);
	struct sockaddr_storage ss;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	tv_sockaddr(&ss, "127.0.0.1", port);
	CHECK_EQ(bind(fd, (struct sockaddr *)&ss, sizeof(struct sockaddr_in)), 0);
	close(fd);
	tv_put(s->ctl, &port, 2);
	tv_sync(s);
	CHECK_EQ(rdma_destroy_id(id), 0);
	tv_sync(s);
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

static void port_wanter(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = new_id(ch);
	uint16_t port;

	tv_get(s->ctl, &port, 2);
	in_use(id, "0.0.0.0", port);
	in_use(id, tv_addr4(), port);
	tv_sync(s);
	tv_sync(s);
	CHECK_EQ(bind_to(id, "0.0.0.0", port), 0);
	CHECK_EQ(rdma_listen(id, 1), 0);
	tv_sync(s);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

static void reuse_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *a = new_id(ch), *b = new_id(ch);
	uint16_t port;
	int one = 1;

	/* REUSEADDR: both may bind; who listens must be alone. */
	CHECK_EQ(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), 0);
	CHECK_EQ(rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), 0);
	CHECK_EQ(bind_to(a, tv_addr4(), 0), 0);
	port = ntohs(rdma_get_src_port(a));
	CHECK_EQ(bind_to(b, tv_addr4(), port), 0);
	errno = 0;
	CHECK_EQ(rdma_listen(a, 5), -1);
	CHECK_EQ(errno, EADDRINUSE);
	CHECK_EQ(rdma_destroy_id(b), 0);
	CHECK_EQ(rdma_listen(a, 5), 0);
	b = new_id(ch);
	CHECK_EQ(rdma_set_option(b, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), 0);
	in_use_as(b, tv_addr4(), port, EADDRINUSE);
	CHECK_EQ(rdma_destroy_id(a), 0);
	CHECK_EQ(rdma_destroy_id(b), 0);
	rdma_destroy_event_channel(ch);
}

static void options_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = new_id(ch);
	uint8_t tos = 0x20, ack = 14;
	int one = 1;

	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack, sizeof(ack)), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof(one)), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), 0);
	CHECK_EQ(rdma_set_option(id, RDMA_OPTION_ID, 99, &one, sizeof(one)), -1);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof(one)), EINVAL);
	/* AFONLY is for before the listen. */
	CHECK_EQ(bind_to(id, "::", 0), 0);
	CHECK_EQ(rdma_listen(id, 1), 0);
	CHECK_FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, sizeof(one)), EINVAL);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

static void families_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *v6 = new_id(ch), *v4 = new_id(ch), *other = new_id(ch);
	uint16_t port;

	/* [::] without AFONLY is IPv4's too. */
	CHECK_EQ(bind_to(v6, "::", 0), 0);
	port = ntohs(rdma_get_src_port(v6));
	CHECK_EQ(rdma_get_local_addr(v6)->sa_family, AF_INET6);
	in_use(v4, "0.0.0.0", port);
	CHECK_EQ(rdma_destroy_id(v6), 0);
	CHECK_EQ(rdma_destroy_id(v4), 0);
	/* With AFONLY on both each has its own. */
	v6 = new_id(ch);
	v4 = new_id(ch);
	afonly(v6);
	afonly(v4);
	CHECK_EQ(bind_to(v6, "::", 0), 0);
	port = ntohs(rdma_get_src_port(v6));
	CHECK_EQ(bind_to(v4, "0.0.0.0", port), 0);
	CHECK_EQ(rdma_listen(v6, 5), 0);
	CHECK_EQ(rdma_listen(v4, 5), 0);
	in_use(other, "::", port);
	in_use(other, "0.0.0.0", port);
	CHECK_EQ(rdma_destroy_id(other), 0);
	CHECK_EQ(rdma_destroy_id(v6), 0);
	CHECK_EQ(rdma_destroy_id(v4), 0);
	rdma_destroy_event_channel(ch);
}

static void not_ours_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct sockaddr_storage ss = {.ss_family = AF_UNIX};

	/* 198.51.100.0/24 and 2001:db8::/32 are for documentation: nobody's address. */
	errno = 0;
	CHECK_EQ(bind_to(id, "198.51.100.1", 0), -1);
	CHECK(errno == ENODEV || errno == EADDRNOTAVAIL);
	CHECK_EQ(bind_to(id, "2001:db8::1", 0), -1);
	CHECK_EQ(rdma_bind_addr(id, (struct sockaddr *)&ss), -1);
	CHECK_EQ(bind_to(id, "0.0.0.0", 0), 0); /* nothing was spoilt */
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

static void resolve_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct sockaddr_storage ss, src;
	struct rdma_cm_event *ev;

	if (tv_strict()) /* out of order: librdmacm 44 reads a device that is not there */
		CHECK_FAILS(rdma_resolve_route(id, 1000), EINVAL);
	tv_sockaddr(&ss, tv_addr4(), 7);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(ev->id == id);
	CHECK_EQ(ev->status, 0);
	tv_ack(ev);
	CHECK(id->verbs);
	CHECK_OP(id->port_num, >=, 1);
	CHECK_NE(rdma_get_src_port(id), 0);
	CHECK_EQ(ntohs(rdma_get_dst_port(id)), 7);
	CHECK_EQ(rdma_get_peer_addr(id)->sa_family, AF_INET);
	CHECK_EQ(rdma_get_local_addr(id)->sa_family, AF_INET);
	CHECK_NE(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr, 0);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(ev->id == id);
	tv_ack(ev);
	CHECK_EQ(rdma_destroy_id(id), 0);
	/* From a chosen source. */
	id = new_id(ch);
	tv_sockaddr(&src, tv_addr4(), 0);
	CHECK_EQ(rdma_resolve_addr(id, (struct sockaddr *)&src, (struct sockaddr *)&ss, 2000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_EQ(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr,
		 ((struct sockaddr_in *)&src)->sin_addr.s_addr);
	CHECK_EQ(rdma_destroy_id(id), 0);
	/* Destroyed in the middle: "cancels any outstanding asynchronous operation". */
	for (int i = 0; i < 50; i++) {
		id = new_id(ch);
		CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	CHECK(!tv_readable(ch->fd, 50));
	rdma_destroy_event_channel(ch);
}

/* An address that no device reaches: at once, or by ADDR_ERROR, within the time given. */
static void resolve_fails_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	static const char *const far[] = {"198.51.100.1", "2001:db8::1"};

	if (!tv_strict())
		tv_skip("depends on this host's routes");
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = new_id(ch);
		struct sockaddr_storage ss;
		struct rdma_cm_event *ev;

		tv_sockaddr(&ss, far[i], 7);
		if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 500) == 0) {
			ev = tv_event(ch, RDMA_CM_EVENT_ADDR_ERROR);
			CHECK(ev->id == id);
			CHECK_OP(ev->status, <, 0);
			tv_ack(ev);
		} else {
			CHECK_NE(errno, 0);
		}
		CHECK(!id->verbs);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	rdma_destroy_event_channel(ch);
}

static void migrate_role(struct tv_side *s)
{
	struct rdma_event_channel *one = tv_channel(), *two = tv_channel();
	struct rdma_cm_id *id = new_id(one);
	struct rdma_cm_event *ev;
	struct sockaddr_storage ss;

	tv_sockaddr(&ss, tv_addr4(), 7);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	CHECK(tv_readable(one->fd, 10000));
	/* "moves any pending events associated with the rdma_cm_id to the new channel" */
	CHECK_EQ(rdma_migrate_id(id, two), 0);
	CHECK(id->channel == two);
	CHECK(!tv_readable(one->fd, 0));
	ev = tv_event(two, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(ev->id == id);
	tv_ack(ev);
	rdma_destroy_event_channel(one);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	tv_expect(two, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(two);
}

static int destroyed;

static void *destroy_thread(void *id)
{
	CHECK_EQ(rdma_destroy_id(id), 0);
	__atomic_store_n(&destroyed, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* "Destruction of an rdma_cm_id will block until related events have been acknowledged." */
static void ack_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = new_id(ch);
	struct sockaddr_storage ss;
	struct rdma_cm_event *ev;
	pthread_t t;

	tv_sockaddr(&ss, tv_addr4(), 7);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK_EQ(pthread_create(&t, NULL, destroy_thread, id), 0);
	CHECK(!tv_readable(ch->fd, 100)); /* time for a destroy that does not wait */
	CHECK_EQ(__atomic_load_n(&destroyed, __ATOMIC_SEQ_CST), 0);
	tv_ack(ev);
	CHECK_EQ(pthread_join(t, NULL), 0);
	rdma_destroy_event_channel(ch);
}

/* Synchronous ids: no channel, calls return when done. */
static void synchronous_role(struct tv_side *s)
{
	struct rdma_cm_id *id = NULL;
	struct sockaddr_storage ss;

	CHECK_EQ(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, tv_addr4(), 7);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	CHECK(id->verbs);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	CHECK_EQ(rdma_destroy_id(id), 0);
}

static void addrinfo_role(struct tv_side *s)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *res = NULL;

	CHECK_EQ(rdma_getaddrinfo(tv_addr4(), "7471", &hints, &res), 0);
	CHECK(res);
	CHECK_EQ(res->ai_family, AF_INET);
	CHECK_EQ(res->ai_qp_type, IBV_QPT_RC);
	CHECK_EQ(res->ai_port_space, RDMA_PS_TCP);
	CHECK(res->ai_src_addr);
	CHECK_EQ(ntohs(((struct sockaddr_in *)res->ai_src_addr)->sin_port), 7471);
	rdma_freeaddrinfo(res);
	hints.ai_flags = 0;
	res = NULL;
	CHECK_EQ(rdma_getaddrinfo(tv_addr4(), "7471", &hints, &res), 0);
	CHECK(res && res->ai_dst_addr);
	CHECK_EQ(ntohs(((struct sockaddr_in *)res->ai_dst_addr)->sin_port), 7471);
	rdma_freeaddrinfo(res);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(ids)
SOLO(ports)
SOLO(reuse)
SOLO(options)
SOLO(families)
SOLO(not_ours)
SOLO(resolve)
SOLO(resolve_fails)
SOLO(migrate)
SOLO(ack)
SOLO(synchronous)
SOLO(addrinfo)

static void test_port_space(void **state)
{
	tv_procs(port_owner, port_wanter, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_ids),      cmocka_unit_test(test_ports),   cmocka_unit_test(test_port_space),
	    cmocka_unit_test(test_reuse),    cmocka_unit_test(test_options), cmocka_unit_test(test_families),
	    cmocka_unit_test(test_not_ours), cmocka_unit_test(test_resolve), cmocka_unit_test(test_resolve_fails),
	    cmocka_unit_test(test_migrate),  cmocka_unit_test(test_ack),     cmocka_unit_test(test_synchronous),
	    cmocka_unit_test(test_addrinfo),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("cm", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Connections in the making: stale requests, lost messages, closing listeners, refusals. Both ends in this process. */
#include "unit.h"

#include "stream_peer.h"
#include "verbs_dl.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

static struct sockaddr_in at;
static struct vkr_listener *listener;

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

static void fault(const char *word)
{
	assert_int_equal(vkr_verbs.soft->fault(word), 0);
}

static void listen_now(int backlog)
{
	const char *reason = "";

	assert_int_equal(
	    vkr_listener_create((struct sockaddr *)&at, false, backlog, "t", NULL, NULL, &listener, &reason), 0);
}

static int setup(void **state)
{
	listen_now(64);
	return 0;
}

static int teardown(void **state)
{
	fault("rtu");
	fault("stale=0");
	if (listener)
		vkr_listener_close(listener);
	listener = NULL;
	return 0;
}

static void listener_gone(void)
{
	vkr_listener_close(listener);
	listener = NULL;
}

static struct vkr_stream *accept_one(int ms)
{
	void *ticket;

	if (!pollable_wait(vkr_listener_pollable(listener), EPOLLIN, ms))
		return NULL;
	return vkr_listener_accept(listener, &ticket);
}

static void nothing_left(void)
{
	int64_t end = now_ms() + 5000;
	struct timespec ts = {.tv_nsec = 2000000};

	while ((vkr_load(&vkr_stats->qps) || vkr_load(&vkr_stats->mrs)) && now_ms() < end)
		nanosleep(&ts, NULL);
	assert_int_equal(vkr_load(&vkr_stats->qps), 0);
	assert_int_equal(vkr_load(&vkr_stats->mrs), 0);
}

/* ------------------------------------------------------------------ T12 */

static void stale_requests_are_repeated(void **state)
{
	struct vkr_stream *s, *in;
	const char *reason = "";
	char c;

	fault("stale=5");
	assert_int_equal(stream_try(&at, 2000, &s, &reason), 0);
	in = accept_one(1000);
	assert_non_null(in);
	assert_int_equal(stream_send_all(s, "x", 1), 1);
	assert_int_equal(stream_recv_all(in, &c, 1), 1);
	/* One pair of queue pairs is left of six attempts. */
	assert_int_equal(vkr_load(&vkr_stats->qps), 2);
	vkr_stream_close(s, 1000);
	vkr_stream_close(in, 1000);
	nothing_left();
}

static void but_not_for_ever(void **state)
{
	const char *reason = "";
	struct vkr_stream *s;
	int64_t start = now_ms();

	fault("stale=1000000");
	assert_int_equal(stream_try(&at, 2000, &s, &reason), -ECONNREFUSED);
	assert_true(now_ms() - start < 2500);
	assert_non_null(strstr(reason, "CM status 10"));
	vkr_stream_close(s, 0);
	nothing_left();
}

/* ------------------------------------------------------------------ the last message of the handshake is lost */

static void data_establishes(void **state)
{
	struct vkr_stream *s, *in;
	const char *reason = "";
	char c;

	fault("no_rtu");
	assert_int_equal(stream_try(&at, 2000, &s, &reason), 0);
	assert_null(accept_one(200));
	assert_int_equal(stream_send_all(s, "x", 1), 1);
	in = accept_one(1000);
	assert_non_null(in);
	assert_int_equal(stream_recv_all(in, &c, 1), 1);
	assert_int_equal(stream_send_all(in, "y", 1), 1);
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	assert_int_equal(c, 'y');
	vkr_stream_close(s, 1000);
	vkr_stream_close(in, 1000);
	nothing_left();
}

/* ------------------------------------------------------------------ a closing listener */

/* The connector is established, the acceptor does not know it yet. */
static void half_made_child(void **state)
{
	const char *reason = "";
	struct vkr_stream *s;
	int64_t start;
	char c;

	fault("no_rtu");
	assert_int_equal(stream_try(&at, 2000, &s, &reason), 0);
	start = now_ms();
	listener_gone();
	assert_true(pollable_wait(vkr_stream_pollable(s), EPOLLIN, 5000));
	assert_true(now_ms() - start < 1000);
	assert_true(stream_recv_all(s, &c, 1) <= 0);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static bool over(struct vkr_stream *s)
{
	switch (vkr_stream_state(s)) {
	case VKR_STREAM_CONNECTING:
		return false;
	case VKR_STREAM_FAILED:
		return true;
	default:
		return vkr_pollable_ready(vkr_stream_pollable(s)) & EPOLLRDHUP;
	}
}

/* Whatever state each of them is in: how far they are is left to chance. */
static void all_hear_of_it(void **state)
{
	struct vkr_stream *s[24];
	const char *reason = "";
	int64_t end;
	size_t i;
	int turn;

	for (turn = 0; turn < 60; turn++) {
		struct timespec ts = {.tv_nsec = turn * 50000};

		if (turn)
			listen_now(turn % 8);
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			assert_int_equal(vkr_connect_start(NULL, (struct sockaddr *)&at, 20000, "t", &s[i], &reason),
					 0);
		nanosleep(&ts, NULL); /* chance */
		listener_gone();
		end = now_ms() + 2000;
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
			while (!over(s[i]) && now_ms() < end)
				vkr_engine_poll();
			if (!over(s[i]))
				fail_msg("turn %d: connection %zu (state %d) has heard nothing", turn, i,
					 vkr_stream_state(s[i]));
			vkr_stream_close(s[i], 1000);
		}
	}
	nothing_left();
}

/* ------------------------------------------------------------------ refusals */

static void *nothing_to_give(void *arg)
{
	errno = EMFILE;
	return NULL;
}

static void unused(void *ticket)
{
}

static void the_reason_travels(void **state)
{
	static const struct vkr_admission none = {nothing_to_give, unused, NULL};
	const char *reason = "";
	struct vkr_stream *s;

	listener_gone();
	assert_int_equal(vkr_listener_create((struct sockaddr *)&at, false, 8, "t", NULL, &none, &listener, &reason),
			 0);
	assert_int_equal(stream_try(&at, 2000, &s, &reason), -ECONNREFUSED);
	assert_non_null(strstr(reason, "refused by 127.0.0.7"));
	assert_non_null(strstr(reason, "no descriptor"));
	vkr_stream_close(s, 0);
	listener_gone();
	assert_int_equal(stream_try(&at, 2000, &s, &reason), -ECONNREFUSED);
	assert_non_null(strstr(reason, "no RDMA listener at 127.0.0.7"));
	vkr_stream_close(s, 0);
	nothing_left();
}

#define NATIVES  300
#define LET_IN   256
#define FOREIGN  0x700000 /* queue pair numbers that nobody here has */
#define STAYS_MS 100

struct native {
	struct rdma_cm_id *id;
	enum rdma_cm_event_type last;
};

/* What the CM says to the native clients, until `n` of them have heard `type` last, or in vain. */
static int heard(struct rdma_event_channel *ch, struct native *c, enum rdma_cm_event_type type, int n, int ms)
{
	int64_t end = now_ms() + ms;
	struct rdma_cm_event *e;
	int i, count;

	for (;;) {
		struct timespec ts = {.tv_nsec = 1000000};

		/* Its descriptor does not tell of what the progress thread brings about. */
		while (vkr_verbs.soft->cm_pending(ch) && !vkr_verbs.rdma_get_cm_event(ch, &e)) {
			((struct native *)e->id->context)->last = e->event;
			vkr_verbs.rdma_ack_cm_event(e);
		}
		for (i = count = 0; i < NATIVES; i++)
			count += c[i].last == type;
		if (count >= n || now_ms() >= end)
			return count;
		nanosleep(&ts, NULL);
	}
}

static void native_begins(struct rdma_event_channel *ch, struct native *c, uint32_t qpn)
{
	struct rdma_conn_param param = {.qp_num = qpn, .retry_count = 7, .rnr_retry_count = 7};

	c->last = RDMA_CM_EVENT_ADDR_CHANGE;
	assert_int_equal(vkr_verbs.rdma_create_id(ch, &c->id, c, RDMA_PS_TCP), 0);
	assert_int_equal(vkr_verbs.rdma_resolve_addr(c->id, NULL, (struct sockaddr *)&at, 1000), 0);
	assert_int_equal(vkr_verbs.rdma_resolve_route(c->id, 1000), 0);
	assert_int_equal(vkr_verbs.rdma_connect(c->id, &param), 0);
}

/* Natives fall over a rejection, so they are let in and shown out; but not so many that they are a burden. */
static void natives_are_let_in_and_shown_out(void **state)
{
	static const struct vkr_admission none = {nothing_to_give, unused, NULL};
	static struct native c[NATIVES];
	struct rdma_event_channel *ch = vkr_verbs.rdma_create_event_channel();
	const char *reason = "";
	int64_t start;
	int i;

	memset(c, 0, sizeof(c));
	assert_non_null(ch);
	listener_gone();
	assert_int_equal(vkr_listener_create((struct sockaddr *)&at, false, 8, "t", NULL, &none, &listener, &reason),
			 0);
	for (i = 0; i < NATIVES; i++)
		native_begins(ch, &c[i], FOREIGN + (uint32_t)i);
	assert_int_equal(heard(ch, c, RDMA_CM_EVENT_REJECTED, NATIVES - LET_IN, 5000), NATIVES - LET_IN);
	assert_int_equal(heard(ch, c, RDMA_CM_EVENT_CONNECT_RESPONSE, LET_IN, 5000), LET_IN);
	start = now_ms();
	for (i = 0; i < NATIVES; i++)
		if (c[i].last == RDMA_CM_EVENT_CONNECT_RESPONSE)
			assert_int_equal(vkr_verbs.rdma_establish(c[i].id), 0);
	assert_int_equal(heard(ch, c, RDMA_CM_EVENT_DISCONNECTED, LET_IN, 5000), LET_IN);
	assert_true(now_ms() - start >= STAYS_MS);
	for (i = 0; i < NATIVES; i++)
		vkr_verbs.rdma_destroy_id(c[i].id);
	/* There is room again; also after those that leave before they are shown out. */
	for (i = 0; i < NATIVES; i++) {
		native_begins(ch, &c[i], FOREIGN + NATIVES + (uint32_t)i);
		assert_int_equal(heard(ch, c, RDMA_CM_EVENT_CONNECT_RESPONSE, 1, 5000), 1);
		c[i].last = RDMA_CM_EVENT_ADDR_CHANGE;
		vkr_verbs.rdma_destroy_id(c[i].id);
	}
	vkr_verbs.rdma_destroy_event_channel(ch);
	nothing_left();
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(stale_requests_are_repeated, setup, teardown),
	    cmocka_unit_test_setup_teardown(but_not_for_ever, setup, teardown),
	    cmocka_unit_test_setup_teardown(data_establishes, setup, teardown),
	    cmocka_unit_test_setup_teardown(half_made_child, setup, teardown),
	    cmocka_unit_test_setup_teardown(all_hear_of_it, setup, teardown),
	    cmocka_unit_test_setup_teardown(the_reason_travels, setup, teardown),
	    cmocka_unit_test_setup_teardown(natives_are_let_in_and_shown_out, setup, teardown),
	};
	struct peer ports;

	/* For its free port, at another address. */
	peer_start(&ports);
	at = ports.addr;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 6);
	stream_engine();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

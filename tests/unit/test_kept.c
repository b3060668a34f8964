/* SPDX-License-Identifier: BSD-2-Clause */
/* Queue pairs that outlive their connections (rdma_keep.c), between two processes and within this one. */
#include "unit.h"

#include "config.h"
#include "rdma_stream.h"
#include "stream_peer.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
#include <utlist.h>

#define SOON 600 /* ms: sooner than a kept queue pair grows old */

static struct peer peer, spare;

static int64_t now_ms(void)
{
	return vkr_now_ns() / VKR_MS;
}

static void pause_ns(int64_t ns)
{
	struct timespec ts = {.tv_nsec = ns};

	nanosleep(&ts, NULL);
}

static void pause_ms(int ms)
{
	pause_ns(ms * VKR_MS);
}

static struct vkr_stream *order(enum peer_job job, uint32_t seed, uint64_t total)
{
	struct peer_order o = {.job = job, .seed = seed, .total = total};

	return stream_connect(&peer.addr, &o);
}

/* Polls until this process and the peer have so many queue pairs; false after ms. */
static bool left(uint64_t here, uint64_t there, int ms)
{
	int64_t end = now_ms() + ms;
	struct peer_gauges g;

	do {
		vkr_engine_poll();
		peer_gauges(&peer, &g);
		if (vkr_load(&vkr_stats->qps) == here && g.qps == there)
			return true;
		pause_ms(1);
	} while (now_ms() < end);
	return false;
}

/* Until a connection of this process is one that the peer keeps, and the word of that has come. */
static bool granted(void)
{
	int64_t end = now_ms() + 5000;
	struct vkr_stream *s;

	do {
		vkr_engine_poll();
		pthread_mutex_lock(&vkr_registry_lock);
		DL_FOREACH (vkr_registry, s) {
			bool yes;

			pthread_mutex_lock(&s->p.lock);
			yes = s->role == VKR_ROLE_CONNECT && s->phase == VKR_PH_KEPT && s->granted_ns;
			pthread_mutex_unlock(&s->p.lock);
			if (yes)
				break;
		}
		pthread_mutex_unlock(&vkr_registry_lock);
		if (s)
			return true;
		pause_ms(1);
	} while (now_ms() < end);
	return false;
}

static void nothing_left(void)
{
	assert_true(left(0, 0, 6000));
}

/* One connection to the peer, over in order. What its queue pair is known by: they are numbered as they are made. */
static uint32_t one(uint32_t seed, uint64_t total)
{
	struct vkr_stream *s = order(PEER_DUPLEX, seed, total);
	uint32_t number = s->ep.generation;

	assert_int_equal(stream_duplex(s, seed + 1, seed, total, 0), 0);
	vkr_stream_close(s, 1000);
	return number;
}

/* ------------------------------------------------------------------ what is kept */

static void one_queue_pair_serves_many_connections(void **state)
{
	uint64_t before = vkr_load(&vkr_stats->closed.conns_rdma);
	uint32_t latest = 0, made = 0, i;

	srand(7);
	for (i = 0; i < 500; i++) {
		/* Around the ring's end again and again, but never so that it grows. */
		uint32_t number = one(i, (uint64_t)(rand() % 30000 + 1));

		made += number > latest;
		latest = vkr_max(latest, number);
		/* For the peer; too short for our progress thread to have looked. */
		pause_ns(VKR_MS / 4);
	}
	assert_int_equal(vkr_load(&vkr_stats->closed.conns_rdma) - before, 500);
	/* A peer that had no time in between costs another one now and then. */
	assert_in_range(made, 1, 200);
	nothing_left();
}

static void connections_are_counted_each_for_itself(void **state)
{
	struct vkr_stream *s;
	struct vkr_conn_stats *st;
	uint32_t number = one(1, 20000);
	char c;

	assert_true(left(1, 1, 5000));
	assert_true(granted());
	s = order(PEER_SINK, 3, 100);
	st = vkr_stream_stats(s);
	assert_int_equal(s->ep.generation, number);
	assert_int_equal(st->state, VKR_SLOT_OPEN);
	assert_int_equal(st->transport, VKR_TRANSPORT_RDMA);
	assert_int_equal(st->peer_kind, VKR_PEER_SHIM);
	assert_true(vkr_load(&st->mem_mr) > 0 && vkr_load(&st->mem_queue) > 0);
	assert_int_equal(stream_send_pattern(s, 3, 100, 0), 0);
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	assert_int_equal(vkr_load(&st->bytes_out), 100 + sizeof(struct peer_order));
	assert_int_equal(vkr_load(&st->bytes_in), 1);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void idle_ones_grow_old(void **state)
{
	int64_t start;

	one(5, 100);
	start = now_ms();
	assert_true(left(1, 1, SOON));
	pause_ms(SOON);
	assert_true(left(1, 1, 0));
	assert_true(left(0, 0, 4000));
	assert_true(now_ms() - start < 3000);
}

/* Several at a time are several queue pairs, and all of them come again. */
static void many_at_once(void **state)
{
	struct vkr_stream *s[20];
	uint32_t i, n;

	for (n = 0; n < 5; n++) {
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			s[i] = order(PEER_DUPLEX, i, 3000);
		assert_true(vkr_load(&vkr_stats->qps) >= 20 && vkr_load(&vkr_stats->qps) < 40);
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			assert_int_equal(stream_duplex(s[i], i + 1, i, 3000, 0), 0);
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			vkr_stream_close(s[i], 1000);
		pause_ms(50);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ what is not */

static void without_the_feature_nothing_is_kept(void **state)
{
	vkr_config.features = VKR_FEAT_ALL & ~VKR_FEAT_KEEP;
	one(1, 100);
	vkr_config.features = VKR_FEAT_ALL;
	assert_true(left(0, 0, SOON));
	peer_features(&peer, VKR_FEAT_ALL & ~VKR_FEAT_KEEP);
	one(1, 100);
	peer_features(&peer, VKR_FEAT_ALL);
	assert_true(left(0, 0, SOON));
}

static void what_ended_in_disorder_goes(void **state)
{
	struct vkr_stream *s = order(PEER_UNREAD, 1, 0);

	/* Bytes that the peer does not read. */
	stream_send_all(s, "x", 1);
	stream_wait(s, EPOLLIN);
	vkr_stream_close(s, 1000);
	assert_true(left(0, 0, SOON));
	/* That we do not. */
	s = order(PEER_SOURCE, 1, 100);
	stream_wait(s, EPOLLIN);
	vkr_stream_close(s, 1000);
	assert_true(left(0, 0, SOON));
	/* The same after both ends: there is nobody to tell any more. */
	s = order(PEER_SOURCE, 1, 100);
	assert_int_equal(vkr_stream_shutdown(s, SHUT_WR), 0);
	stream_wait(s, EPOLLHUP);
	pause_ms(20);
	vkr_stream_close(s, 1000);
	assert_true(left(0, 0, SOON));
	/* And a reset. */
	s = order(PEER_ECHO, 1, 0);
	vkr_stream_close(s, 0);
	assert_true(left(0, 0, SOON));
}

static void grown_rings_go(void **state)
{
	one(1, 8 << 20);
	assert_true(left(0, 0, SOON));
}

static struct vkr_stream *bound(void)
{
	struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct peer_order o = {.job = PEER_ECHO};
	const char *reason = "";
	struct vkr_stream *s;

	assert_int_equal(
	    vkr_connect_start((struct sockaddr *)&local, (struct sockaddr *)&peer.addr, 5000, "t", &s, &reason), 0);
	stream_wait(s, EPOLLOUT);
	assert_int_equal(stream_send_all(s, &o, sizeof(o)), sizeof(o));
	return s;
}

static void bound_ones_go_and_take_none(void **state)
{
	struct vkr_stream *s = bound();
	uint32_t number;

	vkr_stream_close(s, 1000);
	assert_true(left(0, 0, SOON));
	number = one(1, 100);
	assert_true(left(1, 1, SOON));
	assert_true(granted());
	s = bound();
	assert_int_not_equal(s->ep.generation, number);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void another_address_takes_none(void **state)
{
	struct peer_order o = {.job = PEER_ECHO};
	uint32_t number = one(1, 100);
	struct vkr_stream *s;

	assert_true(left(1, 1, SOON));
	assert_true(granted());
	s = stream_connect(&spare.addr, &o);
	assert_int_not_equal(s->ep.generation, number);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* ------------------------------------------------------------------ listeners, in this process */

static int n_tickets;
static int max_tickets = 1000;
static bool no_ticket;
static const struct sockaddr_in *open_here; /* just when no ticket is left */
static struct vkr_stream *opened;

static void *admit(void *arg)
{
	if (no_ticket || n_tickets >= max_tickets) {
		if (open_here)
			opened = vkr_keep_take((const struct sockaddr *)open_here, "t");
		open_here = NULL;
		errno = EMFILE;
		return NULL;
	}
	n_tickets++;
	return &n_tickets;
}

static void dismiss(void *ticket)
{
	assert_ptr_equal(ticket, &n_tickets);
	n_tickets--;
}

static struct vkr_listener *listener(const struct sockaddr_in *at, int backlog)
{
	struct vkr_admission admission = {admit, dismiss, NULL};
	struct vkr_listener *l;
	const char *reason = "";

	assert_int_equal(vkr_listener_create((struct sockaddr *)at, false, backlog, "t", NULL, &admission, &l, &reason),
			 0);
	return l;
}

static struct sockaddr_in address(uint32_t host)
{
	struct sockaddr_in to = peer.addr;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + host);
	return to;
}

struct both {
	struct vkr_stream *out, *in;
};

static struct both both(const struct sockaddr_in *to, struct vkr_listener *l)
{
	struct both b;
	void *ticket = NULL;

	b.out = stream_connect(to, NULL);
	assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
	b.in = vkr_listener_accept(l, &ticket);
	assert_ptr_equal(ticket, &n_tickets);
	n_tickets--;
	return b;
}

static void both_close(struct both *b)
{
	vkr_stream_close(b->out, 1000);
	stream_wait(b->in, EPOLLRDHUP);
	vkr_stream_close(b->in, 1000);
}

/* Both ends are here, so they are two. */
static bool left_here(uint64_t qps, int ms)
{
	int64_t end = now_ms() + ms;

	while (vkr_load(&vkr_stats->qps) != qps && now_ms() < end) {
		vkr_engine_poll();
		pause_ms(1);
	}
	return vkr_load(&vkr_stats->qps) == qps;
}

static void a_listener_that_closes_takes_them_along(void **state)
{
	struct sockaddr_in to = address(11);
	struct vkr_listener *l = listener(&to, 64);
	const char *reason = "";
	struct vkr_stream *s;
	struct both b = both(&to, l);

	both_close(&b);
	assert_true(granted());
	assert_true(left_here(2, SOON));
	assert_int_equal(n_tickets, 1);
	vkr_listener_close(l);
	assert_int_equal(stream_try(&to, 2000, &s, &reason), -ECONNREFUSED);
	vkr_stream_close(s, 0);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
	/* The next one there has nothing to do with them. */
	l = listener(&to, 64);
	b = both(&to, l);
	both_close(&b);
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
}

static void a_listener_that_was_shut_down_lets_nobody_in(void **state)
{
	struct sockaddr_in to = address(12);
	struct vkr_listener *l = listener(&to, 64);
	const char *reason = "";
	struct vkr_stream *s;
	struct both b = both(&to, l);

	both_close(&b);
	assert_true(granted());
	assert_true(left_here(2, SOON));
	vkr_listener_stop(l);
	assert_true(left_here(0, SOON));
	assert_int_equal(stream_try(&to, 2000, &s, &reason), -ECONNREFUSED);
	vkr_stream_close(s, 0);
	vkr_listener_close(l);
	assert_int_equal(n_tickets, 0);
}

/* The word that it is over has come when the acceptor has let go of it, though no message of the CM has been read. */
static void what_was_taken_back_is_not_opened(void **state)
{
	struct peer_gauges g;
	struct vkr_turn turn;

	one(1, 100);
	assert_true(left(1, 1, SOON));
	assert_true(granted());
	while (!vkr_progress_enter(&turn))
		pause_ms(1);
	peer_listens(&peer, false);
	do
		peer_gauges(&peer, &g);
	while (g.qps);
	assert_null(vkr_keep_take((struct sockaddr *)&peer.addr, "t"));
	vkr_progress_leave(&turn);
	peer_listens(&peer, true);
	nothing_left();
}

/* Opened, and not accepted before the listener closes: the connector hears of it. */
static void an_opened_one_ends_with_its_listener(void **state)
{
	struct sockaddr_in to = address(13);
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	uint32_t number = b.out->ep.generation;
	struct vkr_stream *s;

	both_close(&b);
	assert_true(granted());
	s = stream_connect(&to, NULL);
	assert_int_equal(s->ep.generation, number);
	assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
	vkr_listener_close(l);
	stream_wait(s, EPOLLIN);
	vkr_stream_close(s, 1000);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* This process was stopped for long: its clock says so before its completion queue does what came in time. */
static void what_was_opened_in_time_is_found_late(void **state)
{
	struct sockaddr_in to = address(16);
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	struct vkr_stream *s;
	struct vkr_turn turn;

	both_close(&b);
	assert_true(granted());
	while (!vkr_progress_enter(&turn))
		pause_ms(1);
	b.in->deadline = vkr_now_ns();
	s = vkr_keep_take((struct sockaddr *)&to, "t");
	assert_ptr_equal(s, b.out);
	assert_true(vkr_keep_goes_on(b.in));
	vkr_progress_leave(&turn);
	assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
	vkr_listener_close(l);
	vkr_stream_close(s, 1000);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* The step of an exit finds that it has been opened: it is ended like every other, and is not waited for in vain. */
static void what_is_opened_during_an_exit_ends_with_it(void **state)
{
	struct sockaddr_in to = address(19);
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	struct vkr_turn turn;
	int64_t start = now_ms();

	both_close(&b);
	assert_true(granted());
	while (!vkr_progress_enter(&turn))
		pause_ms(1);
	assert_ptr_equal(vkr_keep_take((struct sockaddr *)&to, "t"), b.out);
	b.in->end = true;
	assert_true(vkr_keep_goes_on(b.in));
	vkr_progress_leave(&turn);
	stream_wait(b.out, EPOLLIN);
	assert_true(now_ms() - start < SOON);
	vkr_stream_close(b.out, 1000);
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* Its reset may overtake nothing, but comes behind the end that makes the acceptor keep the queue pair. */
static void who_has_sent_a_reset_keeps_nothing(void **state)
{
	struct sockaddr_in to = address(20);
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	struct vkr_turn turn;

	vkr_stream_close(b.in, 1000);
	stream_wait(b.out, EPOLLRDHUP);
	while (!vkr_progress_enter(&turn))
		pause_ms(1);
	assert_int_equal(vkr_stream_shutdown(b.out, SHUT_WR), 0);
	vkr_stream_close(b.out, 0);
	assert_false(vkr_keep_begin(b.out));
	vkr_progress_leave(&turn);
	assert_true(left_here(0, SOON));
	vkr_listener_close(l);
	assert_int_equal(n_tickets, 0);
}

/* Beside a full backlog come an eighth of it, and none where it is small. */
static void few_come_beside_the_backlog(void **state)
{
	struct sockaddr_in to = address(14);
	struct vkr_listener *l = listener(&to, 7);
	struct both b[6];
	size_t i;

	b[0] = both(&to, l);
	both_close(&b[0]);
	assert_true(left_here(0, SOON));
	vkr_listener_backlog(l, 16);
	for (i = 0; i < VKR_ARRAY_SIZE(b); i++)
		b[i] = both(&to, l);
	for (i = 0; i < VKR_ARRAY_SIZE(b); i++)
		both_close(&b[i]);
	assert_true(left_here(4, SOON));
	assert_int_equal(n_tickets, 2);
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
}

/* What the next connection needs is had before it is promised. */
static void without_means_for_another_it_is_not_kept(void **state)
{
	struct sockaddr_in to = address(15);
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);

	no_ticket = true;
	both_close(&b);
	assert_true(left_here(0, SOON));
	no_ticket = false;
	b = both(&to, l);
	both_close(&b);
	assert_true(granted());
	assert_true(left_here(2, SOON));
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* What is kept is given up for who is there. */
static void a_newcomer_goes_before_those_that_may_come(void **state)
{
	struct sockaddr_in to = address(17), local = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	const char *reason = "";
	struct vkr_stream *s;

	both_close(&b);
	assert_true(granted());
	assert_true(left_here(2, SOON));
	assert_int_equal(n_tickets, 1);
	max_tickets = 1;
	assert_int_equal(vkr_connect_start((struct sockaddr *)&local, (struct sockaddr *)&to, 5000, "t", &s, &reason),
			 0);
	stream_wait(s, EPOLLOUT);
	assert_int_equal(vkr_stream_state(s), VKR_STREAM_OPEN);
	assert_true(left_here(2, SOON));
	assert_int_equal(n_tickets, 1);
	max_tickets = 1000;
	vkr_stream_close(s, 1000);
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* But not what has been opened. */
static void a_newcomer_goes_behind_one_that_has_come(void **state)
{
	struct sockaddr_in to = address(18), local = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct vkr_listener *l = listener(&to, 64);
	struct both b = both(&to, l);
	const char *reason = "";
	struct vkr_stream *late;
	void *ticket;

	both_close(&b);
	assert_true(granted());
	max_tickets = 1;
	open_here = &to;
	assert_int_equal(
	    vkr_connect_start((struct sockaddr *)&local, (struct sockaddr *)&to, 5000, "t", &late, &reason), 0);
	while (vkr_stream_state(late) == VKR_STREAM_CONNECTING)
		pause_ms(1);
	assert_int_equal(vkr_stream_state(late), VKR_STREAM_FAILED);
	max_tickets = 1000;
	assert_ptr_equal(opened, b.out);
	assert_ptr_equal(vkr_listener_accept(l, &ticket), b.in);
	n_tickets--;
	assert_int_equal(vkr_pollable_ready(vkr_stream_pollable(opened)) & (EPOLLERR | EPOLLHUP), 0);
	vkr_stream_close(late, 0);
	both_close(&b);
	vkr_listener_close(l);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

static bool device_holds(const char *word)
{
	const struct vkr_soft_api *(*api)(void);
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);

	/* Where it goes by as a device's library. */
	api = (const struct vkr_soft_api *(*)(void))(lib ? dlsym(lib, "vkr_soft_api") : NULL);
	if (!vkr_verbs.soft && !api)
		return false; /* a device holds as much as it does */
	assert_int_equal((vkr_verbs.soft ? vkr_verbs.soft : api())->fault(word), 0);
	return true;
}

/* Neither end finds room on the device but by giving up what it keeps. */
static void a_newcomer_takes_the_place_of_one_on_the_device(void **state)
{
	struct sockaddr_in to = address(19), other = address(20);
	struct vkr_listener *l = listener(&to, 64), *l2 = listener(&other, 64);
	struct both b = both(&to, l);
	const char *reason = "";
	struct vkr_stream *s;

	both_close(&b);
	assert_true(granted());
	assert_true(left_here(2, SOON));
	device_holds("max_qp=2");
	b = both(&other, l2);
	assert_true(left_here(2, SOON));
	assert_int_equal(vkr_stream_state(b.out), VKR_STREAM_OPEN);
	/* Nobody gives way to one more. */
	if (device_holds("max_qp=2")) {
		assert_int_equal(stream_try(&to, 5000, &s, &reason), -ENOMEM);
		vkr_stream_close(s, 0);
	}
	assert_int_equal(vkr_pollable_ready(vkr_stream_pollable(b.out)) & (EPOLLERR | EPOLLHUP), 0);
	device_holds("max_qp=1000000");
	both_close(&b);
	vkr_listener_close(l);
	vkr_listener_close(l2);
	assert_true(left_here(0, SOON));
	assert_int_equal(n_tickets, 0);
}

/* ------------------------------------------------------------------ ends */

/* The moment after its death, before the device knows of it, a connect() may still succeed: then its first read finds
 * out. */
static void who_died_is_not_connected_to(void **state)
{
	const char *reason = "";
	struct vkr_stream *s;
	int ret;
	char c;

	one(1, 100);
	assert_true(left(1, 1, SOON));
	peer_stop(&peer);
	ret = stream_try(&peer.addr, 2000, &s, &reason);
	if (!ret)
		assert_true(stream_recv_all(s, &c, 1) <= 0);
	else
		assert_int_equal(ret, -ECONNREFUSED);
	vkr_stream_close(s, 0);
	assert_true(left_here(0, SOON));
	assert_int_equal(stream_try(&peer.addr, 2000, &s, &reason), -ECONNREFUSED);
	vkr_stream_close(s, 0);
}

static void an_exit_does_not_wait_for_them(void **state)
{
	int64_t start;

	one(1, 100);
	assert_true(left(1, 1, SOON));
	start = now_ms();
	vkr_engine_flush(1000);
	assert_true(now_ms() - start < SOON);
	assert_int_equal(vkr_load(&vkr_stats->qps), 0);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(one_queue_pair_serves_many_connections),
	    cmocka_unit_test(connections_are_counted_each_for_itself),
	    cmocka_unit_test(idle_ones_grow_old),
	    cmocka_unit_test(many_at_once),
	    cmocka_unit_test(without_the_feature_nothing_is_kept),
	    cmocka_unit_test(what_ended_in_disorder_goes),
	    cmocka_unit_test(grown_rings_go),
	    cmocka_unit_test(bound_ones_go_and_take_none),
	    cmocka_unit_test(another_address_takes_none),
	    cmocka_unit_test(a_listener_that_closes_takes_them_along),
	    cmocka_unit_test(a_listener_that_was_shut_down_lets_nobody_in),
	    cmocka_unit_test(what_was_taken_back_is_not_opened),
	    cmocka_unit_test(an_opened_one_ends_with_its_listener),
	    cmocka_unit_test(what_was_opened_in_time_is_found_late),
	    cmocka_unit_test(what_is_opened_during_an_exit_ends_with_it),
	    cmocka_unit_test(who_has_sent_a_reset_keeps_nothing),
	    cmocka_unit_test(few_come_beside_the_backlog),
	    cmocka_unit_test(without_means_for_another_it_is_not_kept),
	    cmocka_unit_test(an_exit_does_not_wait_for_them),
	    cmocka_unit_test(a_newcomer_goes_before_those_that_may_come),
	    cmocka_unit_test(a_newcomer_goes_behind_one_that_has_come),
	    cmocka_unit_test(a_newcomer_takes_the_place_of_one_on_the_device),
	    cmocka_unit_test(who_died_is_not_connected_to), /* the last */
	};

	setenv("STREAM_FEATURES", "15", 1);
	peer_start(&peer);
	peer_start(&spare);
	stream_engine();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Streams between two processes on softverbs, through rdma.h: bytes, ends, deaths, and that nothing is left behind. */
#include "unit.h"

#include "config.h"
#include "stream_peer.h"
#include "verbs_dl.h"
#include "wire.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RING 32768u

static struct peer peer, spare;

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

static struct vkr_stream *order(uint32_t job, uint32_t seed, uint64_t total, uint32_t limit)
{
	struct peer_order o;

	memset(&o, 0, sizeof(o));
	o.job = job;
	o.seed = seed;
	o.total = total;
	o.limit = limit;
	return stream_connect(&peer.addr, &o);
}

static void expect_eof(struct vkr_stream *s)
{
	char c;

	assert_int_equal(stream_recv_all(s, &c, 1), 0);
}

/* Until both processes have released everything. */
static void nothing_left(void)
{
	int64_t end = now_ms() + 5000; /* well before any drain deadline */
	struct peer_gauges mine, theirs;

	do {
		struct timespec ts = {.tv_nsec = 2000000};

		peer_gauges(&peer, &theirs);
		mine.qps = vkr_load(&vkr_stats->qps);
		mine.mrs = vkr_load(&vkr_stats->mrs);
		mine.mr_bytes = vkr_load(&vkr_stats->mr_bytes);
		if (!mine.qps && !mine.mrs && !mine.mr_bytes && !theirs.qps && !theirs.mrs && !theirs.mr_bytes)
			return;
		nanosleep(&ts, NULL);
	} while (now_ms() < end);
	fail_msg("queue pairs are left: %llu here, %llu there; registrations: %llu, %llu", (unsigned long long)mine.qps,
		 (unsigned long long)theirs.qps, (unsigned long long)mine.mrs, (unsigned long long)theirs.mrs);
}

/* ------------------------------------------------------------------ bytes */

static void first_bytes(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0, 0, 0);
	char buf[6];

	assert_int_equal(stream_send_all(s, "hello", 6), 6);
	assert_int_equal(stream_recv_all(s, buf, 6), 6);
	assert_string_equal(buf, "hello");
	assert_int_equal(vkr_stream_shutdown(s, SHUT_WR), 0);
	expect_eof(s);
	assert_true(vkr_load(&vkr_stream_stats(s)->immediates_out) >= 2);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void sizes_around_ring_ends(void **state)
{
	static const uint32_t sizes[] = {1,        31,     32,       RING - 33,     RING - 32,     RING - 31,
					 RING - 1, RING,   RING + 1, 2 * RING - 33, 2 * RING - 32, 2 * RING - 31,
					 65536,    262144, 1048575,  1048576,       1048577,       5000000};
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(sizes); i++) {
		struct vkr_stream *s = order(PEER_DUPLEX, (uint32_t)i, sizes[i], 0);

		assert_int_equal(stream_duplex(s, (uint32_t)i + 1, (uint32_t)i, sizes[i], 0), 0);
		vkr_stream_close(s, 1000);
	}
	nothing_left();
}

static void one_way_each(void **state)
{
	static const uint32_t limits[] = {1, 64, 5000, 0};
	size_t i;
	char c;

	for (i = 0; i < VKR_ARRAY_SIZE(limits); i++) {
		uint64_t total = limits[i] == 1 ? 100000 : 8 << 20;
		struct vkr_stream *s = order(PEER_SINK, 7, total, limits[i]);

		assert_int_equal(stream_send_pattern(s, 7, total, limits[i]), 0);
		assert_int_equal(stream_recv_all(s, &c, 1), 1);
		vkr_stream_close(s, 1000);
		s = order(PEER_SOURCE, 9, total, limits[i]);
		assert_int_equal(stream_recv_pattern(s, 9, total, limits[i]), 0);
		expect_eof(s);
		vkr_stream_close(s, 1000);
	}
	nothing_left();
}

static void random_duplex(void **state)
{
	uint32_t seed;

	for (seed = 100; seed < 112; seed++) {
		uint32_t limit = 1u << (6 + seed % 12);
		struct vkr_stream *s = order(PEER_DUPLEX, seed, 2 << 20, limit);

		assert_int_equal(stream_duplex(s, seed + 1, seed, 2 << 20, limit), 0);
		vkr_stream_close(s, 1000);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ rings */

static bool with_credits(void)
{
	return (stream_features() & VKR_FEAT_CREDIT) != 0;
}

static bool large_inline(void)
{
	return !getenv("STREAM_VERBS") && !getenv("STREAM_INLINE");
}

static void a_reader_that_reads_nothing_for_long(void **state)
{
	struct vkr_stream *s = order(PEER_STALL, 3, 600, 2 * RING + 1000);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	int64_t start = now_ms();
	char c;

	assert_int_equal(stream_send_pattern(s, 3, 2 * RING + 1000, 0), 0);
	if (with_credits()) {
		/* A ring full and no more leaves before it wakes; the writer asks once and sleeps. */
		while (vkr_load(&st->wakes_out) == 0 && now_ms() - start < 10000)
			vkr_engine_poll();
		assert_false(pollable_wait(vkr_stream_pollable(s), EPOLLIN, 200));
		assert_int_equal(vkr_load(&st->wakes_out), 1);
		assert_int_equal(vkr_load(&st->stalls), 1);
		assert_int_equal(vkr_load(&st->bytes_out), RING);
	} else {
		/* Its second buffer comes: more than a ring leaves before it wakes. */
		while (vkr_load(&st->refreshes_in) == 0 && now_ms() - start < 10000)
			vkr_engine_poll();
		assert_true(vkr_load(&st->refreshes_in) >= 1);
	}
	assert_true(now_ms() - start < 500);
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	assert_int_equal(vkr_load(&st->bytes_out), 2 * RING + 1000 + sizeof(struct peer_order));
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* Rings offered to a peer that fills one, while nothing is read. */
static uint64_t refreshes_unread(bool late)
{
	struct vkr_stream *s;
	struct vkr_conn_stats *st;
	int64_t start = now_ms();
	uint64_t n;

	/* On the native wire; with credits nothing is refreshed. */
	vkr_config.features = VKR_FEAT_FIN | VKR_FEAT_RESIZE;
	vkr_config.late_refresh = late;
	s = order(PEER_SOURCE, 9, 3 * RING, 0);
	st = vkr_stream_stats(s);
	while (vkr_stream_inq(s) < RING && now_ms() - start < 10000)
		vkr_engine_poll();
	assert_true(vkr_stream_inq(s) >= RING);
	for (start = now_ms(); now_ms() - start < 100;)
		vkr_engine_poll();
	n = vkr_load(&st->refreshes_out);
	assert_int_equal(stream_recv_pattern(s, 9, 3 * RING, 0), 0);
	expect_eof(s);
	vkr_stream_close(s, 1000);
	vkr_config.late_refresh = false;
	vkr_config.features = stream_features();
	return n;
}

static void refresh_is_early_or_late(void **state)
{
	assert_int_equal(refreshes_unread(false), 1);
	assert_int_equal(refreshes_unread(true), 0);
	nothing_left();
}

static void rings_grow_under_pressure(void **state)
{
	struct vkr_stream *s = order(PEER_SINK, 5, 32 << 20, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	struct peer_gauges theirs;
	uint64_t rings;
	int64_t end;
	char c;

	assert_int_equal(stream_send_pattern(s, 5, 32 << 20, 0), 0);
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	if (with_credits()) {
		assert_int_equal(vkr_load(&st->refreshes_in), 0);
		/* 256 KiB, 1 MiB: as far as the sender waits. */
		rings = vkr_load(&st->rings_in);
		assert_true(rings >= 1 && rings <= 2);
		/* 8,192 times a quarter of the first ring is in 32 MiB. */
		assert_true(vkr_load(&st->credits_in) < 1000);
		/* After an idle second the first length does again: one more offer, and the memory is back. */
		for (end = now_ms() + 8000; vkr_load(&st->rings_in) == rings && now_ms() < end;)
			pollable_wait(vkr_stream_pollable(s), EPOLLIN, 10);
		assert_int_equal(vkr_load(&st->rings_in), rings + 1);
		do
			peer_gauges(&peer, &theirs);
		while (theirs.mr_bytes > 2 * RING && now_ms() < end);
		assert_true(theirs.mr_bytes <= 2 * RING);
	} else {
		/* 1,024 refreshes at the first length; some 40 with doubling to 1 MiB. */
		assert_true(vkr_load(&st->refreshes_in) < 200);
		assert_true(vkr_load(&st->refreshes_in) > 10);
		assert_int_equal(vkr_load(&st->credits_in), 0);
	}
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* A writer that polls for room need not sleep while the peer reads, and its ring need not grow. */
static void much_is_sent_without_a_stall(void **state)
{
	struct vkr_stream *s = order(PEER_SINK, 6, 8 << 20, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	uint32_t was = vkr_config.poll_us;
	char c;

	vkr_config.poll_us = 5000000; /* the machine may be busy */
	stream_eager = true;
	assert_int_equal(stream_send_pattern(s, 6, 8 << 20, 1 << 20), 0);
	stream_eager = false;
	vkr_config.poll_us = was;
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	if (with_credits() && large_inline() && sysconf(_SC_NPROCESSORS_ONLN) > 1) {
		assert_int_equal(vkr_load(&st->stalls), 0);
		assert_int_equal(vkr_load(&st->rings_in), 0);
		/* Without the polling hundreds find the ring full; the machine may be busy. */
		assert_true(stream_refused < 20);
	}
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* Who has far more to send than a ring holds gets a large one for a while, once for each such send. */
static void much_borrows_a_ring(void **state)
{
	struct vkr_stream *s = order(PEER_SINK, 7, 96 << 20, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	int64_t end = now_ms() + 10000;
	uint32_t was = vkr_config.poll_us;
	const size_t each = 32 << 20;
	uint8_t *buf = malloc(each);
	struct peer_gauges theirs;
	uint64_t loans;
	int i;
	char c;

	assert_non_null(buf);
	vkr_config.poll_us = 5000000;
	stream_eager = true;
	for (i = 0; i < 3; i++) {
		stream_fill(buf, 7, i * each, each);
		assert_int_equal(stream_send_all(s, buf, each), each);
	}
	free(buf);
	stream_eager = false;
	vkr_config.poll_us = was;
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	loans = vkr_load(&st->rings_in);
	if (stream_features() & VKR_FEAT_LEND && large_inline() && sysconf(_SC_NPROCESSORS_ONLN) > 1)
		assert_in_range(loans, 1, 3);
	else if (with_credits() && large_inline())
		assert_int_equal(loans, 0);
	do
		peer_gauges(&peer, &theirs);
	while (theirs.mr_bytes > 2 << 20 && now_ms() < end);
	assert_true(theirs.mr_bytes <= 2 << 20);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void many_small_messages_stay_within_the_bound(void **state)
{
	struct vkr_stream *s = order(PEER_SINK, 4, 20000, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	uint32_t i;
	char c;

	/* A poll after each keeps the send queue free, so that nothing coalesces but what the bound holds back. */
	for (i = 0; i < 20000; i++) {
		assert_int_equal(stream_send_pattern_at(s, 4, i, 1), 0);
		vkr_engine_poll();
	}
	assert_int_equal(stream_recv_all(s, &c, 1), 1);
	if (with_credits()) {
		assert_int_equal(vkr_load(&st->sends_out), 0);
		assert_true(vkr_load(&st->credits_in) >= 1 && vkr_load(&st->credits_in) <= 20000 / 50 + 1);
	} else {
		assert_true(vkr_load(&st->sends_out) >= 1); /* the question */
	}
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* Requests and answers that never fill the ring meet no stop at its end. */
static void nobody_waits_at_the_end_of_a_ring(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0, 0, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);
	char out[3000], in[3000];
	int i;

	for (i = 0; i < 1000; i++) {
		memset(out, i, sizeof(out));
		assert_int_equal(stream_send_all(s, out, sizeof(out)), sizeof(out));
		assert_int_equal(stream_recv_all(s, in, sizeof(in)), sizeof(in));
		assert_memory_equal(in, out, sizeof(in));
	}
	if (with_credits()) {
		assert_int_equal(vkr_load(&st->stalls), 0);
		assert_int_equal(vkr_load(&st->wakes_out) + vkr_load(&st->wakes_in), 0);
		assert_int_equal(vkr_load(&st->refreshes_in) + vkr_load(&st->rings_in), 0);
		/* One message each, also across the end, and one credit for a quarter of a ring or more. */
		assert_int_equal(vkr_load(&st->immediates_out), 1001);
		assert_true(vkr_load(&st->credits_out) > 0 && vkr_load(&st->credits_out) <= 3000 * 1000 / (RING / 4));
	} else {
		assert_true(vkr_load(&st->refreshes_in) > 3); /* it doubles each time */
	}
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* Whatever either side agrees to, they understand each other, and both understand the same. */
static void every_pair_finds_common_ground(void **state)
{
	const struct timespec kept_at_most = {.tv_sec = 1, .tv_nsec = 100000000};
	uint32_t ours, theirs;
	int64_t end;

	/* What is left to the next connection has the features of the last one: too old by then. */
	nanosleep(&kept_at_most, NULL);
	for (ours = 0; ours <= VKR_FEAT_ALL; ours++) {
		for (theirs = 0; theirs <= VKR_FEAT_ALL; theirs++) {
			bool credits = (vkr_wire_features(ours, theirs) & VKR_FEAT_CREDIT) != 0;
			struct vkr_conn_stats *st;
			struct vkr_stream *s;

			vkr_config.features = ours;
			peer_features(&peer, theirs);
			s = order(PEER_DUPLEX, ours, 200000, 0);
			st = vkr_stream_stats(s);
			assert_int_equal(st->peer_kind, VKR_PEER_SHIM);
			assert_int_equal(stream_duplex(s, ours + 1, ours, 200000, 0), 0);
			assert_int_equal(vkr_load(&st->refreshes_in) == 0, credits);
			/* What is sent last may still be in staging. */
			for (end = now_ms() + 5000; credits && !vkr_load(&st->credits_in) && now_ms() < end;)
				vkr_engine_poll();
			assert_int_equal(vkr_load(&st->credits_in) != 0, credits);
			assert_int_equal(vkr_load(&st->credits_out) != 0, credits);
			vkr_stream_close(s, 1000);
			if (vkr_wire_features(ours, theirs) & VKR_FEAT_KEEP)
				nanosleep(&kept_at_most, NULL);
		}
	}
	vkr_config.features = stream_features();
	peer_features(&peer, stream_features());
	nothing_left();
}

static void idle_connection_is_small(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0, 0, 0);
	struct vkr_conn_stats *st = vkr_stream_stats(s);

	int64_t end = now_ms() + 5000;

	/* What the first message took goes back after an idle second. */
	while (vkr_load(&st->mem_mr) + vkr_load(&st->mem_queue) >= 80 << 10 && now_ms() < end)
		pollable_wait(vkr_stream_pollable(s), EPOLLIN, 10);
	assert_true(vkr_load(&st->mem_mr) + vkr_load(&st->mem_queue) < 80 << 10);
	assert_true(vkr_load(&st->mem_mr) >= 40 << 10);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* ------------------------------------------------------------------ ends */

/* What may be locked is less than a write would take: it goes in pieces. Needs a device that takes little inline, but
 * the order. */
static void little_may_be_locked(void **state)
{
	const char *bytes = getenv("STREAM_INLINE");
	static char data[30000];
	struct rlimit was, low;
	struct iovec iov = {data, sizeof(data)};
	struct vkr_stream *s;
	ssize_t sent;

	if (!bytes || strcmp(bytes, "64"))
		skip();
	s = order(PEER_ECHO, 0, 0, 0);
	memset(data, 'x', sizeof(data));
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &was), 0);
	assert_int_equal(vkr_verbs.soft->fault("memlock"), 0);
	low = was;
	low.rlim_cur = 0;
	do {
		low.rlim_cur += 4096;
		assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &low), 0);
		sent = vkr_stream_send(s, &iov, 1, sizeof(data), 0);
	} while (sent == -ENOMEM && low.rlim_cur < was.rlim_cur);
	assert_in_range(sent, 1, sizeof(data) - 1);
	assert_int_equal(stream_send_all(s, data + sent, sizeof(data) - (size_t)sent), sizeof(data) - (size_t)sent);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &was), 0);
	assert_int_equal(stream_recv_all(s, data, sizeof(data)), sizeof(data));
	for (size_t i = 0; i < sizeof(data); i++)
		assert_int_equal(data[i], 'x');
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void half_close(void **state)
{
	struct vkr_stream *s = order(PEER_HALF, 11, 300000, 0);
	struct iovec iov = {(char[]){'x'}, 1};

	assert_int_equal(stream_send_pattern(s, 1, 200000, 0), 0);
	assert_int_equal(vkr_stream_shutdown(s, SHUT_WR), 0);
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), -EPIPE);
	assert_int_equal(stream_recv_pattern(s, 11, 300000, 0), 0);
	expect_eof(s);
	assert_true(vkr_pollable_ready(vkr_stream_pollable(s)) & EPOLLHUP);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void peer_closes_first(void **state)
{
	struct vkr_stream *s = order(PEER_SOURCE, 2, 100, 0);
	struct iovec iov = {(char[]){'x'}, 1};
	uint32_t ready;

	stream_wait(s, EPOLLRDHUP);
	assert_int_equal(vkr_stream_inq(s), 100);
	assert_int_equal(stream_recv_pattern(s, 2, 100, 0), 0);
	expect_eof(s);
	ready = vkr_pollable_ready(vkr_stream_pollable(s));
	assert_int_equal(ready, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	/* Once the peer is gone, not only half closed, TCP takes one more send and learns. */
	nothing_left();
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), 1);
	ready = vkr_pollable_ready(vkr_stream_pollable(s));
	assert_int_equal(ready, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	assert_int_equal(vkr_stream_take_error(s), EPIPE);
	assert_int_equal(vkr_stream_take_error(s), 0);
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), -EPIPE);
	expect_eof(s);
	vkr_stream_close(s, 1000);
}

static void peer_closes_with_unread_bytes(void **state)
{
	struct vkr_stream *s = order(PEER_UNREAD, 0, 0, 0);
	struct iovec iov = {(char[]){'x'}, 1};
	uint32_t ready;

	assert_int_equal(stream_send_all(s, "x", 1), 1);
	stream_wait(s, EPOLLHUP);
	ready = vkr_pollable_ready(vkr_stream_pollable(s));
	assert_int_equal(ready, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	assert_int_equal(vkr_stream_recv(s, &iov, iov.iov_len, 0), -ECONNRESET);
	assert_int_equal(vkr_stream_recv(s, &iov, iov.iov_len, 0), 0);
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), -EPIPE);
	assert_int_equal(vkr_stream_shutdown(s, SHUT_WR), -ENOTCONN);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void close_drains_what_was_accepted(void **state)
{
	struct vkr_stream *s = order(PEER_STALL, 6, 200, 200000);

	/* The peer stalls; ours is closed with most bytes still in staging, and the peer's SINK checks each. It would
	 * abort, and take the server with it, if one were missing. */
	assert_int_equal(stream_send_pattern(s, 6, 200000, 0), 0);
	vkr_stream_close(s, 10000);
	nothing_left();
	assert_int_equal(waitpid(peer.pid, NULL, WNOHANG), 0);
}

static void linger_zero_resets(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0, 0, 0);

	assert_int_equal(stream_send_all(s, "abc", 3), 3);
	vkr_stream_close(s, 0);
	nothing_left();
}

static void both_close_at_once(void **state)
{
	int i;

	for (i = 0; i < 50; i++) {
		struct vkr_stream *s = order(PEER_SOURCE, 1, 0, 0);

		vkr_stream_close(s, 1000);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ connecting */

static void nobody_listens(void **state)
{
	struct sockaddr_in nowhere = peer.addr;
	const char *reason = "";
	struct vkr_stream *s;

	nowhere.sin_port = htons(1);
	assert_int_equal(stream_try(&nowhere, 2000, &s, &reason), -ECONNREFUSED);
	assert_non_null(strstr(reason, "127.0.0.1:1"));
	assert_int_equal(vkr_pollable_ready(vkr_stream_pollable(s)), 0);
	vkr_stream_close(s, 0);
}

static void closed_while_connecting(void **state)
{
	const char *reason;
	struct vkr_stream *s;
	int i;

	for (i = 0; i < 100; i++) {
		assert_int_equal(vkr_connect_start(NULL, (struct sockaddr *)&peer.addr, 2000, "t", &s, &reason), 0);
		vkr_stream_close(s, 0);
	}
	nothing_left();
}

static void silence_times_out(void **state)
{
	const char *reason = "";
	struct vkr_stream *s;
	int64_t start;

	assert_int_equal(kill(peer.pid, SIGSTOP), 0);
	assert_int_equal(waitpid(peer.pid, NULL, WUNTRACED), peer.pid);
	start = now_ms();
	assert_int_equal(stream_try(&peer.addr, 300, &s, &reason), -ETIMEDOUT);
	assert_true(now_ms() - start >= 290 && now_ms() - start < 3000);
	assert_non_null(strstr(reason, "300 ms"));
	vkr_stream_close(s, 0);
	assert_int_equal(kill(peer.pid, SIGCONT), 0);
	nothing_left();
}

static int count_open(struct vkr_stream *const *s, int n)
{
	int i, open = 0;

	for (i = 0; i < n; i++)
		open += vkr_stream_state(s[i]) == VKR_STREAM_OPEN;
	return open;
}

/* To a listener of this very process. */
static void requests_beyond_the_backlog_wait(void **state)
{
	struct sockaddr_in to = peer.addr;
	struct vkr_stream *s[8], *in[8];
	struct vkr_listener *l;
	const char *reason = "";
	void *ticket;
	int64_t end;
	int i;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	assert_int_equal(vkr_listener_create((struct sockaddr *)&to, false, 2, "t", NULL, NULL, &l, &reason), 0);
	for (i = 0; i < 8; i++)
		assert_int_equal(vkr_connect_start(NULL, (struct sockaddr *)&to, 20000, "t", &s[i], &reason), 0);
	for (end = now_ms() + 5000; count_open(s, 8) < 3 && now_ms() < end;)
		vkr_engine_poll();
	/* As Linux: one more than the backlog. Those behind get no answer, however long one looks. */
	for (end = now_ms() + 200; now_ms() < end;)
		vkr_engine_poll();
	assert_int_equal(count_open(s, 8), 3);
	for (i = 0; i < 7; i++) {
		assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
		in[i] = vkr_listener_accept(l, &ticket);
		assert_non_null(in[i]);
	}
	/* The eighth waits in the listener and ends with it. */
	assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
	assert_int_equal(count_open(s, 8), 8);
	vkr_listener_close(l);
	for (i = 0; i < 7; i++)
		vkr_stream_close(in[i], 1000);
	for (i = 0; i < 8; i++) {
		stream_wait(s[i], EPOLLIN);
		vkr_stream_close(s[i], 1000);
	}
	assert_int_equal(stream_try(&to, 2000, &s[0], &reason), -ECONNREFUSED);
	vkr_stream_close(s[0], 0);
	nothing_left();
}

static void a_closed_port_can_be_had_again(void **state)
{
	struct sockaddr_in to = peer.addr;
	struct vkr_listener *l, *second;
	const char *reason = "";
	int i;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 2);
	for (i = 0; i < 20; i++) {
		assert_int_equal(vkr_listener_create((struct sockaddr *)&to, false, 2, "t", NULL, NULL, &l, &reason),
				 0);
		assert_int_equal(
		    vkr_listener_create((struct sockaddr *)&to, false, 2, "t", NULL, NULL, &second, &reason),
		    -EADDRINUSE);
		assert_non_null(strstr(reason, "another program"));
		vkr_listener_close(l);
	}
}

static void mapped_addresses(void **state)
{
	struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = peer.addr.sin_port};
	struct sockaddr_storage local, remote;
	const char *reason = "";
	struct vkr_stream *s;
	char c;

	to.sin6_addr.s6_addr[10] = to.sin6_addr.s6_addr[11] = 0xff;
	memcpy(&to.sin6_addr.s6_addr[12], &peer.addr.sin_addr, 4);
	assert_int_equal(vkr_connect_start(NULL, (struct sockaddr *)&to, 5000, "t", &s, &reason), 0);
	stream_wait(s, EPOLLOUT);
	vkr_stream_addrs(s, &local, &remote);
	assert_int_equal(local.ss_family, AF_INET6);
	assert_memory_equal(&remote, &to, sizeof(to));
	assert_true(IN6_IS_ADDR_V4MAPPED(&((struct sockaddr_in6 *)&local)->sin6_addr));
	assert_int_equal(vkr_stream_shutdown(s, SHUT_WR), 0);
	assert_int_equal(stream_recv_all(s, &c, 1), 0);
	vkr_stream_close(s, 1000);
	nothing_left();
}

static void a_thousand_connects(void **state)
{
	int i;

	for (i = 0; i < 1000; i++) {
		struct vkr_stream *s = order(PEER_ECHO, 0, 0, 0);
		char c = (char)i, d;

		assert_int_equal(stream_send_all(s, &c, 1), 1);
		assert_int_equal(stream_recv_all(s, &d, 1), 1);
		assert_int_equal(c, d);
		vkr_stream_close(s, 1000);
	}
	nothing_left();
}

static void many_at_once(void **state)
{
	struct vkr_stream *s[200];
	size_t i;
	char d;

	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		s[i] = order(PEER_ECHO, 0, 0, 0);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		assert_int_equal(stream_send_all(s[i], &(char){(char)i}, 1), 1);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		assert_int_equal(stream_recv_all(s[i], &d, 1), 1);
		assert_int_equal(d, (char)i);
		vkr_stream_close(s[i], 1000);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ threads */

static void *thread_main(void *arg)
{
	uint32_t seed = (uint32_t)(uintptr_t)arg;
	int i;

	for (i = 0; i < 20; i++) {
		struct vkr_stream *s = order(PEER_DUPLEX, seed, 300000, 20000);
		int ret = stream_duplex(s, seed + 1, seed, 300000, 20000);

		vkr_stream_close(s, 1000);
		if (ret)
			return (void *)(intptr_t)ret;
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t t[6];
	void *ret;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(t); i++)
		assert_int_equal(pthread_create(&t[i], NULL, thread_main, (void *)(200 + 10 * i)), 0);
	for (i = 0; i < VKR_ARRAY_SIZE(t); i++) {
		assert_int_equal(pthread_join(t[i], &ret), 0);
		assert_null(ret);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ idle, death */

static void idle_costs_no_cpu(void **state)
{
	struct vkr_stream *s[50];
	struct timespec a, b, ts = {.tv_sec = 1};
	int64_t used;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		s[i] = order(PEER_ECHO, 0, 0, 0);
	/* Let the ticks end, then measure a second of nothing. */
	nanosleep(&ts, NULL);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	assert_false(pollable_wait(vkr_stream_pollable(s[0]), EPOLLIN, 2000));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	used = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
	print_message("2 s idle: %lld us of CPU\n", (long long)used);
	assert_true(used < 20000);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		vkr_stream_close(s[i], 1000);
	nothing_left();
}

static void peer_killed(void **state)
{
	struct vkr_stream *idle = order(PEER_ECHO, 0, 0, 0), *s;
	int64_t start = now_ms();
	char c;

	s = order(PEER_DIE, 0, 0, 0);
	assert_true(stream_recv_all(s, &c, 1) <= 0);
	assert_true(stream_recv_all(idle, &c, 1) <= 0);
	assert_true(now_ms() - start < 5000);
	vkr_stream_close(s, 1000);
	vkr_stream_close(idle, 1000);
	start = now_ms();
	while ((vkr_load(&vkr_stats->qps) || vkr_load(&vkr_stats->mrs)) && now_ms() - start < 5000) {
		struct timespec ts = {.tv_nsec = 1000000};

		nanosleep(&ts, NULL);
	}
	assert_int_equal(vkr_load(&vkr_stats->qps), 0);
	assert_int_equal(vkr_load(&vkr_stats->mrs), 0);
	waitpid(peer.pid, NULL, 0);
}

static void flush_at_exit(void **state)
{
	struct vkr_stream *s;
	char c;

	peer = spare;
	s = order(PEER_SINK, 8, 150000, 0);
	assert_int_equal(stream_send_pattern(s, 8, 150000, 0), 0);
	vkr_engine_flush(2000);
	assert_int_equal(vkr_load(&vkr_stats->qps), 0);
	/* The peer has had every byte: its answer may have come before the end. */
	assert_true(stream_recv_all(s, &c, 1) >= 0);
	expect_eof(s);
	vkr_stream_close(s, 0);
	peer_stop(&peer);
}

/* rdma-core's state cannot be had twice in a process; softverbs' can. */
static void forked_child_has_its_own_engine(void **state)
{
	const char *reason = "";
	struct vkr_stream *s;
	int status;
	pid_t pid;

	if (!getenv("STREAM_VERBS")) {
		peer_start(&peer);
		s = order(PEER_DUPLEX, 40, 100000, 0);
		assert_int_equal(stream_duplex(s, 41, 40, 100000, 0), 0);
		vkr_stream_close(s, 1000);
		nothing_left();
		peer_stop(&peer);
		return;
	}
	pid = fork();
	if (!pid)
		_exit(vkr_engine_start(&reason) == -EOPNOTSUPP && strstr(reason, "forked") ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(first_bytes),
	    cmocka_unit_test(sizes_around_ring_ends),
	    cmocka_unit_test(one_way_each),
	    cmocka_unit_test(random_duplex),
	    cmocka_unit_test(refresh_is_early_or_late),
	    cmocka_unit_test(a_reader_that_reads_nothing_for_long),
	    cmocka_unit_test(rings_grow_under_pressure),
	    cmocka_unit_test(much_is_sent_without_a_stall),
	    cmocka_unit_test(much_borrows_a_ring),
	    cmocka_unit_test(many_small_messages_stay_within_the_bound),
	    cmocka_unit_test(nobody_waits_at_the_end_of_a_ring),
	    cmocka_unit_test(every_pair_finds_common_ground),
	    cmocka_unit_test(idle_connection_is_small),
	    cmocka_unit_test(half_close),
	    cmocka_unit_test(peer_closes_first),
	    cmocka_unit_test(peer_closes_with_unread_bytes),
	    cmocka_unit_test(close_drains_what_was_accepted),
	    cmocka_unit_test(linger_zero_resets),
	    cmocka_unit_test(both_close_at_once),
	    cmocka_unit_test(nobody_listens),
	    cmocka_unit_test(closed_while_connecting),
	    cmocka_unit_test(silence_times_out),
	    cmocka_unit_test(requests_beyond_the_backlog_wait),
	    cmocka_unit_test(a_closed_port_can_be_had_again),
	    cmocka_unit_test(mapped_addresses),
	    cmocka_unit_test(a_thousand_connects),
	    cmocka_unit_test(many_at_once),
	    cmocka_unit_test(threads),
	    cmocka_unit_test(idle_costs_no_cpu),
	    cmocka_unit_test(little_may_be_locked), /* for the rest its limit stays in force */
	    cmocka_unit_test(peer_killed),
	    cmocka_unit_test(flush_at_exit),
	    cmocka_unit_test(forked_child_has_its_own_engine),
	};

	peer_start(&peer);
	peer_start(&spare);
	stream_engine();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

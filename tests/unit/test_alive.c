/* SPDX-License-Identifier: BSD-2-Clause */
/* Peers and links that die without a word, on softverbs: T13. */
#include "unit.h"

#include "config.h"
#include "stream_peer.h"
#include "verbs_dl.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

/* 0.54 s times 8: what a queue pair waits for an answer. */
#define RETRIES_MS 4300
/* What a user is promised, and a slow machine's second. */
#define PROMISE_MS 11000
#define NEVER_S    3600

static struct peer peer;

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

static int setup(void **state)
{
	vkr_config.keepalive_s = NEVER_S;
	return 0;
}

/* Until both ends have heard that the link is up: a request that is lost before is not sent again. */
static void link_up(void)
{
	int64_t end = now_ms() + PROMISE_MS;
	const char *reason = "";
	struct vkr_stream *s;
	bool up = false;

	vkr_verbs.soft->fault("join");
	peer_link(&peer, true);
	while (!up && now_ms() < end) {
		up = !stream_try(&peer.addr, 200, &s, &reason);
		vkr_stream_close(s, 1000);
	}
	assert_true(up);
}

static int teardown(void **state)
{
	link_up();
	return 0;
}

static struct vkr_stream *order(uint32_t job, uint64_t total)
{
	struct peer_order o;

	memset(&o, 0, sizeof(o));
	o.job = job;
	o.total = total;
	return stream_connect(&peer.addr, &o);
}

static void echo(struct vkr_stream *s)
{
	char c = 'e', d = 0;

	assert_int_equal(stream_send_all(s, &c, 1), 1);
	assert_int_equal(stream_recv_all(s, &d, 1), 1);
	assert_int_equal(d, c);
}

static bool ends(struct vkr_stream *s, int ms)
{
	return pollable_wait(vkr_stream_pollable(s), EPOLLHUP, ms);
}

/* As TCP ends it: everything is ready, the error comes once, then the end. */
static void expect_timed_out(struct vkr_stream *s)
{
	struct iovec iov = {(char[]){'x'}, 1};

	assert_int_equal(vkr_pollable_ready(vkr_stream_pollable(s)),
			 EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	assert_int_equal(vkr_stream_recv(s, &iov, iov.iov_len, 0), -ETIMEDOUT);
	assert_int_equal(vkr_stream_recv(s, &iov, iov.iov_len, 0), 0);
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), -EPIPE);
	vkr_stream_close(s, 1000);
}

static bool gone(void)
{
	struct peer_gauges theirs;

	peer_gauges(&peer, &theirs);
	return !vkr_load(&vkr_stats->qps) && !vkr_load(&vkr_stats->mrs) && !theirs.qps && !theirs.mrs;
}

static void nothing_left(void)
{
	int64_t end = now_ms() + PROMISE_MS;
	struct timespec ts = {.tv_nsec = 2000000};

	while (!gone() && now_ms() < end)
		nanosleep(&ts, NULL);
	assert_true(gone());
}

/* ------------------------------------------------------------------ what finds it */

static void idle(void **state)
{
	struct vkr_stream *s;
	int64_t start;

	vkr_config.keepalive_s = 3;
	s = order(PEER_ECHO, 0);
	echo(s);
	peer_link(&peer, false);
	start = now_ms();
	assert_true(ends(s, PROMISE_MS));
	assert_true(now_ms() - start > RETRIES_MS / 2);
	expect_timed_out(s);
	nothing_left();
}

/* Without an interval nobody asks, as in TCP; SO_KEEPALIVE gives one, also later. */
static void keepalive_of_the_socket(void **state)
{
	struct vkr_stream *s, *other;

	vkr_config.keepalive_s = 0;
	s = order(PEER_ECHO, 0);
	other = order(PEER_ECHO, 0);
	echo(s);
	echo(other);
	peer_link(&peer, false);
	assert_false(ends(s, RETRIES_MS + 2000));
	vkr_stream_keepalive(s, 1);
	assert_true(ends(s, PROMISE_MS));
	expect_timed_out(s);
	assert_false(ends(other, 500));
	vkr_stream_close(other, 1000);
	nothing_left();
}

/* As devices do it, which repeat, and as rxe, which fails at once. */
static void our_port_goes_down(void **state)
{
	static const char *const words[] = {"cut", "down"};
	struct vkr_stream *s;
	int64_t start;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(words); i++) {
		s = order(PEER_ECHO, 0);
		echo(s);
		start = now_ms();
		vkr_verbs.soft->fault(words[i]);
		assert_true(ends(s, PROMISE_MS));
		assert_true(now_ms() - start > 1800);
		expect_timed_out(s);
		link_up();
		s = order(PEER_ECHO, 0);
		echo(s);
		vkr_stream_close(s, 1000);
	}
}

static void sending_while_the_port_is_down(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0);

	echo(s);
	vkr_verbs.soft->fault("down");
	assert_int_equal(stream_send_all(s, "x", 1), 1);
	assert_true(ends(s, 1000));
	expect_timed_out(s);
}

static void a_blink(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0);

	echo(s);
	vkr_verbs.soft->fault("down");
	assert_false(ends(s, 1000));
	link_up();
	assert_false(ends(s, 2000));
	echo(s);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* A link that comes back in time costs nothing. */
static void a_short_cut(void **state)
{
	struct vkr_stream *s = order(PEER_ECHO, 0);

	vkr_config.keepalive_s = 1;
	echo(s);
	vkr_verbs.soft->fault("cut");
	assert_int_equal(stream_send_all(s, "x", 1), 1);
	assert_false(ends(s, 2000));
	vkr_verbs.soft->fault("join");
	assert_int_equal(stream_recv_all(s, (char[1]){0}, 1), 1);
	echo(s);
	assert_false(ends(s, 2500));
	echo(s);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* Data in flight is not acknowledged; what its connection finds out makes the others of that host look. */
static void one_for_all(void **state)
{
	struct vkr_stream *s[20];
	int64_t start;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		s[i] = order(PEER_ECHO, 0);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		echo(s[i]);
	peer_link(&peer, false);
	start = now_ms();
	/* What is sent before word of the cut has come still arrives. */
	while (!ends(s[0], 100)) {
		(void)vkr_stream_send(s[0], &(struct iovec){(char[]){'x'}, 1}, 1, 1, 0);
		assert_true(now_ms() - start < PROMISE_MS);
	}
	assert_true(now_ms() - start > RETRIES_MS - 300);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		assert_true(ends(s[i], RETRIES_MS + 3000));
		assert_int_equal(vkr_stream_take_error(s[i]), ETIMEDOUT);
		vkr_stream_close(s[i], 1000);
	}
	nothing_left();
}

/* More than one step of the sweep. */
static void hundreds(void **state)
{
	static struct vkr_stream *s[600];
	size_t i;

	vkr_config.keepalive_s = 1;
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		s[i] = order(PEER_ECHO, 0);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		echo(s[i]);
	assert_false(ends(s[0], 3000));
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		echo(s[i]);
	peer_link(&peer, false);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		assert_true(ends(s[i], PROMISE_MS));
		expect_timed_out(s[i]);
	}
	nothing_left();
}

/* ------------------------------------------------------------------ what it costs */

static void asking_costs_nearly_nothing(void **state)
{
	struct vkr_stream *s[50];
	struct timespec a, b;
	uint64_t events;
	int64_t used;
	size_t i;

	vkr_config.keepalive_s = 1;
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		s[i] = order(PEER_ECHO, 0);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		echo(s[i]);
	/* Trimming and the ticks end. */
	assert_false(ends(s[0], 2500));
	events = vkr_load(&vkr_stats->cq_events);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
	assert_false(ends(s[0], 4000));
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
	used = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
	print_message("50 connections asked for 4 s: %lld us of CPU\n", (long long)used);
	assert_true(used < 20000);
	/* Nothing completes, so nobody wakes. */
	assert_int_equal(vkr_load(&vkr_stats->cq_events), events);
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		echo(s[i]);
		vkr_stream_close(s[i], 1000);
	}
	nothing_left();
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup_teardown(idle, setup, teardown),
	    cmocka_unit_test_setup_teardown(keepalive_of_the_socket, setup, teardown),
	    cmocka_unit_test_setup_teardown(our_port_goes_down, setup, teardown),
	    cmocka_unit_test_setup_teardown(sending_while_the_port_is_down, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_blink, setup, teardown),
	    cmocka_unit_test_setup_teardown(a_short_cut, setup, teardown),
	    cmocka_unit_test_setup_teardown(one_for_all, setup, teardown),
	    cmocka_unit_test_setup_teardown(hundreds, setup, teardown),
	    cmocka_unit_test_setup_teardown(asking_costs_nearly_nothing, setup, teardown),
	};

	/* The server asks early, so that it too is rid of what ends here while no word of that can reach it. */
	vkr_config.keepalive_s = 1;
	peer_start(&peer);
	stream_engine();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

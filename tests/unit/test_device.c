/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices, queues and queue pairs that fail or go, on softverbs: who ends, what is released, and what comes back. */
#include "unit.h"

#include "stream_peer.h"
#include "verbs_dl.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

static struct peer peer;
static struct sockaddr_in bound, any;

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

static struct vkr_stream *echo_stream(void)
{
	struct peer_order o;

	memset(&o, 0, sizeof(o));
	o.job = PEER_ECHO;
	return stream_connect(&peer.addr, &o);
}

static void echo(struct vkr_stream *s)
{
	char c = 'e', d = 0;

	assert_int_equal(stream_send_all(s, &c, 1), 1);
	assert_int_equal(stream_recv_all(s, &d, 1), 1);
	assert_int_equal(d, c);
}

static void expect_end(struct vkr_stream *s, int error)
{
	struct iovec iov = {(char[]){'x'}, 1};

	assert_true(pollable_wait(vkr_stream_pollable(s), EPOLLHUP, 5000));
	assert_int_equal(vkr_pollable_ready(vkr_stream_pollable(s)),
			 EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	assert_int_equal(vkr_stream_recv(s, &iov, iov.iov_len, 0), -error);
	assert_int_equal(vkr_stream_send(s, &iov, 1, iov.iov_len, 0), -EPIPE);
	vkr_stream_close(s, 1000);
}

static bool becomes(const vkr_counter *gauge, uint64_t want)
{
	struct timespec ts = {.tv_nsec = 2000000};
	int64_t end = now_ms() + 5000;

	while (vkr_load(gauge) != want && now_ms() < end)
		nanosleep(&ts, NULL);
	return vkr_load(gauge) == want;
}

static void nothing_left(void)
{
	assert_true(becomes(&vkr_stats->qps, 0));
	assert_true(becomes(&vkr_stats->mrs, 0));
}

/* ------------------------------------------------------------------ one queue pair, one completion queue */

static void queue_pair_errors(void **state)
{
	static const char *const words[] = {"qp_fatal", "qp_req_err", "qp_access_err"};
	struct vkr_stream *other = echo_stream(), *s;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(words); i++) {
		s = echo_stream();
		echo(s);
		fault(words[i]);
		expect_end(s, ECONNRESET);
		echo(other);
	}
	vkr_stream_close(other, 1000);
	nothing_left();
}

/* The youngest of two CQs: the first holds 13 connections. */
static void completion_queue_error(void **state)
{
	struct vkr_stream *s[16], *fresh;
	uint64_t cqs;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		s[i] = echo_stream();
		echo(s[i]);
	}
	cqs = vkr_load(&vkr_stats->cqs);
	assert_int_equal(cqs, 2);
	fault("cq_err");
	for (i = 13; i < VKR_ARRAY_SIZE(s); i++)
		expect_end(s[i], ECONNRESET);
	for (i = 0; i < 13; i++)
		echo(s[i]);
	/* It goes with its last connection, and another takes its place when one is needed. */
	assert_true(becomes(&vkr_stats->cqs, 1));
	fresh = echo_stream();
	echo(fresh);
	assert_int_equal(vkr_load(&vkr_stats->cqs), 2);
	vkr_stream_close(fresh, 1000);
	for (i = 0; i < 13; i++)
		vkr_stream_close(s[i], 1000);
	nothing_left();
}

static void events_without_consequence(void **state)
{
	static const char *const words[] = {"port_err", "port_active", "gid_change", "comm_est"};
	struct vkr_stream *s = echo_stream();
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(words); i++) {
		fault(words[i]);
		echo(s);
	}
	assert_false(pollable_wait(vkr_stream_pollable(s), EPOLLHUP, 200));
	echo(s);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* ------------------------------------------------------------------ the device */

/* The event alone: its objects are given back, and the same context serves anew. */
static void fatal_error(void **state)
{
	struct vkr_stream *s[3];
	unsigned changes = vkr_engine_generation();
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
		s[i] = echo_stream();
		echo(s[i]);
	}
	fault("device_fatal");
	for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
		expect_end(s[i], ETIMEDOUT);
	nothing_left();
	assert_true(becomes(&vkr_stats->cqs, 0));
	s[0] = echo_stream();
	echo(s[0]);
	assert_true(vkr_engine_generation() >= changes + 2);
	vkr_stream_close(s[0], 1000);
	nothing_left();
}

static struct vkr_listener *listen_at(const struct sockaddr_in *at, struct vkr_listener_stats *stats)
{
	const char *reason = "";
	struct vkr_listener *l;

	assert_int_equal(vkr_listener_create((struct sockaddr *)at, false, 8, "t", stats, NULL, &l, &reason), 0);
	stats->transport = VKR_TRANSPORT_RDMA;
	return l;
}

/* With it comes the reason. */
static uint8_t transport_of(struct vkr_listener_stats *stats)
{
	return __atomic_load_n(&stats->transport, __ATOMIC_ACQUIRE);
}

/* To a listener of this process. */
static void meet(struct vkr_listener *l, const struct sockaddr_in *to)
{
	const char *reason = "";
	struct vkr_stream *s, *in;
	void *ticket;
	char c;

	assert_int_equal(stream_try(to, 5000, &s, &reason), 0);
	assert_true(pollable_wait(vkr_listener_pollable(l), EPOLLIN, 5000));
	in = vkr_listener_accept(l, &ticket);
	assert_int_equal(stream_send_all(s, "x", 1), 1);
	assert_int_equal(stream_recv_all(in, &c, 1), 1);
	vkr_stream_close(s, 1000);
	vkr_stream_close(in, 1000);
}

static void removal_and_return(void **state)
{
	static struct vkr_listener_stats stats[2];
	struct vkr_listener *l = listen_at(&bound, &stats[0]), *wild = listen_at(&any, &stats[1]);
	struct sockaddr_in to = any;
	struct vkr_stream *s[3], *late;
	struct timespec ts = {.tv_nsec = 2000000};
	const char *reason = "";
	int64_t end;
	int turn;
	size_t i;

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 4);
	/* Oftener than there are entries for devices. */
	for (turn = 0; turn < VKR_MAX_DEVICES + 2; turn++) {
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
			s[i] = echo_stream();
			echo(s[i]);
		}
		meet(wild, &to);
		fault(turn % 2 ? "remove" : "unplug");
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			expect_end(s[i], ETIMEDOUT);
		nothing_left();
		assert_true(becomes(&vkr_stats->cqs, 0));
		for (end = now_ms() + 2000; transport_of(&stats[0]) == VKR_TRANSPORT_RDMA && now_ms() < end;)
			nanosleep(&ts, NULL);
		assert_int_equal(transport_of(&stats[0]), VKR_TRANSPORT_TCP);
		assert_non_null(strstr(stats[0].reason, "removed"));
		assert_true(stream_try(&peer.addr, 2000, &late, &reason) < 0);
		assert_non_null(strstr(reason, "no RDMA device"));
		vkr_stream_close(late, 0);
		fault("return");
		meet(wild, &to);
		if (turn < 2) {
			for (end = now_ms() + 5000; transport_of(&stats[0]) != VKR_TRANSPORT_RDMA && now_ms() < end;)
				nanosleep(&ts, NULL);
			assert_int_equal(transport_of(&stats[0]), VKR_TRANSPORT_RDMA);
			assert_string_equal(stats[0].reason, "");
			meet(l, &bound);
		}
	}
	vkr_listener_close(l);
	vkr_listener_close(wild);
	nothing_left();
}

/* Nobody is connected: only our own id hears of it. */
static void removal_of_an_idle_device(void **state)
{
	struct vkr_stream *s = echo_stream();

	echo(s);
	vkr_stream_close(s, 1000);
	nothing_left();
	assert_true(vkr_load(&vkr_stats->cqs) > 0);
	fault("unplug");
	assert_true(becomes(&vkr_stats->cqs, 0));
	fault("return");
	s = echo_stream();
	echo(s);
	vkr_stream_close(s, 1000);
	nothing_left();
}

/* In every state of connecting: to an address that does not answer, and to one that does. */
static void removal_while_connecting(void **state)
{
	const char *reason = "";
	struct vkr_stream *s[20];
	struct timespec ts;
	int64_t end;
	int turn;
	size_t i;

	for (turn = 0; turn < 20; turn++) {
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++)
			assert_int_equal(
			    vkr_connect_start(NULL, (struct sockaddr *)&peer.addr, 10000, "t", &s[i], &reason), 0);
		ts = (struct timespec){.tv_nsec = turn * 100000};
		nanosleep(&ts, NULL); /* chance */
		fault(turn % 2 ? "remove" : "unplug");
		for (i = 0; i < VKR_ARRAY_SIZE(s); i++) {
			for (end = now_ms() + 3000; vkr_stream_state(s[i]) == VKR_STREAM_CONNECTING && now_ms() < end;)
				vkr_engine_poll();
			assert_int_not_equal(vkr_stream_state(s[i]), VKR_STREAM_CONNECTING);
			if (vkr_stream_state(s[i]) == VKR_STREAM_OPEN)
				assert_true(pollable_wait(vkr_stream_pollable(s[i]), EPOLLHUP, 3000));
			vkr_stream_close(s[i], 1000);
		}
		nothing_left();
		assert_true(becomes(&vkr_stats->cqs, 0));
		fault("return");
	}
}

/* With threads that poll and sleep on what goes away. */
static _Atomic bool stop;

static void *poller(void *arg)
{
	struct vkr_pollable *p = arg;

	while (!stop)
		pollable_wait(p, EPOLLHUP, 5);
	return NULL;
}

static void removal_under_threads(void **state)
{
	static struct vkr_pollable never;
	pthread_t t[4];
	size_t i;
	int turn;

	vkr_pollable_init(&never);
	stop = false;
	for (i = 0; i < VKR_ARRAY_SIZE(t); i++)
		assert_int_equal(pthread_create(&t[i], NULL, poller, &never), 0);
	for (turn = 0; turn < 30; turn++) {
		struct vkr_stream *s = echo_stream();

		echo(s);
		fault(turn % 2 ? "remove" : "device_fatal");
		expect_end(s, ETIMEDOUT);
		nothing_left();
		assert_true(becomes(&vkr_stats->cqs, 0));
		if (turn % 2)
			fault("return");
	}
	stop = true;
	for (i = 0; i < VKR_ARRAY_SIZE(t); i++)
		pthread_join(t[i], NULL);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(completion_queue_error),     cmocka_unit_test(queue_pair_errors),
	    cmocka_unit_test(events_without_consequence), cmocka_unit_test(fatal_error),
	    cmocka_unit_test(removal_and_return),         cmocka_unit_test(removal_of_an_idle_device),
	    cmocka_unit_test(removal_while_connecting),   cmocka_unit_test(removal_under_threads),
	};

	peer_start(&peer);
	bound = any = peer.addr;
	bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 2);
	any.sin_addr.s_addr = htonl(INADDR_ANY);
	any.sin_port = htons((uint16_t)(ntohs(peer.addr.sin_port) + 1));
	stream_engine();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer killed by SIGKILL at a random instant, with data flowing both ways: the survivor, one process through all
 * rounds, hears DISCONNECTED (or a failed connect) within 2 s, gets every request it posted back, and leaks nothing.
 */
#include "tv.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <cmocka.h>

enum { WINDOW = 16, RECVS = 24, LEN = 65536, LIMIT_MS = 2000 };

static int rounds(void)
{
	return tv_strict() ? 100 : 10; /* set-up on a kernel's device under emulation takes seconds */
}

/* ---------------------------------------------------------------- one established, busy connection */

struct busy {
	struct tv_end e;
	struct tv_dev d;
	uint32_t sent, sent_done, recvd, recv_posted;
	bool used, up, over, ended;
};

static void busy_open(struct busy *b, struct rdma_cm_id *id)
{
	struct tv_opt o = tv_defaults;

	memset(b, 0, sizeof(*b));
	b->used = true;
	o.len = LEN;
	tv_end_open_cm(&b->e, &b->d, id, &o);
	while (b->recv_posted < RECVS)
		tv_recv(&b->e, 0, 64, b->recv_posted++);
}

static void busy_offer(struct busy *b, struct rdma_conn_param *p, struct tv_wire *w)
{
	tv_end_wire(&b->e, w);
	tv_param(p);
	p->private_data = w;
	p->private_data_len = sizeof(*w);
}

static void busy_up(struct busy *b)
{
	struct ibv_qp_attr attr = {.min_rnr_timer = 1};

	b->up = true;
	ibv_modify_qp(b->e.qp, &attr, IBV_QP_MIN_RNR_TIMER); /* fails if it is over already: fine */
}

/* Different kinds and sizes, so that death may strike in any of the paths. */
static void busy_send(struct busy *b)
{
	static const enum ibv_wr_opcode op[] = {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						IBV_WR_RDMA_READ};
	enum ibv_wr_opcode o = op[b->sent % 4];
	size_t len = o == IBV_WR_SEND ? 64 : (b->sent * 7919) % (LEN - 4096) + 1;

	tv_post(&b->e, o, 0, len, b->sent);
	b->sent++;
}

/* Everything that has come; false once an error has. */
static bool busy_drain(struct busy *b)
{
	struct ibv_wc wc;
	bool fine = true;

	while (ibv_poll_cq(b->e.scq, 1, &wc) == 1) {
		CHECK_EQ(wc.wr_id, b->sent_done);
		b->sent_done++;
		fine &= wc.status == IBV_WC_SUCCESS;
	}
	while (ibv_poll_cq(b->e.rcq, 1, &wc) == 1) {
		CHECK_EQ(wc.wr_id, b->recvd);
		b->recvd++;
		fine &= wc.status == IBV_WC_SUCCESS;
		if (fine && !b->over)
			tv_recv(&b->e, 0, 64, b->recv_posted++);
	}
	return fine;
}

static void busy_step(struct busy *b)
{
	if (!busy_drain(b))
		b->over = true;
	while (b->up && !b->over && b->sent - b->sent_done < WINDOW)
		busy_send(b);
}

/* Disconnect, and everything posted comes back within the limit. */
static void busy_finish(struct busy *b, uint64_t deadline)
{
	b->over = true;
	if (b->up) {
		if (rdma_disconnect(b->e.id))
			CHECK_EQ(errno, EINVAL);
		while (busy_drain(b), b->sent_done < b->sent || b->recvd < b->recv_posted)
			if (tv_ms() > deadline)
				tv_fail(__FILE__, __LINE__, "sends %u of %u, receives %u of %u came back in time",
					b->sent_done, b->sent, b->recvd, b->recv_posted);
	}
	tv_end_close(&b->e);
	CHECK_EQ(rdma_destroy_id(b->e.id), 0);
}

/* ---------------------------------------------------------------- the victim */

/* Runs until it is killed. Connects to, or is connected to by, the survivor. */
static void victim_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), *(uint16_t *)s->arg);
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire w;
	struct busy b;

	busy_open(&b, id);
	busy_offer(&b, &p, &w);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_ESTABLISHED);
	memcpy(&b.e.peer, ev->param.conn.private_data, sizeof(b.e.peer));
	tv_ack(ev);
	busy_up(&b);
	for (;;)
		busy_step(&b);
}

static void victim_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_wire w;
	struct busy b;
	uint16_t port = 0;

	tv_listen(ch, "0.0.0.0", &port, 4);
	tv_put(s->ctl, &port, 2);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	busy_open(&b, ev->id);
	memcpy(&b.e.peer, ev->param.conn.private_data, sizeof(b.e.peer));
	tv_ack(ev);
	busy_offer(&b, &p, &w);
	CHECK_EQ(rdma_accept(b.e.id, &p), 0);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	busy_up(&b);
	for (;;)
		busy_step(&b);
}

/* ---------------------------------------------------------------- the survivor */

/* 'k': the victim is dead, conclude. 'q': quit. */
static char command(struct tv_side *s)
{
	char c;

	if (!tv_readable(s->ctl, 0))
		return 0;
	tv_get(s->ctl, &c, 1);
	return c;
}

static void concluded(struct tv_side *s, int round, int *fds)
{
	char c = 'd';

	if (round == 20)
		*fds = tv_fd_count();
	if (round == rounds() - 1 && round > 20)
		CHECK_OP(tv_fd_count() - *fds, <=, 8);
	tv_put(s->ctl, &c, 1);
}

enum { SLOTS = 4 }; /* the request of a dead connector may come after its round */

struct acceptor {
	struct rdma_event_channel *ch;
	struct busy b[SLOTS];
};

static void accept_one(struct acceptor *a, struct rdma_cm_event *ev)
{
	struct rdma_conn_param p;
	struct tv_wire w;
	struct busy *b = a->b;

	while (b->used)
		CHECK(++b < a->b + SLOTS);
	busy_open(b, ev->id);
	ev->id->context = b;
	memcpy(&b->e.peer, ev->param.conn.private_data, sizeof(b->e.peer));
	busy_offer(b, &p, &w);
	b->ended = rdma_accept(ev->id, &p) != 0; /* it died in between */
}

static void acceptor_event(struct acceptor *a, struct rdma_cm_event *ev)
{
	struct busy *b = ev->id->context;

	switch (ev->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		accept_one(a, ev);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		busy_up(b);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		b->ended = true;
		break;
	default:
		CHECK_EQ(ev->event, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	}
}

/* One step of everything; returns the connections that have not ended. */
static int acceptor_pump(struct acceptor *a)
{
	int busy = 0;

	for (int i = 0; i < SLOTS; i++)
		if (a->b[i].used && !a->b[i].ended) {
			busy_step(&a->b[i]);
			busy++;
		}
	while (tv_readable(a->ch->fd, busy ? 0 : 1)) {
		struct rdma_cm_event *ev;

		CHECK_EQ(rdma_get_cm_event(a->ch, &ev), 0);
		acceptor_event(a, ev);
		tv_ack(ev);
		busy = 1;
	}
	return busy;
}

static void surviving_server(struct tv_side *s)
{
	struct acceptor a = {.ch = tv_channel()};
	struct rdma_cm_id *lis;
	uint16_t port = 0;
	int fds = 0, flowed = 0;

	lis = tv_listen(a.ch, "0.0.0.0", &port, 4);
	tv_put(s->ctl, &port, 2);
	for (int round = 0; round < rounds(); round++) {
		uint64_t end;

		while (!command(s))
			acceptor_pump(&a);
		end = tv_ms() + LIMIT_MS * tv_scale();
		while (acceptor_pump(&a))
			if (tv_ms() > end)
				tv_fail(__FILE__, __LINE__, "round %d: no end of the connection in time", round);
		for (int i = 0; i < SLOTS; i++) {
			if (!a.b[i].used)
				continue;
			flowed += a.b[i].up && a.b[i].sent_done > WINDOW;
			busy_finish(&a.b[i], end);
			a.b[i].used = false;
		}
		concluded(s, round, &fds);
	}
	if (tv_strict())
		CHECK_OP(flowed, >=, rounds() / 10); /* or this tested nothing but set-up */
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(a.ch);
}

/* Connects to the victim's port as it comes; any stage may fail. */
static void surviving_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	int fds = 0, flowed = 0;

	for (int round = 0; round < rounds(); round++) {
		struct rdma_conn_param p;
		struct tv_wire w;
		struct busy b;
		bool dead = false;
		uint64_t end = 0;
		uint16_t port;

		tv_get(s->ctl, &port, 2);
		busy_open(&b, tv_resolve(ch, tv_addr4(), port));
		busy_offer(&b, &p, &w);
		if (rdma_connect(b.e.id, &p))
			b.ended = true;
		while (!b.ended || !dead) {
			struct rdma_cm_event *ev;

			if (!dead && command(s) == 'k') {
				dead = true;
				end = tv_ms() + LIMIT_MS * tv_scale();
			}
			if (dead && !b.ended && tv_ms() > end)
				tv_fail(__FILE__, __LINE__, "round %d: no end of the connection in time (up %d)", round,
					b.up);
			if (b.up && !b.ended)
				busy_step(&b);
			ev = tv_readable(ch->fd, b.up && !b.ended ? 0 : 1) ? tv_any_event(ch, 0) : NULL;
			if (!ev)
				continue;
			if (ev->event == RDMA_CM_EVENT_ESTABLISHED) {
				memcpy(&b.e.peer, ev->param.conn.private_data, sizeof(b.e.peer));
				busy_up(&b);
			} else if (ev->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
				b.ended = true;
			}
			tv_ack(ev);
		}
		flowed += b.up && b.sent_done > WINDOW;
		busy_finish(&b, end);
		concluded(s, round, &fds);
	}
	if (tv_strict())
		CHECK_OP(flowed, >=, rounds() / 10);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- the runner, which knows no verbs */

static uint32_t rnd;

static uint32_t next_random(void)
{
	rnd ^= rnd << 13;
	rnd ^= rnd >> 17;
	rnd ^= rnd << 5;
	return rnd;
}

static void nap(uint32_t us)
{
	struct timespec ts = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000l};

	nanosleep(&ts, NULL);
}

static void seed(void)
{
	const char *s = getenv("TV_SEED");

	rnd = s ? strtoul(s, NULL, 0) : (uint32_t)tv_ms() | 1;
	print_message("TV_SEED=%u\n", rnd);
}

/* Half of the instants lie in set-up, half in the flow. */
static void kill_somewhen(pid_t pid)
{
	int status;

	nap(next_random() % (next_random() % 2 ? 4000 : 25000) * tv_scale() * (tv_strict() ? 1 : 20));
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* not by a failed check before */
}

static int start(tv_role role, pid_t *pid)
{
	int sv[2];

	tv_socketpair(sv);
	*pid = tv_spawn(role, sv[1], sv[0], NULL, 100);
	assert_true(*pid > 0);
	close(sv[1]);
	return sv[0];
}

static void conclude(int ctl, pid_t survivor)
{
	char c = 'k';

	tv_put(ctl, &c, 1);
	if (!tv_ctl_try(ctl, &c, 1)) {
		assert_int_equal(tv_wait(survivor), 0);
		fail();
	}
}

static void test_connectors_die(void **state)
{
	pid_t survivor, victim;
	int ctl;
	uint16_t port;

	seed();
	ctl = start(surviving_server, &survivor);
	if (!tv_ctl_try(ctl, &port, 2)) {
		if (tv_wait(survivor) == 77)
			skip();
		fail();
	}
	for (int i = 0; i < rounds(); i++) {
		victim = tv_spawn(victim_client, -1, ctl, &port, 20);
		kill_somewhen(victim);
		conclude(ctl, survivor);
	}
	assert_int_equal(tv_wait(survivor), 0);
	close(ctl);
}

static void test_acceptors_die(void **state)
{
	pid_t survivor, victim;
	int ctl, vctl;
	uint16_t port;

	seed();
	ctl = start(surviving_client, &survivor);
	for (int i = 0; i < rounds(); i++) {
		vctl = start(victim_server, &victim);
		if (!tv_ctl_try(vctl, &port, 2)) {
			if (tv_wait(victim) == 77)
				skip();
			fail();
		}
		tv_put(ctl, &port, 2);
		kill_somewhen(victim);
		close(vctl);
		conclude(ctl, survivor);
	}
	assert_int_equal(tv_wait(survivor), 0);
	close(ctl);
}

/* ---------------------------------------------------------------- others live on; a stopped peer is not dead */

static void third_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_end e;
	uint16_t port;
	char c;

	tv_get(s->ctl, &port, 2);
	tv_cm_client(&e, ch, port, NULL);
	tv_put(s->ctl, "u", 1);
	tv_get(s->ctl, &c, 1); /* never for those that are killed */
	for (int i = 0; i < 100; i++) {
		tv_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 64, i);
		tv_ok(e.scq, i);
	}
	tv_get(s->ctl, &c, 1);
	tv_cm_end(&e, ch);
	rdma_destroy_event_channel(ch);
}

static void hub_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct rdma_cm_event *ev;
	struct tv_end e[3];
	uint16_t port = 0;
	char c;

	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	for (int i = 0; i < 3; i++) {
		tv_put(s->ctl, &port, 2);
		tv_cm_server(&e[i], ch, NULL);
		for (int j = 0; j < 32; j++)
			tv_recv(&e[i], 0, 0, j);
	}
	tv_put(s->ctl, "r", 1);
	tv_get(s->ctl, &c, 1); /* the middle one is dead */
	ev = tv_any_event(ch, LIMIT_MS);
	CHECK(ev && ev->event == RDMA_CM_EVENT_DISCONNECTED && ev->id == e[1].id);
	tv_ack(ev);
	tv_put(s->ctl, "g", 1);
	for (int i = 0; i < 100; i++)
		for (int k = 0; k < 3; k += 2) {
			tv_ok(e[k].rcq, i % 32);
			tv_recv(&e[k], 0, 0, i % 32);
		}
	CHECK(!tv_readable(ch->fd, 20));
	tv_put(s->ctl, "d", 1);
	for (int k = 0; k < 3; k++) {
		if (k != 1) {
			ev = tv_event(ch, RDMA_CM_EVENT_DISCONNECTED);
			tv_ack(ev);
		}
	}
	for (int k = 0; k < 3; k++) {
		if (rdma_disconnect(e[k].id))
			CHECK_EQ(errno, EINVAL);
		tv_end_close(&e[k]);
		CHECK_EQ(rdma_destroy_id(e[k].id), 0);
		free(e[k].dev);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void test_others_live(void **state)
{
	pid_t hub, third[3];
	int ctl, tctl[3];
	uint16_t port;
	char c;

	ctl = start(hub_role, &hub);
	for (int i = 0; i < 3; i++) {
		if (!tv_ctl_try(ctl, &port, 2)) {
			if (tv_wait(hub) == 77)
				skip();
			fail();
		}
		tctl[i] = start(third_role, &third[i]);
		tv_put(tctl[i], &port, 2);
		assert_true(tv_ctl_try(tctl[i], &c, 1));
	}
	assert_true(tv_ctl_try(ctl, &c, 1));
	kill(third[1], SIGKILL);
	tv_wait(third[1]);
	tv_put(ctl, "k", 1);
	assert_true(tv_ctl_try(ctl, &c, 1));
	tv_put(tctl[0], "g", 1);
	tv_put(tctl[2], "g", 1);
	assert_true(tv_ctl_try(ctl, &c, 1));
	tv_put(tctl[0], "q", 1);
	tv_put(tctl[2], "q", 1);
	assert_int_equal(tv_wait(third[0]), 0);
	assert_int_equal(tv_wait(third[2]), 0);
	assert_int_equal(tv_wait(hub), 0);
}

static void sleepwalker(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_opt o = tv_defaults;
	struct rdma_cm_id *lis;
	struct tv_end e;
	uint16_t port = 0;
	char c;

	o.first_recv = 8;
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	tv_put(s->ctl, &port, 2);
	tv_cm_server(&e, ch, &o);
	tv_put(s->ctl, "r", 1); /* stopped from here */
	tv_get(s->ctl, &c, 1);
	tv_ok(e.rcq, 77);
	CHECK_FILL(e.buf + 4096, 4096, 6);
	tv_put(s->ctl, "k", 1);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_disconnect(e.id), 0);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(e.id), 0);
	free(e.dev);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

/* Its device goes on without it: writes and reads complete, and nobody is told that it is gone. */
static void wake_watcher(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_end e;
	uint16_t port;
	char c;

	tv_get(s->ctl, &port, 2);
	tv_cm_client(&e, ch, port, NULL);
	tv_put(s->ctl, "u", 1);
	tv_get(s->ctl, &c, 1); /* it is stopped */
	tv_fill(e.buf + 4096, 4096, 6);
	tv_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, 4096, 4096, 1);
	tv_ok(e.scq, 1);
	memset(e.buf + 4096, 0, 4096);
	tv_post(&e, IBV_WR_RDMA_READ, 4096, 4096, 2);
	tv_ok(e.scq, 2);
	CHECK_FILL(e.buf + 4096, 4096, 6);
	CHECK(!tv_readable(ch->fd, 300));
	tv_put(s->ctl, "d", 1);
	tv_get(s->ctl, &c, 1);
	tv_cm_end(&e, ch);
	rdma_destroy_event_channel(ch);
}

static void test_stopped(void **state)
{
	pid_t walker, watcher;
	int wctl, ctl, status;
	uint16_t port;
	char c;

	wctl = start(sleepwalker, &walker);
	if (!tv_ctl_try(wctl, &port, 2)) {
		if (tv_wait(walker) == 77)
			skip();
		fail();
	}
	ctl = start(wake_watcher, &watcher);
	tv_put(ctl, &port, 2);
	assert_true(tv_ctl_try(ctl, &c, 1));
	assert_true(tv_ctl_try(wctl, &c, 1));
	kill(walker, SIGSTOP);
	assert_int_equal(waitpid(walker, &status, WUNTRACED), walker);
	assert_true(WIFSTOPPED(status));
	tv_put(ctl, "s", 1);
	assert_true(tv_ctl_try(ctl, &c, 1));
	kill(walker, SIGCONT);
	tv_put(wctl, "g", 1);
	assert_true(tv_ctl_try(wctl, &c, 1));
	tv_put(ctl, "q", 1);
	assert_int_equal(tv_wait(watcher), 0);
	assert_int_equal(tv_wait(walker), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_others_live),
	    cmocka_unit_test(test_stopped),
	    cmocka_unit_test(test_connectors_die),
	    cmocka_unit_test(test_acceptors_die),
	};

	signal(SIGPIPE, SIG_IGN);
	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("death", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fork by a process with live QPs: the parent goes on undisturbed, its registered memory keeps what peers write, and
 * the child may exit, exec, or open the device for itself: ibv_fork_init(3).
 */
#include "tv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cmocka.h>

extern char **environ;

static void reap(pid_t pid)
{
	int status;

	CHECK_OP(pid, >, 0);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	CHECK_EQ(WEXITSTATUS(status), 0);
}

/* ---------------------------------------------------------------- what children do */

static void child_nothing(void)
{
	_exit(0);
}

/* What the parent's library had on its heap is no leak of the child's. LeakSanitizer asks this. */
static int forgotten;
__attribute__((visibility("default"))) int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return forgotten;
}

static void child_exit(void)
{
	forgotten = 1;
	exit(0); /* destructors, atexit handlers */
}

static void child_exec(void)
{
	execl("/bin/true", "true", (char *)NULL);
	_exit(9);
}

/* A whole life of its own: device, QPs, CM. */
static void child_device(void)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_dev d;
	struct tv_end a, b;
	uint16_t port = 0;

	alarm(10 * tv_scale());
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	tv_recv(&b, 0, 64, 1);
	tv_fill(a.buf, 64, 3);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_ok(a.scq, 1);
	tv_ok(b.rcq, 1);
	CHECK_FILL(b.buf, 64, 3);
	tv_end_close(&a);
	tv_end_close(&b);
	tv_dev_close(&d);
	ch = tv_channel();
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
	_exit(0);
}

static void child_closes_everything(void)
{
	for (int fd = 3; fd < 1000; fd++)
		close(fd);
	_exit(0);
}

static void child_forks(void)
{
	pid_t pid = fork();

	if (pid == 0)
		child_device();
	reap(pid);
	_exit(0);
}

static void (*const deeds[])(void) = {child_nothing,           child_exit, child_exec, child_device,
				      child_closes_everything, child_forks};
enum { DEEDS = sizeof(deeds) / sizeof(deeds[0]), ROUNDS = 4 };

/* ---------------------------------------------------------------- the parent goes on */

/* *seq: the number of messages so far; the peer's n are expected, too. */
static void chatter(struct tv_end *e, uint32_t *seq, int n)
{
	for (int i = 0; i < n; i++, ++*seq) {
		tv_post(e, IBV_WR_SEND_WITH_IMM, 4096, 64, *seq);
		tv_ok(e->scq, *seq);
		CHECK_EQ(ntohl(tv_ok(e->rcq, *seq % 16).imm_data), *seq);
		CHECK_FILL(e->buf, 64, 5);
		tv_recv(e, 0, 64, *seq % 16);
	}
}

static void friend_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	uint32_t seq = 0;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	for (int i = 0; i < 16; i++)
		tv_recv(&e, 0, 64, i);
	tv_end_meet(&e, s);
	tv_fill(e.buf + 4096, 64, 5);
	for (int i = 0; i < DEEDS * ROUNDS; i++) {
		chatter(&e, &seq, 16);
		tv_sync(s);
	}
	CHECK(!tv_readable(d.ctx->async_fd, 0));
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void parent_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	uint32_t seq = 0;
	int fds = 0;

	CHECK_EQ(ibv_fork_init(), 0);
	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	for (int i = 0; i < 16; i++)
		tv_recv(&e, 0, 64, i);
	tv_end_meet(&e, s);
	tv_fill(e.buf + 4096, 64, 5);
	for (int i = 0; i < DEEDS * ROUNDS; i++) {
		pid_t pid;

		fflush(NULL);
		pid = fork();
		if (pid == 0) {
			deeds[i % DEEDS]();
			_exit(8);
		}
		chatter(&e, &seq, 8); /* while the child is at it */
		reap(pid);
		chatter(&e, &seq, 8);
		tv_sync(s);
		if (i == DEEDS)
			fds = tv_fd_count();
	}
	CHECK_OP(tv_fd_count(), <=, fds);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- spawn, system */

static void spawner_role(struct tv_side *s)
{
	char *argv[] = {"true", NULL};
	struct tv_dev d;
	struct tv_end e;
	uint32_t seq = 0;

	CHECK_EQ(ibv_fork_init(), 0);
	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	for (int i = 0; i < 16; i++)
		tv_recv(&e, 0, 64, i);
	tv_end_meet(&e, s);
	tv_fill(e.buf + 4096, 64, 5);
	for (int i = 0; i < DEEDS * ROUNDS; i++) {
		pid_t pid;

		if (i % 2) {
			CHECK_EQ(posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ), 0);
			reap(pid);
		} else {
			CHECK_EQ(system("exit 0"), 0);
		}
		chatter(&e, &seq, 16);
		tv_sync(s);
	}
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- copy on write */

/*
 * A child lives while the parent writes its registered memory and a peer writes there too: neither may be lost to a
 * page that was copied for one of them (BGSAVE under load).
 */
enum { COW_ROUNDS = 10, COW_LEN = 1 << 20 };

static void cow_parent(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	uint8_t *heap = malloc(COW_LEN + 4096); /* not page-aligned: shares its first and last page with others */
	struct tv_dev d;
	struct tv_end e;

	CHECK_EQ(ibv_fork_init(), 0);
	o.buf = heap + 100;
	o.len = COW_LEN;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	memset(e.buf, 0, COW_LEN);
	tv_recv(&e, 0, 0, 1);
	tv_end_meet(&e, s);
	for (int i = 0; i < COW_ROUNDS; i++) {
		int pipefd[2];
		pid_t pid;
		char c;

		CHECK_EQ(pipe(pipefd), 0);
		fflush(NULL);
		pid = fork();
		if (pid == 0) {
			close(pipefd[1]);
			_exit(read(pipefd[0], &c, 1) != 0); /* until the parent is done */
		}
		close(pipefd[0]);
		for (size_t p = 0; p < COW_LEN; p += 512) /* the processor's share of each page */
			memset(e.buf + p, i, 256);
		tv_sync(s);
		tv_ok(e.rcq, 1); /* the peer has written the other half, and read ours */
		for (size_t p = 0; p < COW_LEN; p += 512) {
			CHECK_EQ(e.buf[p], i);
			CHECK_EQ(e.buf[p + 255], i);
			CHECK_FILL(e.buf + p + 256, 256, i);
		}
		tv_recv(&e, 0, 0, 1);
		close(pipefd[1]);
		reap(pid);
		tv_sync(s);
	}
	tv_end_close(&e);
	free(heap);
	tv_dev_close(&d);
}

static void cow_peer(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct tv_dev d;
	struct tv_end e;

	o.len = COW_LEN;
	o.cap.max_send_wr = COW_LEN / 512 + 2;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	for (int i = 0; i < COW_ROUNDS; i++) {
		tv_sync(s);
		tv_post(&e, IBV_WR_RDMA_READ, 0, COW_LEN, 9);
		tv_ok(e.scq, 9);
		for (size_t p = 0; p < COW_LEN; p += 512) {
			CHECK_EQ(e.buf[p], i);
			CHECK_EQ(e.buf[p + 255], i);
		}
		tv_fill(e.buf, 256, i);
		for (size_t p = 0; p < COW_LEN; p += 512) {
			tv_wr(&e, &wr, &sge, IBV_WR_RDMA_WRITE, 0, 256, 2);
			wr.wr.rdma.remote_addr = e.peer.addr + p + 256;
			wr.send_flags = 0;
			CHECK_EQ(tv_post_wr(&e, &wr), 0);
		}
		tv_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 3);
		tv_ok(e.scq, 3);
		tv_sync(s);
	}
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- the child connects to its parent */

static void connect_parent(uint16_t port, int round)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_end e;

	alarm(20 * tv_scale());
	tv_cm_client(&e, ch, port, NULL);
	tv_fill(e.buf, 4096, round);
	tv_post(&e, IBV_WR_RDMA_WRITE, 0, 4096, 1);
	tv_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 0, 2);
	tv_ok(e.scq, 1);
	tv_ok(e.scq, 2);
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	_exit(0); /* and that is how it disconnects */
}

static void own_child_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	uint16_t port = 0;

	if (!tv_strict())
		tv_skip("librdmacm cannot start afresh in a child");
	CHECK_EQ(ibv_fork_init(), 0);
	ch = tv_channel();
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	o.first_recv = 8;
	for (int i = 0; i < 10; i++) {
		struct tv_end e;
		pid_t pid;

		fflush(NULL);
		pid = fork();
		if (pid == 0)
			connect_parent(port, i);
		tv_cm_server(&e, ch, &o);
		tv_ok(e.rcq, 77);
		CHECK_FILL(e.buf, 4096, i);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
		reap(pid);
	}
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- the child uses what is not its own */

/* Verbs on the parent's objects fail in the child, or are without effect; they do not crash it or reach the parent. */
static void trespass_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;
	pid_t pid;

	if (!tv_strict())
		tv_skip("undefined elsewhere");
	CHECK_EQ(ibv_fork_init(), 0);
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	tv_recv(&b, 0, 64, 1);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		struct ibv_send_wr wr = {.wr_id = 66, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
		struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
		struct ibv_wc wc;

		alarm(5 * tv_scale());
		ibv_post_send(a.qp, &wr, &bad);
		ibv_modify_qp(a.qp, &attr, IBV_QP_STATE);
		CHECK_OP(ibv_poll_cq(b.rcq, 1, &wc), <=, 0);
		ibv_req_notify_cq(b.rcq, 0);
		ibv_destroy_qp(a.qp);
		_exit(0);
	}
	reap(pid);
	CHECK_EQ(tv_end_state(&a), IBV_QPS_RTS);
	tv_none(b.rcq, 10);
	tv_post(&a, IBV_WR_SEND, 0, 64, 1);
	tv_ok(a.scq, 1);
	tv_ok(b.rcq, 1);
	tv_end_close(&a);
	tv_end_close(&b);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- death of the parent while its child lives */

static void orphaning_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct tv_end e;
	uint16_t port;
	pid_t pid;

	CHECK_EQ(ibv_fork_init(), 0);
	tv_get(s->ctl, &port, 2);
	tv_cm_client(&e, ch, port, NULL);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		char c;

		/* Holds copies of all the parent's descriptors until the peer has had its say. */
		alarm(20 * tv_scale());
		tv_put(s->ctl, "c", 1);
		_exit(tv_ctl_try(s->ctl, &c, 1) ? 0 : 1);
	}
	for (;;)
		pause();
}

static void mourner_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct rdma_cm_event *ev;
	struct tv_end e;
	uint16_t port = 0;

	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	tv_put(s->ctl, &port, 2);
	tv_cm_server(&e, ch, NULL);
	tv_put(s->ctl, "r", 1);
	ev = tv_any_event(ch, 4000);
	CHECK(ev && ev->event == RDMA_CM_EVENT_DISCONNECTED);
	tv_ack(ev);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(e.id), 0);
	free(e.dev);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void test_orphans(void **state)
{
	int a[2], b[2];
	pid_t mourner, parent;
	uint16_t port;
	char c;

	if (!tv_strict()) /* Linux keeps a connection that a child holds a copy of */
		skip();
	tv_socketpair(a);
	tv_socketpair(b);
	mourner = tv_spawn(mourner_role, a[1], a[0], NULL, 20);
	close(a[1]);
	assert_true(tv_ctl_try(a[0], &port, 2));
	parent = tv_spawn(orphaning_role, b[1], b[0], NULL, 20);
	close(b[1]);
	tv_put(b[0], &port, 2);
	assert_true(tv_ctl_try(a[0], &c, 1));
	assert_true(tv_ctl_try(b[0], &c, 1));
	kill(parent, SIGKILL);
	assert_int_not_equal(tv_wait(parent), 0);
	assert_int_equal(tv_wait(mourner), 0);
	tv_put(b[0], "q", 1); /* the grandchild was alive until here */
	assert_false(tv_ctl_try(b[0], &c, 1));
	close(a[0]);
	close(b[0]);
}

static void test_children(void **state)
{
	tv_procs(parent_role, friend_role, 60);
}

static void test_spawn(void **state)
{
	tv_procs(spawner_role, friend_role, 30);
}

static void test_cow(void **state)
{
	tv_procs(cow_parent, cow_peer, 30);
}

static void test_own_child(void **state)
{
	tv_solo(own_child_role, 30);
}

static void test_trespass(void **state)
{
	tv_solo(trespass_role, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_children),  cmocka_unit_test(test_spawn),    cmocka_unit_test(test_cow),
	    cmocka_unit_test(test_own_child), cmocka_unit_test(test_trespass), cmocka_unit_test(test_orphans),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("fork", tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What is softverbs' own: the entries of softverbs.h, fault injection, and that these tests run on it at all. Skipped
 * on real rdma-core.
 */
#include "tv.h"

#include "softverbs.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <cmocka.h>

static const struct vkr_soft_api *api(void)
{
	const struct vkr_soft_api *(*entry)(void) =
	    (const struct vkr_soft_api *(*)(void))dlsym(RTLD_DEFAULT, "vkr_soft_api");

	if (!entry && !tv_strict())
		tv_skip("not softverbs");
	CHECK(entry); /* under ctest: the tests do not run on what they are meant for */
	return entry();
}

static void api_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();

	CHECK(a);
	CHECK_EQ(a->abi, VKR_SOFT_ABI);
	CHECK(a->arena_alloc && a->arena_free && a->set_fd_hooks);
	CHECK(a->loop_own && a->loop_fd && a->loop_due && a->loop_run);
	CHECK_OP(a->max_inline, >=, 1024);
	CHECK(a == api());
	/* One library behind both names: the CM's device is verbs' device. */
	CHECK(dlsym(RTLD_DEFAULT, "ibv_open_device") && dlsym(RTLD_DEFAULT, "rdma_create_id"));
}

static void max_inline_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct tv_opt o = tv_defaults;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct tv_dev d;
	struct tv_end x, y;

	o.cap.max_inline_data = a->max_inline;
	o.len = a->max_inline;
	tv_dev_open(&d);
	tv_end_open(&x, &d, &o);
	CHECK_OP(x.cap.max_inline_data, >=, a->max_inline);
	o.cap.max_inline_data = 0;
	tv_end_open(&y, &d, &o);
	tv_end_join(&x, &y);
	tv_fill(x.buf, o.len, 1);
	tv_wr(&x, &wr, &sge, IBV_WR_RDMA_WRITE, 0, o.len, 1);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK_EQ(tv_post_wr(&x, &wr), 0);
	memset(x.buf, 0, o.len);
	tv_ok(x.scq, 1);
	CHECK_FILL(y.buf, o.len, 1);
	tv_end_close(&x);
	tv_end_close(&y);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- a loop of the caller's */

static int threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 2;
}

static void *nothing(void *arg)
{
	return arg;
}

/* As a caller's thread would, until a completion is there or time is up. */
static bool drive(const struct vkr_soft_api *a, struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	for (uint64_t end = tv_ms() + (unsigned)ms; tv_ms() < end;) {
		struct pollfd p = {.fd = a->loop_fd(), .events = POLLIN};

		if (ibv_poll_cq(cq, 1, wc) == 1)
			return true;
		if (poll(&p, 1, 1) > 0 || a->loop_due() <= tv_ms() * 1000000)
			a->loop_run();
	}
	return false;
}

/* No thread but the caller's; what waits goes on by its turns, and what they keep it can destroy. */
static void loop_own_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct tv_opt o = tv_defaults;
	struct tv_end x, y;
	struct tv_dev d;
	struct ibv_wc wc;
	pthread_t first;
	int before;

	/* A sanitizer may have one of its own, from the first thread on. */
	CHECK_EQ(pthread_create(&first, NULL, nothing, NULL), 0);
	CHECK_EQ(pthread_join(first, NULL), 0);
	before = threads();
	o.rnr_retry = 7;
	o.min_rnr_timer = 10; /* 0.32 ms */
	tv_dev_open(&d);
	CHECK_EQ(threads(), before + 1);
	a->loop_own();
	CHECK_EQ(threads(), before);
	tv_end_open(&x, &d, &o);
	tv_end_open(&y, &d, &o);
	tv_end_join(&x, &y);
	tv_post(&x, IBV_WR_SEND, 0, 64, 1); /* waits for a receive */
	CHECK(!drive(a, x.scq, &wc, 20));
	CHECK_NE(a->loop_due(), UINT64_MAX);
	tv_recv(&y, 0, 64, 2);
	CHECK(drive(a, x.scq, &wc, 5000));
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	tv_ok(y.rcq, 2);
	tv_post(&x, IBV_WR_SEND, 0, 64, 3);
	CHECK(!drive(a, x.scq, &wc, 20));
	CHECK_NE(a->loop_due(), UINT64_MAX);
	tv_end_close(&x);
	tv_end_close(&y);
	tv_dev_close(&d);
	CHECK_EQ(threads(), before);
}

/* What the loop's thread brings about itself it asks for; what others do makes the descriptor readable. */
static void loop_cm_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct rdma_event_channel *ch = tv_channel();
	struct sockaddr_storage ss;
	struct rdma_cm_event *ev;
	struct rdma_cm_id *id;

	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, tv_addr4(), 7);
	a->loop_own();
	CHECK(!a->cm_pending(ch));
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 2000), 0);
	CHECK(a->cm_pending(ch) && !tv_readable(ch->fd, 0));
	CHECK_EQ(rdma_get_cm_event(ch, &ev), 0);
	CHECK_EQ(ev->event, RDMA_CM_EVENT_ADDR_RESOLVED);
	tv_ack(ev);
	CHECK(!a->cm_pending(ch) && !tv_readable(ch->fd, 0));
	a->loop_lend(0);
	CHECK_EQ(rdma_resolve_route(id, 2000), 0);
	CHECK(a->cm_pending(ch) && tv_readable(ch->fd, 0));
	tv_expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!a->cm_pending(ch) && !tv_readable(ch->fd, 0));
	CHECK_EQ(rdma_destroy_id(id), 0);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- arenas */

static void arena_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	static const size_t sizes[] = {1, 4096, 4097, 1 << 20, 8 << 20};
	uint8_t *p[5];
	int fds;

	for (int i = 0; i < 5; i++) {
		p[i] = a->arena_alloc(sizes[i]);
		CHECK(p[i]);
		CHECK_EQ((uintptr_t)p[i] % 4096, 0);
		for (size_t j = 0; j < (sizes[i] + 4095) / 4096 * 4096; j++)
			CHECK_EQ(p[i][j], 0);
		tv_fill(p[i], sizes[i], i);
	}
	for (int i = 0; i < 5; i++) {
		CHECK_FILL(p[i], sizes[i], i);
		a->arena_free(p[i], sizes[i]);
	}
	errno = 0;
	CHECK(!a->arena_alloc((size_t)1 << 60));
	CHECK_NE(errno, 0);
	a->arena_free(a->arena_alloc(65536), 65536);
	fds = tv_fd_count();
	for (int i = 0; i < 2000; i++) {
		uint8_t *q = a->arena_alloc(65536);

		CHECK(q);
		CHECK_EQ(q[i], 0); /* fresh, whoever had it before */
		q[i] = 1;
		a->arena_free(q, 65536);
	}
	CHECK_OP(tv_fd_count() - fds, <=, 1);
}

/* "not inherited by fork": the range is not mapped in the child, and the parent's keeps what peers write. */
static void arena_fork_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	uint8_t *p = a->arena_alloc(8192);
	unsigned char vec[2];
	int status;
	pid_t pid;

	memset(p, 5, 8192);
	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(mincore(p, 8192, vec) == -1 && errno == ENOMEM ? 0 : 1);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(p[8191], 5);
	a->arena_free(p, 8192);
}

static void arena_owner(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_mr *part;

	tv_dev_open(&d);
	for (int round = 0; round < 20; round++) {
		o.len = 256 * 1024;
		o.buf = a->arena_alloc(o.len);
		CHECK(o.buf);
		tv_end_open(&e, &d, &o);
		part = ibv_reg_mr(d.pd, e.buf + 1000, 5000, IBV_ACCESS_REMOTE_READ);
		CHECK(part);
		tv_recv(&e, 0, 0, 1);
		tv_fill(e.buf, o.len / 2, round);
		tv_end_meet(&e, s);
		tv_ok(e.rcq, 1);
		CHECK_FILL(e.buf, o.len / 2, round);
		CHECK_FILL(e.buf + o.len / 2, o.len / 2, round + 40);
		tv_sync(s);
		CHECK_EQ(ibv_dereg_mr(part), 0);
		tv_end_close(&e);
		a->arena_free(o.buf, o.len);
	}
	tv_dev_close(&d);
}

static void arena_visitor(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	tv_dev_open(&d);
	for (int round = 0; round < 20; round++) {
		o.len = 256 * 1024;
		tv_end_open(&e, &d, &o);
		tv_end_meet(&e, s);
		tv_post(&e, IBV_WR_RDMA_READ, 0, o.len / 2, 1);
		tv_ok(e.scq, 1);
		CHECK_FILL(e.buf, o.len / 2, round);
		tv_fill(e.buf + o.len / 2, o.len / 2, round + 40);
		tv_post(&e, IBV_WR_RDMA_WRITE_WITH_IMM, o.len / 2, o.len / 2, 2);
		tv_ok(e.scq, 2);
		tv_sync(s);
		tv_end_close(&e);
	}
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- descriptor hooks */

static uint8_t ours[2048];
static int moved, closed;

static int move_high(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, 500);

	CHECK_OP(high, >=, 500);
	close(fd);
	__atomic_store_n(&ours[high], 1, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&moved, 1, __ATOMIC_SEQ_CST);
	return high;
}

static void close_high(int fd)
{
	CHECK_OP(fd, >=, 500);
	CHECK_EQ(__atomic_exchange_n(&ours[fd], 0, __ATOMIC_SEQ_CST), 1);
	close(fd);
	__atomic_add_fetch(&closed, 1, __ATOMIC_SEQ_CST);
}

static int low_fds(void)
{
	int n = 0;

	for (int fd = 3; fd < 500; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void hooked_server(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_opt o = tv_defaults;
	struct tv_end e;
	uint16_t port = 0;
	int low = low_fds();

	a->set_fd_hooks(move_high, close_high);
	ch = tv_channel();
	CHECK_OP(ch->fd, >=, 500);
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	tv_put(s->ctl, &port, 2);
	o.channel = true;
	o.first_recv = 64;
	for (int i = 0; i < 20; i++) {
		tv_cm_server(&e, ch, &o);
		CHECK_OP(e.chan->fd, >=, 500);
		CHECK_OP(e.dev->ctx->async_fd, >=, 500);
		tv_ok(e.rcq, 77);
		CHECK_EQ(low_fds(), low); /* none of softverbs' descriptors is among the application's */
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(e.id), 0);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(e.id), 0);
		free(e.dev);
	}
	tv_sync(s);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
	CHECK_OP(__atomic_load_n(&moved, __ATOMIC_SEQ_CST), >, 0);
	CHECK_OP(__atomic_load_n(&closed, __ATOMIC_SEQ_CST), >, 0);
	for (int fd = 500; fd < 2048; fd++) /* closed through the hook, or still open: never behind its back */
		CHECK_EQ(fcntl(fd, F_GETFD) >= 0, __atomic_load_n(&ours[fd], __ATOMIC_SEQ_CST));
}

static void hooked_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	uint16_t port;
	struct tv_end e;

	tv_get(s->ctl, &port, 2);
	for (int i = 0; i < 20; i++) {
		tv_cm_client(&e, ch, port, NULL);
		tv_post(&e, IBV_WR_SEND, 0, 64, 1);
		tv_ok(e.scq, 1);
		tv_cm_end(&e, ch);
	}
	tv_sync(s);
	rdma_destroy_event_channel(ch);
}

/* "Descriptors opened before are passed through at this call." */
static void late_hooks_role(struct tv_side *s)
{
	const struct vkr_soft_api *a = api();
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis;
	struct tv_dev d;
	struct tv_end x, y;
	struct tv_opt o = tv_defaults;
	uint16_t port = 0;
	int low = low_fds();

	o.channel = true;
	ch = tv_channel();
	tv_dev_open(&d);
	tv_end_open(&x, &d, &o);
	tv_end_open(&y, &d, &o);
	tv_end_join(&x, &y);
	a->set_fd_hooks(move_high, close_high);
	CHECK_EQ(low_fds(), low);
	CHECK_OP(ch->fd, >=, 500);
	CHECK_OP(d.ctx->async_fd, >=, 500);
	CHECK_OP(x.chan->fd, >=, 500);
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	CHECK_EQ(ibv_req_notify_cq(x.scq, 0), 0);
	tv_post(&x, IBV_WR_RDMA_WRITE, 0, 64, 1);
	CHECK(tv_readable(x.chan->fd, 5000));
	tv_ok(x.scq, 1);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	tv_end_close(&x);
	tv_end_close(&y);
	tv_dev_close(&d);
	rdma_destroy_event_channel(ch);
}

/* ---------------------------------------------------------------- fault injection: softverbs/README.md */

static void fault(const char *what)
{
	api();
	CHECK_EQ(setenv("VKRDMA_SOFT_FAULT", what, 1), 0);
}

static void no_device_role(struct tv_side *s)
{
	struct ibv_device **list;
	int n = -1;

	fault("no_device");
	list = ibv_get_device_list(&n);
	CHECK_EQ(n, 0);
	CHECK(!list || !list[0]);
	if (list)
		ibv_free_device_list(list);
}

static void no_loopback_role(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct sockaddr_storage ss;
	struct rdma_cm_id *id;
	uint16_t port = 0;

	fault("no_loopback");
	ch = tv_channel();
	id = tv_listen(ch, "127.0.0.1", &port, 5);
	CHECK(!id->verbs);
	CHECK_EQ(rdma_create_id(ch, &id, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, "127.0.0.2", port);
	CHECK_FAILS(rdma_bind_addr(id, (struct sockaddr *)&ss), EADDRNOTAVAIL);
	tv_sockaddr(&ss, "0.0.0.0", port);
	CHECK_FAILS(rdma_bind_addr(id, (struct sockaddr *)&ss), EADDRNOTAVAIL);
	tv_sockaddr(&ss, "127.0.0.1", port);
	CHECK_EQ(rdma_resolve_addr(id, NULL, (struct sockaddr *)&ss, 1000), 0);
	tv_expect(ch, RDMA_CM_EVENT_ADDR_ERROR);
}

static void fail_qp_role(struct tv_side *s)
{
	struct ibv_qp_init_attr ia = {.qp_type = IBV_QPT_RC, .cap = tv_defaults.cap};
	struct ibv_qp *qp[3];
	struct tv_dev d;
	int failures = 0;

	fault("fail_create_qp=2");
	tv_dev_open(&d);
	ia.send_cq = ia.recv_cq = ibv_create_cq(d.ctx, 64, NULL, NULL, 0);
	for (int i = 0; i < 3; i++) {
		qp[i] = ibv_create_qp(d.pd, &ia);
		failures += !qp[i];
	}
	CHECK(qp[0] && !qp[1]);
	CHECK_OP(failures, >=, 1);
	_exit(0); /* a library with a fault set is not expected to be tidy */
}

static void fail_mr_role(struct tv_side *s)
{
	struct tv_dev d;
	void *p = aligned_alloc(4096, 4096);

	fault("fail_reg_mr=2");
	tv_dev_open(&d);
	CHECK(ibv_reg_mr(d.pd, p, 4096, 0));
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, p, 4096, 0));
	CHECK_NE(errno, 0);
	_exit(0);
}

static void unreachable_role(struct tv_side *s)
{
	struct rdma_event_channel *ch;
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	struct rdma_conn_param p;
	struct tv_dev d;
	struct tv_end e;
	uint16_t port = 0;

	fault("unreachable");
	ch = tv_channel();
	lis = tv_listen(ch, "0.0.0.0", &port, 4);
	CHECK(lis);
	id = tv_resolve(ch, tv_addr4(), port);
	tv_end_open_cm(&e, &d, id, NULL);
	tv_param(&p);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(ev->id == id);
	CHECK_NE(ev->status, 0);
	tv_ack(ev);
	tv_end_close(&e);
	CHECK_EQ(rdma_destroy_id(id), 0);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void dying_role(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end a, b;

	fault("die_after=5");
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_end_open(&b, &d, NULL);
	tv_end_join(&a, &b);
	for (int i = 0; i < 20; i++)
		tv_post(&a, IBV_WR_RDMA_WRITE, 0, 8, i);
}

static void test_dying(void **state)
{
	int status;
	pid_t pid = tv_spawn(dying_role, -1, -1, NULL, 20);

	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(api)
SOLO(max_inline)
SOLO(loop_own)
SOLO(loop_cm)
SOLO(arena)
SOLO(arena_fork)
SOLO(late_hooks)
SOLO(no_device)
SOLO(no_loopback)
SOLO(fail_qp)
SOLO(fail_mr)
SOLO(unreachable)

static void test_arena_remote(void **state)
{
	tv_pair(arena_owner, arena_visitor, 30);
}

static void test_hooks(void **state)
{
	tv_procs(hooked_server, hooked_client, 30);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_api),        cmocka_unit_test(test_max_inline),   cmocka_unit_test(test_arena),
	    cmocka_unit_test(test_arena_fork), cmocka_unit_test(test_arena_remote), cmocka_unit_test(test_hooks),
	    cmocka_unit_test(test_late_hooks), cmocka_unit_test(test_no_device),    cmocka_unit_test(test_no_loopback),
	    cmocka_unit_test(test_fail_qp),    cmocka_unit_test(test_fail_mr),      cmocka_unit_test(test_unreachable),
	    cmocka_unit_test(test_dying),      cmocka_unit_test(test_loop_own),     cmocka_unit_test(test_loop_cm),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("private", tests, NULL, NULL);
}

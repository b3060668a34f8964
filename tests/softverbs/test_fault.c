/* SPDX-License-Identifier: BSD-2-Clause */
/* Faults that happen at a moment (softverbs/README.md): links, the device, asynchronous events, the CM's losses. */
#include "tv.h"

#include "softverbs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

static void fault(const char *word)
{
	const struct vkr_soft_api *(*entry)(void) =
	    (const struct vkr_soft_api *(*)(void))dlsym(RTLD_DEFAULT, "vkr_soft_api");

	if (!entry && !tv_strict())
		tv_skip("not softverbs");
	CHECK(entry);
	CHECK_EQ(entry()->fault(word), 0);
}

static struct ibv_async_event async_event(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event ev;

	CHECK(tv_readable(ctx->async_fd, 10000));
	CHECK_EQ(ibv_get_async_event(ctx, &ev), 0);
	CHECK_EQ(ev.event_type, type);
	return ev;
}

static void async_expect(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event ev = async_event(ctx, type);

	ibv_ack_async_event(&ev);
}

static void pair_open(struct tv_dev *d, struct tv_end *a, struct tv_end *b)
{
	tv_dev_open(d);
	tv_end_open(a, d, NULL);
	tv_end_open(b, d, NULL);
	tv_end_join(a, b);
}

static void pair_close(struct tv_dev *d, struct tv_end *a, struct tv_end *b)
{
	tv_end_close(a);
	tv_end_close(b);
	tv_dev_close(d);
}

static void words_role(struct tv_side *s)
{
	const struct vkr_soft_api *(*entry)(void) =
	    (const struct vkr_soft_api *(*)(void))dlsym(RTLD_DEFAULT, "vkr_soft_api");

	fault("stale=0");
	CHECK_EQ(entry()->fault("nonsense"), -EINVAL);
	CHECK_EQ(entry()->fault("cu"), -EINVAL);
}

/* ------------------------------------------------------------------ the link */

static void cut_role(struct tv_side *s)
{
	struct tv_end a, b, c, e;
	struct tv_dev d;
	uint64_t start;

	pair_open(&d, &a, &b);
	tv_end_open(&c, &d, NULL);
	tv_end_open(&e, &d, NULL);
	tv_end_join(&c, &e);
	fault("cut");
	async_expect(d.ctx, IBV_EVENT_PORT_ERR);
	tv_fill(a.buf, 64, 3);
	memset(b.buf, 0, 64);
	start = tv_ms();
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_want(a.scq, 1, IBV_WC_RETRY_EXC_ERR);
	/* As often and as long as the QP was told: 8 times 67 ms. */
	CHECK_OP(tv_ms() - start, >=, 500);
	CHECK_EQ(b.buf[0], 0);
	/* Not yet: this one hears again before its time is up. */
	tv_post(&c, IBV_WR_RDMA_WRITE, 0, 64, 2);
	tv_none(c.scq, 100);
	fault("join");
	async_expect(d.ctx, IBV_EVENT_PORT_ACTIVE);
	tv_ok(c.scq, 2);
	tv_end_close(&c);
	tv_end_close(&e);
	pair_close(&d, &a, &b);
}

static void down_role(struct tv_side *s)
{
	struct tv_end a, b;
	struct tv_dev d;

	pair_open(&d, &a, &b);
	fault("down");
	async_expect(d.ctx, IBV_EVENT_PORT_ERR);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_want(a.scq, 1, IBV_WC_LOC_QP_OP_ERR);
	CHECK_EQ(tv_end_state(&b), IBV_QPS_RTS);
	fault("join");
	async_expect(d.ctx, IBV_EVENT_PORT_ACTIVE);
	tv_post(&b, IBV_WR_RDMA_WRITE, 0, 64, 2);
	tv_want(b.scq, 2, IBV_WC_RETRY_EXC_ERR); /* the other QP has failed */
	pair_close(&d, &a, &b);
}

/* The other end is cut off: no word of it, nor of its death. */
static void cut_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct tv_end e;
	uint16_t port = 0;

	lis = tv_listen(ch, tv_addr4(), &port, 4);
	CHECK(lis);
	tv_put(s->ctl, &port, sizeof(port));
	tv_cm_server(&e, ch, NULL);
	fault("cut");
	tv_sync(s);
	_exit(0);
}

static void cut_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_conn_param p;
	struct rdma_cm_id *id;
	struct tv_end e, late;
	struct tv_dev d;
	uint16_t port;
	char gone;

	tv_get(s->ctl, &port, sizeof(port));
	tv_cm_client(&e, ch, port, NULL);
	tv_sync(s);
	CHECK(!tv_ctl_try(s->ctl, &gone, 1)); /* it has ended */
	CHECK(!tv_any_event(ch, 300));
	CHECK_EQ(tv_end_state(&e), IBV_QPS_RTS);
	tv_post(&e, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_want(e.scq, 1, IBV_WC_RETRY_EXC_ERR);
	/* Ours is cut now: a request goes nowhere. */
	fault("cut");
	port = 0;
	CHECK(tv_listen(ch, tv_addr4(), &port, 4));
	id = tv_resolve(ch, tv_addr4(), port);
	tv_end_open_cm(&late, &d, id, NULL);
	tv_param(&p);
	CHECK_EQ(rdma_connect(id, &p), 0);
	CHECK(!tv_any_event(ch, 200));
	fault("join");
	tv_expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST); /* it is sent again */
	_exit(0);
}

/* Whatever of the handshake is lost, a link that comes back completes it; nothing is made twice. */
static void lost_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel(), *cch = tv_channel();
	struct rdma_cm_id *lis, *id;
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_end a, b;
	struct tv_dev da, db;
	uint16_t port = 0;

	lis = tv_listen(ch, tv_addr4(), &port, 4);
	id = tv_resolve(cch, tv_addr4(), port);
	tv_end_open_cm(&a, &da, id, NULL);
	tv_param(&p);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	tv_end_open_cm(&b, &db, ev->id, NULL);
	tv_ack(ev);
	fault("cut");
	tv_param(&p);
	CHECK_EQ(rdma_accept(b.id, &p), 0);
	CHECK(!tv_any_event(cch, 100));
	fault("join");
	tv_expect(cch, RDMA_CM_EVENT_ESTABLISHED);
	tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	fault("cut");
	CHECK_EQ(rdma_disconnect(a.id), 0);
	CHECK(!tv_any_event(ch, 100));
	fault("join");
	tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK_EQ(rdma_disconnect(b.id), 0);
	tv_expect(cch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!tv_any_event(ch, 20));
	tv_end_close(&a);
	tv_end_close(&b);
	CHECK_EQ(rdma_destroy_id(a.id), 0);
	CHECK_EQ(rdma_destroy_id(b.id), 0);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(cch);
}

/* ------------------------------------------------------------------ the device */

static void remove_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct rdma_cm_id *bound, *any, *fresh;
	struct sockaddr_storage ss;
	struct rdma_cm_event *ev;
	struct ibv_device **list;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint16_t port = 0, any_port = 0;
	struct tv_end a, b;
	struct tv_dev d;
	int n = -1;

	pair_open(&d, &a, &b);
	bound = tv_listen(ch, tv_addr4(), &port, 4);
	any = tv_listen(ch, "0.0.0.0", &any_port, 4);
	fault("remove");
	async_expect(d.ctx, IBV_EVENT_DEVICE_FATAL);
	ev = tv_event(ch, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(ev->id == bound);
	tv_ack(ev);
	CHECK(!tv_any_event(ch, 50)); /* an id without a device hears nothing */
	list = ibv_get_device_list(&n);
	CHECK_EQ(n, 0);
	ibv_free_device_list(list);
	CHECK_EQ(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), EIO);
	CHECK(!ibv_alloc_pd(d.ctx));
	CHECK(!ibv_reg_mr(d.pd, a.buf, 64, 0));
	tv_wr(&a, &wr, &sge, IBV_WR_RDMA_WRITE, 0, 64, 1);
	CHECK_NE(tv_post_wr(&a, &wr), 0);
	tv_none(a.scq, 50);
	CHECK_EQ(rdma_create_id(ch, &fresh, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, tv_addr4(), 0);
	CHECK_FAILS(rdma_bind_addr(fresh, (struct sockaddr *)&ss), ENODEV);
	CHECK_EQ(rdma_destroy_id(fresh), 0);
	CHECK_EQ(rdma_destroy_id(bound), 0);
	/* Everything of it can be released. */
	pair_close(&d, &a, &b);
	fault("return");
	pair_open(&d, &a, &b);
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_ok(a.scq, 1);
	pair_close(&d, &a, &b);
	bound = tv_listen(ch, tv_addr4(), &port, 4);
	CHECK_EQ(rdma_destroy_id(bound), 0);
	CHECK_EQ(rdma_destroy_id(any), 0);
	rdma_destroy_event_channel(ch);
}

static void unplug_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *bound, *fresh;
	struct sockaddr_storage ss;
	struct rdma_cm_event *ev;
	uint16_t port = 0;
	struct tv_end a, b;
	struct tv_dev d;

	pair_open(&d, &a, &b);
	bound = tv_listen(ch, tv_addr4(), &port, 4);
	fault("unplug");
	ev = tv_event(ch, RDMA_CM_EVENT_DEVICE_REMOVAL);
	CHECK(ev->id == bound);
	tv_ack(ev);
	CHECK(!tv_readable(d.ctx->async_fd, 20));
	tv_post(&a, IBV_WR_RDMA_WRITE, 0, 64, 1);
	tv_ok(a.scq, 1);
	CHECK_EQ(rdma_create_id(ch, &fresh, NULL, RDMA_PS_TCP), 0);
	tv_sockaddr(&ss, tv_addr4(), 0);
	CHECK_FAILS(rdma_bind_addr(fresh, (struct sockaddr *)&ss), ENODEV);
	CHECK_EQ(rdma_destroy_id(fresh), 0);
	CHECK_EQ(rdma_destroy_id(bound), 0);
	pair_close(&d, &a, &b);
	fault("return");
	bound = tv_listen(ch, tv_addr4(), &port, 4);
	CHECK_EQ(rdma_destroy_id(bound), 0);
	rdma_destroy_event_channel(ch);
}

static void script_add(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);

	CHECK_OP(fd, >=, 0);
	CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	CHECK_EQ(close(fd), 0);
}

/* Words in a file, each once, when its line is complete; what is no word is told and passed over. */
static void script_role(struct tv_side *s)
{
	char path[] = "/tmp/vkrdma-script-XXXXXX", env[64];
	int fd = mkstemp(path);
	struct tv_dev d;

	CHECK_OP(fd, >=, 0);
	CHECK_EQ(close(fd), 0);
	snprintf(env, sizeof(env), "script=%s", path);
	CHECK_EQ(setenv("VKRDMA_SOFT_FAULT", env, 1), 0);
	tv_dev_open(&d);
	CHECK(!tv_readable(d.ctx->async_fd, 150));
	script_add(path, "port_err\nport_act");
	async_expect(d.ctx, IBV_EVENT_PORT_ERR);
	CHECK(!tv_readable(d.ctx->async_fd, 150));
	script_add(path, "ive\nnonsense\ngid_change\n");
	async_expect(d.ctx, IBV_EVENT_PORT_ACTIVE);
	async_expect(d.ctx, IBV_EVENT_GID_CHANGE);
	CHECK_EQ(unlink(path), 0);
	CHECK(!tv_readable(d.ctx->async_fd, 150));
	tv_dev_close(&d);
}

static void timed_role(struct tv_side *s)
{
	uint64_t start = tv_ms();
	struct tv_dev d;

	CHECK_EQ(setenv("VKRDMA_SOFT_FAULT", "port_err@200,port_active@400", 1), 0);
	tv_dev_open(&d);
	async_expect(d.ctx, IBV_EVENT_PORT_ERR);
	CHECK_OP(tv_ms() - start, >=, 190);
	async_expect(d.ctx, IBV_EVENT_PORT_ACTIVE);
	CHECK_OP(tv_ms() - start, >=, 390);
	tv_dev_close(&d);
}

/* ------------------------------------------------------------------ events */

static void port_events_role(struct tv_side *s)
{
	static const struct {
		const char *word;
		enum ibv_event_type type;
	} events[] = {
	    {"port_err", IBV_EVENT_PORT_ERR},
	    {"port_active", IBV_EVENT_PORT_ACTIVE},
	    {"gid_change", IBV_EVENT_GID_CHANGE},
	    {"device_fatal", IBV_EVENT_DEVICE_FATAL},
	};
	struct tv_dev d;

	tv_dev_open(&d);
	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		fault(events[i].word);
		async_expect(d.ctx, events[i].type);
	}
	tv_dev_close(&d);
}

/* The youngest QP is b's; the other lives. */
static void qp_events_role(struct tv_side *s)
{
	static const struct {
		const char *word;
		enum ibv_event_type type;
		enum ibv_qp_state state;
	} events[] = {
	    {"qp_fatal", IBV_EVENT_QP_FATAL, IBV_QPS_ERR},
	    {"qp_req_err", IBV_EVENT_QP_REQ_ERR, IBV_QPS_ERR},
	    {"qp_access_err", IBV_EVENT_QP_ACCESS_ERR, IBV_QPS_ERR},
	    {"comm_est", IBV_EVENT_COMM_EST, IBV_QPS_RTS},
	};

	for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		struct ibv_async_event ev;
		struct tv_end a, b;
		struct tv_dev d;

		pair_open(&d, &a, &b);
		tv_recv(&b, 0, 64, 5);
		fault(events[i].word);
		ev = async_event(d.ctx, events[i].type);
		CHECK(ev.element.qp == b.qp);
		ibv_ack_async_event(&ev);
		CHECK_EQ(tv_end_state(&b), events[i].state);
		if (events[i].state == IBV_QPS_ERR)
			tv_want(b.rcq, 5, IBV_WC_WR_FLUSH_ERR);
		CHECK_EQ(tv_end_state(&a), IBV_QPS_RTS);
		pair_close(&d, &a, &b);
	}
}

static void cq_event_role(struct tv_side *s)
{
	struct ibv_async_event ev;
	struct tv_end a, b;
	struct tv_dev d;

	pair_open(&d, &a, &b);
	fault("cq_err");
	ev = async_event(d.ctx, IBV_EVENT_CQ_ERR);
	CHECK(ev.element.cq == b.scq || ev.element.cq == b.rcq);
	ibv_ack_async_event(&ev);
	tv_end_wait_state(&b, IBV_QPS_ERR);
	CHECK_EQ(tv_end_state(&a), IBV_QPS_RTS);
	async_expect(d.ctx, IBV_EVENT_QP_FATAL);
	pair_close(&d, &a, &b);
}

/* ------------------------------------------------------------------ the CM */

static void stale_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis;
	struct tv_end e;
	uint16_t port = 0;

	fault("stale=2");
	lis = tv_listen(ch, tv_addr4(), &port, 4);
	tv_put(s->ctl, &port, sizeof(port));
	tv_cm_server(&e, ch, NULL); /* the first two never show */
	tv_sync(s);
	tv_cm_end(&e, ch);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void stale_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	uint16_t port;
	struct tv_end e;
	struct tv_dev d;

	tv_get(s->ctl, &port, sizeof(port));
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);

		tv_end_open_cm(&e, &d, id, NULL);
		tv_param(&p);
		CHECK_EQ(rdma_connect(id, &p), 0);
		ev = tv_event(ch, RDMA_CM_EVENT_REJECTED);
		CHECK_EQ(ev->status, 10);
		tv_ack(ev);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	tv_cm_client(&e, ch, port, NULL);
	tv_sync(s);
	tv_cm_end(&e, ch);
	rdma_destroy_event_channel(ch);
}

/* Without the RTU the acceptor waits, until its program says that the peer has been heard; if it gives up instead, the
 * established peer is rejected. */
static void no_rtu_role(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel(), *cch = tv_channel();
	struct rdma_cm_id *lis, *id;
	struct rdma_conn_param p;
	struct rdma_cm_event *ev;
	struct tv_end a, b;
	struct tv_dev da, db;
	uint16_t port = 0;

	fault("no_rtu");
	lis = tv_listen(ch, tv_addr4(), &port, 4);
	id = tv_resolve(cch, tv_addr4(), port);
	tv_end_open_cm(&a, &da, id, NULL);
	tv_param(&p);
	CHECK_EQ(rdma_connect(id, &p), 0);
	ev = tv_event(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	tv_end_open_cm(&b, &db, ev->id, NULL);
	tv_ack(ev);
	tv_param(&p);
	CHECK_EQ(rdma_accept(b.id, &p), 0);
	tv_expect(cch, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!tv_any_event(ch, 100));
	if (*(bool *)s->arg) {
		CHECK_EQ(rdma_notify(b.id, IBV_EVENT_COMM_EST), 0);
		tv_expect(ch, RDMA_CM_EVENT_ESTABLISHED);
		CHECK_EQ(rdma_disconnect(a.id), 0);
		tv_expect(ch, RDMA_CM_EVENT_DISCONNECTED);
		CHECK_EQ(rdma_disconnect(b.id), 0);
		tv_expect(cch, RDMA_CM_EVENT_DISCONNECTED);
	}
	tv_end_close(&b);
	CHECK_EQ(rdma_destroy_id(b.id), 0);
	if (!*(bool *)s->arg)
		tv_expect(cch, RDMA_CM_EVENT_REJECTED);
	tv_end_close(&a);
	CHECK_EQ(rdma_destroy_id(a.id), 0);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	fault("rtu");
	rdma_destroy_event_channel(ch);
	rdma_destroy_event_channel(cch);
}

/* One of the two may map no more memory: the connection is refused at once; with memory it is made. */
static bool server_limited;

static void limit(bool on)
{
	struct rlimit rl;
	unsigned long pages = 0;
	FILE *f;

	CHECK_EQ(getrlimit(RLIMIT_AS, &rl), 0);
	rl.rlim_cur = rl.rlim_max;
	if (on) {
		f = fopen("/proc/self/statm", "re");
		CHECK(f && fscanf(f, "%lu", &pages) == 1);
		fclose(f);
		rl.rlim_cur = pages * 4096 + (1ull << 30); /* the peer's memory is larger by far */
	}
	CHECK_EQ(setrlimit(RLIMIT_AS, &rl), 0);
}

/* What the library says on stderr goes to *fd. The old stderr. */
static int listen_to(int *fd)
{
	int p[2], old = dup(2);

	CHECK_EQ(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
	CHECK_EQ(dup2(p[1], 2), 2);
	CHECK_EQ(close(p[1]), 0);
	*fd = p[0];
	return old;
}

static void hear(int fd, int old, bool want)
{
	char text[512];
	ssize_t n = read(fd, text, sizeof(text) - 1);

	CHECK_EQ(dup2(old, 2), 2);
	text[n < 0 ? 0 : n] = 0;
	CHECK_EQ(strstr(text, "cannot be mapped") != NULL, want);
	CHECK_EQ(n > 0 && strchr(text, '\n') != text + n - 1, 0); /* one line */
}

static void unmapped_server(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_cm_id *lis, *id;
	struct rdma_cm_event *ev;
	uint16_t port = 0;
	struct tv_end e;
	int said, old;

	lis = tv_listen(ch, tv_addr4(), &port, 4);
	old = listen_to(&said);
	limit(server_limited);
	tv_put(s->ctl, &port, sizeof(port));
	tv_sync(s);
	limit(false);
	hear(said, old, server_limited);
	/* A client that cannot hear us takes its requests back. */
	while ((ev = tv_any_event(ch, 100))) {
		CHECK(!server_limited);
		id = ev->event == RDMA_CM_EVENT_REJECTED ? ev->id : NULL;
		CHECK(id || ev->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		tv_ack(ev);
		if (id)
			CHECK_EQ(rdma_destroy_id(id), 0);
	}
	tv_sync(s);
	tv_cm_server(&e, ch, NULL);
	tv_sync(s);
	tv_cm_end(&e, ch);
	CHECK_EQ(rdma_destroy_id(lis), 0);
	rdma_destroy_event_channel(ch);
}

static void unmapped_client(struct tv_side *s)
{
	struct rdma_event_channel *ch = tv_channel();
	struct rdma_conn_param p;
	uint16_t port;
	struct tv_end e;
	struct tv_dev d;
	uint64_t start;
	int said, old;

	tv_get(s->ctl, &port, sizeof(port));
	old = listen_to(&said);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = tv_resolve(ch, tv_addr4(), port);

		tv_end_open_cm(&e, &d, id, NULL);
		limit(!server_limited);
		tv_param(&p);
		start = tv_ms();
		CHECK_EQ(rdma_connect(id, &p), 0);
		tv_expect(ch, RDMA_CM_EVENT_REJECTED);
		CHECK_OP(tv_ms() - start, <=, 2000);
		limit(false);
		tv_end_close(&e);
		CHECK_EQ(rdma_destroy_id(id), 0);
	}
	hear(said, old, !server_limited);
	tv_sync(s);
	tv_sync(s);
	tv_cm_client(&e, ch, port, NULL);
	tv_sync(s);
	tv_cm_end(&e, ch);
	rdma_destroy_event_channel(ch);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(words)
SOLO(cut)
SOLO(lost)
SOLO(down)
SOLO(remove)
SOLO(unplug)
SOLO(timed)
SOLO(script)
SOLO(port_events)
SOLO(qp_events)
SOLO(cq_event)

static void no_rtu(bool notify)
{
	pid_t pid = tv_spawn(no_rtu_role, -1, -1, &notify, 20);

	assert_int_equal(tv_wait(pid), 0);
}

static void test_no_rtu(void **state)
{
	no_rtu(true);
}

static void test_no_rtu_given_up(void **state)
{
	no_rtu(false);
}

static void test_cut_peer(void **state)
{
	tv_procs(cut_server, cut_client, 20);
}

static void test_unmapped(void **state)
{
	for (int i = 0; i < 2; i++) {
		server_limited = i;
		tv_procs(unmapped_server, unmapped_client, 20);
	}
}

static void test_stale(void **state)
{
	tv_procs(stale_server, stale_client, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_words),       cmocka_unit_test(test_cut),
	    cmocka_unit_test(test_cut_peer),    cmocka_unit_test(test_lost),
	    cmocka_unit_test(test_down),        cmocka_unit_test(test_remove),
	    cmocka_unit_test(test_unplug),      cmocka_unit_test(test_timed),
	    cmocka_unit_test(test_port_events), cmocka_unit_test(test_qp_events),
	    cmocka_unit_test(test_cq_event),    cmocka_unit_test(test_stale),
	    cmocka_unit_test(test_no_rtu),      cmocka_unit_test(test_no_rtu_given_up),
	    cmocka_unit_test(test_script),      cmocka_unit_test(test_unmapped),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}

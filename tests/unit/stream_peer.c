/* SPDX-License-Identifier: BSD-2-Clause */
#include "stream_peer.h"

#include "config.h"
#include "engine.h"
#include "guard.h"
#include "log.h"
#include "socket.h"
#include "verbs_dl.h"
#include "wire.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __SANITIZE_THREAD__
#define SLOWER 4
#else
#define SLOWER 1
#endif
#define WAIT_MS (30000 * SLOWER)
#define CHUNK   (256u << 10)

/* The library has it in libc_real.c, for which real.c stands in. */
VKR_TLS int vkr_depth;

#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "%s:%d: %s failed in %d\n", __FILE__, __LINE__, #x, getpid());                 \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

/* ------------------------------------------------------------------ waiting */

struct waiter {
	struct vkr_watch watch;
	int fd;
};

static bool waiter_fire(struct vkr_watch *watch, uint32_t edge)
{
	struct waiter *w = vkr_container_of(watch, struct waiter, watch);
	uint64_t one = 1;

	(void)edge;
	CHECK(write(w->fd, &one, sizeof(one)) == sizeof(one));
	return false;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

/* Ready in one of the bits, or, given a stream, no longer connecting. */
static bool ready(struct vkr_pollable *p, struct vkr_stream *connecting, uint32_t mask)
{
	return connecting ? vkr_stream_state(connecting) != VKR_STREAM_CONNECTING : vkr_pollable_ready(p) & mask;
}

static bool wait_for(struct vkr_pollable *p, struct vkr_stream *connecting, uint32_t mask, int ms)
{
	int64_t end = now_ms() + ms;
	struct waiter w;
	bool done;

	vkr_engine_poll();
	if (ready(p, connecting, mask))
		return true;
	w.fd = eventfd(0, EFD_NONBLOCK);
	CHECK(w.fd >= 0);
	w.watch.fire = waiter_fire;
	vkr_watch_add(p, &w.watch);
	while (!(done = ready(p, connecting, mask)) && now_ms() < end) {
		struct pollfd fds[1 + VKR_MAX_DEVICES] = {{.fd = w.fd, .events = POLLIN}};
		int engine[VKR_MAX_DEVICES], i, n;
		uint64_t count;

		vkr_engine_poll();
		if (ready(p, connecting, mask))
			continue;
		n = vkr_engine_fds(engine);
		for (i = 0; i < n; i++)
			fds[i + 1] = (struct pollfd){.fd = engine[i], .events = POLLIN};
		vkr_engine_sleep_begin();
		if (!ready(p, connecting, mask))
			poll(fds, (nfds_t)n + 1, (int)vkr_max(end - now_ms(), 0));
		vkr_engine_sleep_end();
		for (i = 0; i < n; i++)
			if (fds[i + 1].revents)
				vkr_engine_event(engine[i]);
		if (read(w.fd, &count, sizeof(count)) < 0)
			CHECK(errno == EAGAIN);
	}
	vkr_watch_del(p, &w.watch);
	close(w.fd);
	return done;
}

bool pollable_wait(struct vkr_pollable *p, uint32_t mask, int ms)
{
	return wait_for(p, NULL, mask, ms);
}

void stream_wait(struct vkr_stream *s, uint32_t mask)
{
	CHECK(pollable_wait(vkr_stream_pollable(s), mask, WAIT_MS));
}

/*
 * rdma-core looks its descriptors up in its public structs at each use, so the library may move them; softverbs, here
 * in rdma-core's place, does not.
 */
int __wrap_vkr_guard_fd(int fd);
int __real_vkr_guard_fd(int fd);

int __wrap_vkr_guard_fd(int fd)
{
	if (!getenv("STREAM_VERBS"))
		return __real_vkr_guard_fd(fd);
	vkr_guard_mark(fd);
	return fd;
}

/* ------------------------------------------------------------------ streams */

/* A device that takes less inline than softverbs, or none: everything goes through registered memory then. */
/* A forked server has threads of its own. ThreadSanitizer asks this. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

static void limit_inline(void)
{
	static struct vkr_soft_api less;
	const char *bytes = getenv("STREAM_INLINE");

	if (!bytes)
		return;
	less = *vkr_verbs.soft;
	less.max_inline = (uint32_t)strtoul(bytes, NULL, 0);
	vkr_verbs.soft = &less;
}

/* The table is whole before a thread looks at it. */
int __wrap_vkr_verbs_open(bool soft, const char **reason);
int __real_vkr_verbs_open(bool soft, const char **reason);
int __wrap_vkr_verbs_open(bool soft, const char **reason)
{
	int ret = __real_vkr_verbs_open(soft, reason);

	if (!ret && soft)
		limit_inline();
	return ret;
}

uint32_t stream_features(void)
{
	const char *bits = getenv("STREAM_FEATURES");

	/* Kept queue pairs would be waited for at the end of each test: they have their own runs. */
	return bits ? (uint32_t)strtoul(bits, NULL, 0) : VKR_FEAT_ALL & ~VKR_FEAT_KEEP;
}

void stream_engine(void)
{
	const char *reason = "";
	char *level = getenv("VKRDMA_LOG");

	/* Without it: libibverbs.so.1 and librdmacm.so.1, which LD_LIBRARY_PATH may make softverbs again. */
	vkr_config.provider_soft = !getenv("STREAM_VERBS");
	vkr_config.native_ring = 256 << 10;
	vkr_config.features = stream_features();
	if (level && !strcmp(level, "debug"))
		vkr_log_level = VKR_LOG_DEBUG;
	if (vkr_engine_start(&reason)) {
		fprintf(stderr, "engine: %s\n", reason);
		abort();
	}
}

int stream_try(const struct sockaddr_in *to, int timeout_ms, struct vkr_stream **s, const char **reason)
{
	int ret = vkr_connect_start(NULL, (const struct sockaddr *)to, timeout_ms, "test", s, reason);

	if (ret)
		return ret;
	CHECK(wait_for(vkr_stream_pollable(*s), *s, 0, timeout_ms + WAIT_MS));
	if (vkr_stream_state(*s) == VKR_STREAM_OPEN)
		return 0;
	return vkr_stream_failure(*s, reason);
}

struct vkr_stream *stream_connect(const struct sockaddr_in *to, const struct peer_order *order)
{
	const char *reason = "";
	struct vkr_stream *s;

	if (stream_try(to, 10000, &s, &reason)) {
		fprintf(stderr, "connect: %s\n", reason);
		abort();
	}
	if (order)
		CHECK(stream_send_all(s, order, sizeof(*order)) == sizeof(*order));
	return s;
}

bool stream_eager;
uint32_t stream_refused;

/* While it is eager nothing but room at the peer, or in our own queue, is waited for. */
static ssize_t send_now(struct vkr_stream *s, const struct iovec *iov, int n, size_t total)
{
	ssize_t ret = -EAGAIN;
	int i;

	for (i = 0; stream_eager && i < 100000 && ret == -EAGAIN; i++) {
		ret = vkr_stream_send(s, iov, n, total, VKR_IO_EAGER);
		/* Where our own queue was full a completion makes room. */
		stream_refused += vkr_engine_poll() <= 0 && ret == -EAGAIN;
	}
	return ret == -EAGAIN ? vkr_stream_send(s, iov, n, total, 0) : ret;
}

static ssize_t send_some(struct vkr_stream *s, const struct iovec *iov)
{
	ssize_t ret;

	while ((ret = send_now(s, iov, 1, iov->iov_len)) == -EAGAIN)
		stream_wait(s, EPOLLOUT);
	return ret;
}

static ssize_t recv_some(struct vkr_stream *s, const struct iovec *iov)
{
	ssize_t ret;

	while ((ret = vkr_stream_recv(s, iov, iov->iov_len, 0)) == -EAGAIN)
		stream_wait(s, EPOLLIN);
	return ret;
}

ssize_t stream_send_all(struct vkr_stream *s, const void *buf, size_t n)
{
	size_t done = 0;

	while (done < n) {
		struct iovec iov = {(char *)(uintptr_t)buf + done, n - done};
		ssize_t ret = send_some(s, &iov);

		if (ret < 0)
			return ret;
		done += (size_t)ret;
	}
	return (ssize_t)done;
}

ssize_t stream_recv_all(struct vkr_stream *s, void *buf, size_t n)
{
	size_t done = 0;

	while (done < n) {
		struct iovec iov = {(char *)buf + done, n - done};
		ssize_t ret = recv_some(s, &iov);

		if (ret < 0)
			return ret;
		if (!ret)
			break;
		done += (size_t)ret;
	}
	return (ssize_t)done;
}

/* ------------------------------------------------------------------ patterns */

/* Each byte depends on its place in the stream, so that a lost, doubled or moved piece shows. */
static uint8_t pattern(uint32_t seed, uint64_t at)
{
	uint64_t x = (at + 1) * 0x9e3779b97f4a7c15ull + seed;

	return (uint8_t)(x >> 56 ^ x >> 24);
}

static uint32_t next_random(uint32_t *r)
{
	*r = *r * 1664525u + 1013904223u;
	return *r >> 8;
}

/* 1 to 12 pieces that cover n bytes of buf. */
static int split(uint8_t *buf, size_t n, uint32_t *r, struct iovec iov[12])
{
	int count = 0;

	while (n && count < 11) {
		size_t part = 1 + next_random(r) % n;

		if (next_random(r) % 4 == 0)
			break;
		iov[count++] = (struct iovec){buf, part};
		buf += part;
		n -= part;
	}
	if (n)
		iov[count++] = (struct iovec){buf, n};
	return count;
}

struct way {
	uint32_t seed, random, limit;
	uint64_t at, total;
	uint8_t buf[CHUNK];
};

static struct way *way_new(uint32_t seed, uint64_t total, uint32_t limit)
{
	struct way *w = malloc(sizeof(*w));

	CHECK(w);
	w->seed = w->random = seed;
	w->limit = limit && limit < CHUNK ? limit : CHUNK;
	w->at = 0;
	w->total = total;
	return w;
}

static size_t way_step(struct way *w)
{
	uint64_t n = 1 + next_random(&w->random) % w->limit;

	return (size_t)vkr_min(n, w->total - w->at);
}

/* One call: > 0 bytes, 0 EOF, -errno. */
static ssize_t way_send(struct way *w, struct vkr_stream *s)
{
	size_t i, n = way_step(w);
	struct iovec iov[12];
	ssize_t ret;

	for (i = 0; i < n; i++)
		w->buf[i] = pattern(w->seed, w->at + i);
	ret = send_now(s, iov, split(w->buf, n, &w->random, iov), n);
	if (ret > 0) {
		CHECK((size_t)ret <= n);
		w->at += (uint64_t)ret;
	}
	/* Accepted bytes are the library's: what happens to ours is no matter. */
	memset(w->buf, 0xee, n);
	return ret;
}

static ssize_t way_recv(struct way *w, struct vkr_stream *s)
{
	size_t i, n = way_step(w);
	struct iovec iov[12];
	ssize_t ret, peeked = 0;

	split(w->buf, n, &w->random, iov);
	if (next_random(&w->random) % 8 == 0)
		peeked = vkr_stream_recv(s, iov, n, VKR_IO_PEEK);
	ret = vkr_stream_recv(s, iov, n, 0);
	if (ret <= 0)
		return ret;
	CHECK((size_t)ret <= n && peeked <= ret);
	for (i = 0; i < (size_t)ret; i++) {
		if (w->buf[i] != pattern(w->seed, w->at + i)) {
			fprintf(stderr, "byte %llu is wrong\n", (unsigned long long)(w->at + i));
			abort();
		}
	}
	w->at += (uint64_t)ret;
	return ret;
}

int stream_send_pattern(struct vkr_stream *s, uint32_t seed, uint64_t total, uint32_t limit)
{
	struct way *w = way_new(seed, total, limit);
	ssize_t ret = 0;

	while (w->at < total && ret >= 0) {
		ret = way_send(w, s);
		if (ret == -EAGAIN) {
			stream_wait(s, EPOLLOUT);
			ret = 0;
		}
	}
	free(w);
	return ret < 0 ? (int)ret : 0;
}

void stream_fill(uint8_t *buf, uint32_t seed, uint64_t at, size_t n)
{
	while (n--)
		*buf++ = pattern(seed, at++);
}

int stream_send_pattern_at(struct vkr_stream *s, uint32_t seed, uint64_t at, uint32_t n)
{
	ssize_t ret = 1;
	uint8_t c;

	while (n-- && ret == 1) {
		c = pattern(seed, at++);
		ret = stream_send_all(s, &c, 1);
	}
	return ret < 0 ? (int)ret : 0;
}

int stream_recv_pattern(struct vkr_stream *s, uint32_t seed, uint64_t total, uint32_t limit)
{
	struct way *w = way_new(seed, total, limit);
	ssize_t ret = 1;

	while (w->at < total && ret > 0) {
		ret = way_recv(w, s);
		if (ret == -EAGAIN) {
			stream_wait(s, EPOLLIN);
			ret = 1;
		}
	}
	free(w);
	return ret < 0 ? (int)ret : ret == 0 && total ? -EPIPE : 0;
}

struct edges {
	struct vkr_watch watch;
	_Atomic uint32_t seen;
};

static bool edges_fire(struct vkr_watch *watch, uint32_t edge)
{
	atomic_fetch_or(&vkr_container_of(watch, struct edges, watch)->seen, edge);
	return false;
}

/* A read that makes room to write (it may find credit, and post what was queued) tells those who wait for room. */
static ssize_t recv_and_look(struct way *in, struct vkr_stream *s, struct edges *edges)
{
	struct vkr_pollable *p = vkr_stream_pollable(s);
	uint32_t before, after, seen;
	ssize_t ret;

	atomic_store(&edges->seen, 0);
	before = vkr_pollable_ready(p);
	ret = way_recv(in, s);
	pthread_mutex_lock(&p->lock); /* another thread may be between the mask and the watches */
	after = vkr_pollable_ready(p);
	seen = atomic_load(&edges->seen);
	pthread_mutex_unlock(&p->lock);
	if (!(before & EPOLLOUT) && after & EPOLLOUT)
		CHECK(seen & EPOLLOUT);
	return ret;
}

int stream_duplex(struct vkr_stream *s, uint32_t seed_out, uint32_t seed_in, uint64_t total, uint32_t limit)
{
	struct way *out = way_new(seed_out, total, limit), *in = way_new(seed_in, total, limit);
	struct edges edges = {.watch.fire = edges_fire};
	ssize_t ret = 1;

	vkr_watch_add(vkr_stream_pollable(s), &edges.watch);
	while ((out->at < total || in->at < total) && ret > 0) {
		ssize_t a = out->at < total ? way_send(out, s) : -EAGAIN, b = -EAGAIN;

		if (in->at < total)
			b = recv_and_look(in, s, &edges);
		ret = a < 0 && a != -EAGAIN ? a : b <= 0 && b != -EAGAIN ? b : 1;
		if (a == -EAGAIN && b == -EAGAIN)
			stream_wait(s, (out->at < total ? EPOLLOUT : 0) | (in->at < total ? EPOLLIN : 0));
	}
	vkr_watch_del(vkr_stream_pollable(s), &edges.watch);
	free(out);
	free(in);
	return ret < 0 ? (int)ret : ret == 0 ? -EPIPE : 0;
}

/* ------------------------------------------------------------------ the server */

static void do_echo(struct vkr_stream *s, const struct peer_order *o)
{
	uint8_t *buf = malloc(CHUNK);
	struct iovec iov = {buf, o->limit ? vkr_min(o->limit, CHUNK) : CHUNK};
	ssize_t n;

	CHECK(buf);
	while ((n = recv_some(s, &iov)) > 0)
		if (stream_send_all(s, buf, (size_t)n) != n)
			break;
	free(buf);
}

static void do_sink(struct vkr_stream *s, uint32_t seed, uint64_t total, uint32_t limit)
{
	char c = 'k';

	CHECK(stream_recv_pattern(s, seed, total, limit) == 0);
	CHECK(stream_send_all(s, &c, 1) == 1);
	/* Or a reset: the other side may have closed without wanting the answer. */
	CHECK(stream_recv_all(s, &c, 1) <= 0);
}

static void do_half(struct vkr_stream *s, const struct peer_order *o)
{
	char buf[4096];

	while (stream_recv_all(s, buf, sizeof(buf)) > 0)
		;
	CHECK(stream_send_pattern(s, o->seed, o->total, o->limit) == 0);
}

static void do_order(struct vkr_stream *s, const struct peer_order *o)
{
	struct timespec ts = {.tv_sec = (time_t)(o->total / 1000), .tv_nsec = (long)(o->total % 1000) * 1000000};

	switch (o->job) {
	case PEER_ECHO:
		do_echo(s, o);
		break;
	case PEER_SINK:
		do_sink(s, o->seed, o->total, o->limit);
		break;
	case PEER_SOURCE:
		stream_send_pattern(s, o->seed, o->total, o->limit);
		break;
	case PEER_DUPLEX:
		CHECK(stream_duplex(s, o->seed, o->seed + 1, o->total, o->limit) == 0);
		break;
	case PEER_STALL:
		/* The length of the stall is the test's subject, not a wait for something. */
		nanosleep(&ts, NULL);
		do_sink(s, o->seed, o->limit, 0);
		break;
	case PEER_UNREAD:
		stream_wait(s, EPOLLIN);
		break;
	case PEER_DIE:
		kill(getpid(), SIGKILL);
		break;
	case PEER_HALF:
		do_half(s, o);
		break;
	}
}

static void *serve(void *arg)
{
	struct vkr_stream *s = arg;
	struct peer_order o;

	if (stream_recv_all(s, &o, sizeof(o)) == sizeof(o))
		do_order(s, &o);
	vkr_stream_close(s, 10000);
	return NULL;
}

/* The progress thread reads them where it answers requests. */
static void features_set(uint32_t features)
{
	struct vkr_turn turn;

	while (!vkr_progress_enter(&turn))
		sched_yield();
	vkr_config.features = features;
	vkr_progress_leave(&turn);
}

static struct vkr_listener *listener;

static void *answer_questions(void *arg)
{
	struct peer *p = arg;
	struct peer_gauges g;
	char c;

	while (read(p->ask, &c, 1) == 1) {
		if (c >= '0' && c <= '0' + VKR_FEAT_ALL)
			features_set((uint32_t)(c - '0'));
		else if (c == 's')
			vkr_listener_stop(listener);
		else if (c == 'b')
			vkr_listener_backlog(listener, 511);
		else if (c != 'g')
			CHECK(vkr_verbs.soft->fault(c == 'j' ? "join" : "cut") == 0);
		g.qps = vkr_load(&vkr_stats->qps);
		g.mrs = vkr_load(&vkr_stats->mrs);
		g.mr_bytes = vkr_load(&vkr_stats->mr_bytes);
		CHECK(write(p->answer, &g, sizeof(g)) == sizeof(g));
	}
	_exit(0); /* the client has gone */
}

static void thread_run(void *(*fn)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t t;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	CHECK(pthread_create(&t, &attr, fn, arg) == 0);
	pthread_attr_destroy(&attr);
}

static void server_main(struct peer *p)
{
	struct vkr_stream *s;
	const char *reason = "";
	void *ticket;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	stream_engine();
	if (vkr_listener_create((struct sockaddr *)&p->addr, false, 511, "test", NULL, NULL, &listener, &reason)) {
		fprintf(stderr, "listen: %s\n", reason);
		abort();
	}
	CHECK(write(p->answer, "r", 1) == 1);
	thread_run(answer_questions, p);
	for (;;) {
		while (!pollable_wait(vkr_listener_pollable(listener), EPOLLIN, WAIT_MS))
			;
		while ((s = vkr_listener_accept(listener, &ticket)))
			thread_run(serve, s);
	}
}

static void forget_fd(int fd, void *arg)
{
	(void)arg;
	vkr_guard_close(fd);
}

/* As the library's own fork handlers do. */
static void forked_child(void)
{
	vkr_guard_each(forget_fd, NULL);
	vkr_log_forked();
	vkr_stats_forked();
	vkr_engine_fork_child();
}

void peer_start(struct peer *p)
{
	socklen_t len = sizeof(p->addr);
	int ask[2], answer[2], fd = socket(AF_INET, SOCK_STREAM, 0);
	static int forks;
	char c;

	/* A port that nobody else has: it stays bound in the kernel while the test runs. */
	memset(&p->addr, 0, sizeof(p->addr));
	p->addr.sin_family = AF_INET;
	p->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)&p->addr, len) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&p->addr, &len) == 0);
	if (!forks++)
		pthread_atfork(vkr_engine_fork_prepare, vkr_engine_fork_parent, forked_child);
	CHECK(pipe(ask) == 0 && pipe(answer) == 0);
	p->pid = fork();
	CHECK(p->pid >= 0);
	if (!p->pid) {
		close(ask[1]);
		close(answer[0]);
		p->ask = ask[0];
		p->answer = answer[1];
		server_main(p);
	}
	close(ask[0]);
	close(answer[1]);
	p->ask = ask[1];
	p->answer = answer[0];
	CHECK(read(p->answer, &c, 1) == 1);
}

static void ask(struct peer *p, char what, struct peer_gauges *g)
{
	CHECK(write(p->ask, &what, 1) == 1);
	CHECK(read(p->answer, g, sizeof(*g)) == sizeof(*g));
}

void peer_gauges(struct peer *p, struct peer_gauges *g)
{
	ask(p, 'g', g);
}

void peer_link(struct peer *p, bool up)
{
	struct peer_gauges g;

	ask(p, up ? 'j' : 'c', &g);
}

void peer_listens(struct peer *p, bool on)
{
	struct peer_gauges g;

	ask(p, on ? 'b' : 's', &g);
}

void peer_features(struct peer *p, uint32_t features)
{
	struct peer_gauges g;

	CHECK(features <= VKR_FEAT_ALL);
	ask(p, (char)('0' + features), &g);
}

void peer_stop(struct peer *p)
{
	kill(p->pid, SIGKILL);
	waitpid(p->pid, NULL, 0);
	close(p->ask);
	close(p->answer);
}

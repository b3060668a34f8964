/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The one background thread: sockets, timers, kicks, blocked work requests. Its work may also be done by a thread of
 * the caller's (loop_own() in softverbs.h).
 */
#include "soft.h"

#include <linux/futex.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static pthread_mutex_t timer_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sv_timer *timers;
static struct sv_source kick_source;

struct retired {
	struct retired *next;
};

static struct retired *graveyard;

void sv_retire(void *p)
{
	struct retired *r = p;

	pthread_mutex_lock(&timer_lock);
	r->next = graveyard;
	graveyard = r;
	pthread_mutex_unlock(&timer_lock);
}

/* Thread only, between batches. What is retired during a batch of ours waits for its end. */
static struct retired *graveyard_take(void)
{
	struct retired *r;

	pthread_mutex_lock(&timer_lock);
	r = graveyard;
	graveyard = NULL;
	pthread_mutex_unlock(&timer_lock);
	return r;
}

static void graveyard_free(struct retired *r)
{
	while (r) {
		struct retired *next = r->next;

		free(r);
		r = next;
	}
}

/* Orders what a source holds before its events; the kernel does too, but not in a language's memory model. */
static _Atomic uint32_t source_gen;

static int source_ctl(struct sv_source *s, int op)
{
	struct epoll_event ev = {.events = s->events, .data.ptr = s};

	atomic_fetch_add(&source_gen, 1);
	return epoll_ctl(sv_proc.ep_fd, op, s->fd, &ev) ? errno : 0;
}

int sv_source_add(struct sv_source *s, uint32_t events)
{
	s->events = events;
	sv_fd_slot(s->fd, (_Atomic int *)&s->fd, 0);
	sv_fd_source(s->fd, s);
	return source_ctl(s, EPOLL_CTL_ADD);
}

void sv_source_mod(struct sv_source *s, uint32_t events)
{
	s->events = events;
	source_ctl(s, EPOLL_CTL_MOD);
}

void sv_source_del(struct sv_source *s)
{
	source_ctl(s, EPOLL_CTL_DEL);
}

void sv_source_readd(struct sv_source *s)
{
	source_ctl(s, EPOLL_CTL_ADD);
}

void sv_thread_wake(void)
{
	sv_fd_raise(sv_proc.kick_fd);
}

/* This thread runs the loop, or is about to. */
static __thread bool on_loop __attribute__((tls_model("initial-exec")));

void sv_kick(struct sv_seg *seg, int kick_fd, uint32_t qp_idx)
{
	uint32_t word = qp_idx / 64;

	atomic_fetch_or(&seg->kick[word], 1ull << (qp_idx % 64));
	atomic_fetch_or(&seg->kick_top[word / 64], 1ull << (word % 64));
	if (!atomic_exchange(&seg->kicked, 1))
		sv_fd_raise(kick_fd); /* the peer may just have died */
}

/* ------------------------------------------------------------------ timers */

static void timer_unlink(struct sv_timer *t)
{
	struct sv_timer **pp;

	for (pp = &timers; *pp; pp = &(*pp)->next) {
		if (*pp == t) {
			*pp = t->next;
			break;
		}
	}
	t->armed = false;
}

void sv_timer_set(struct sv_timer *t, uint64_t due)
{
	struct sv_timer **pp;
	bool first;

	pthread_mutex_lock(&timer_lock);
	if (t->armed)
		timer_unlink(t);
	t->due = due;
	for (pp = &timers; *pp && (*pp)->due <= due; pp = &(*pp)->next)
		;
	t->next = *pp;
	*pp = t;
	t->armed = true;
	first = timers == t;
	pthread_mutex_unlock(&timer_lock);
	if (first && !on_loop)
		sv_thread_wake();
}

void sv_timer_cancel(struct sv_timer *t)
{
	pthread_mutex_lock(&timer_lock);
	if (t->armed)
		timer_unlink(t);
	pthread_mutex_unlock(&timer_lock);
}

bool sv_timer_armed(struct sv_timer *t)
{
	bool armed;

	pthread_mutex_lock(&timer_lock);
	armed = t->armed;
	pthread_mutex_unlock(&timer_lock);
	return armed;
}

static void timers_run(void)
{
	uint64_t now = sv_now();

	for (;;) {
		struct sv_timer *t;

		pthread_mutex_lock(&timer_lock);
		t = timers;
		if (!t || t->due > now) {
			pthread_mutex_unlock(&timer_lock);
			return;
		}
		timers = t->next;
		t->armed = false;
		pthread_mutex_unlock(&timer_lock);
		t->fn(t);
	}
}

static uint64_t timers_next(void)
{
	uint64_t due;

	pthread_mutex_lock(&timer_lock);
	due = timers ? timers->due : UINT64_MAX;
	pthread_mutex_unlock(&timer_lock);
	return due;
}

/* ------------------------------------------------------------------ QPs that wait for time to pass */

/* Thread only. A QP on the list holds a reference. */
static struct sv_qp *blocked;

static void blocked_update(struct sv_qp *qp)
{
	bool wants;

	sv_lock(&qp->lock);
	wants = qp->pend && qp->recheck != UINT64_MAX;
	sv_unlock(&qp->lock);
	if (wants && !qp->on_blocked) {
		atomic_fetch_add(&qp->refs, 1);
		qp->next_blocked = blocked;
		blocked = qp;
		qp->on_blocked = true;
	}
}

static void service_idx(uint32_t idx)
{
	struct sv_qp *qp = sv_qp_get(idx);

	if (!qp)
		return;
	sv_qp_service(qp);
	blocked_update(qp);
	sv_qp_put(qp);
}

/* Returns when the next one is due. */
static uint64_t blocked_run(void)
{
	struct sv_qp **pp = &blocked, *qp;
	uint64_t now = sv_now(), next = UINT64_MAX;

	while ((qp = *pp)) {
		uint64_t due;
		bool keep;

		sv_lock(&qp->lock);
		due = qp->recheck;
		keep = qp->pend && due != UINT64_MAX;
		sv_unlock(&qp->lock);
		if (keep && due <= now) {
			sv_qp_service(qp);
			sv_lock(&qp->lock);
			due = qp->recheck;
			keep = qp->pend && due != UINT64_MAX;
			sv_unlock(&qp->lock);
		}
		if (keep) {
			next = sv_min(next, due);
			pp = &qp->next_blocked;
		} else {
			*pp = qp->next_blocked;
			qp->on_blocked = false;
			sv_qp_put(qp);
		}
	}
	return next;
}

/* ------------------------------------------------------------------ kicks */

static void kicks_run(void)
{
	struct sv_seg *seg = sv_proc.seg;

	atomic_store(&seg->kicked, 0);
	if (atomic_exchange(&seg->raise, 0))
		sv_chan_raise_pending();
	for (uint32_t t = 0; t < SV_MAX_QP / 4096; t++) {
		uint64_t top = atomic_load(&seg->kick_top[t]) ? atomic_exchange(&seg->kick_top[t], 0) : 0;

		while (top) {
			uint32_t word = t * 64 + (uint32_t)__builtin_ctzll(top);
			uint64_t bits = atomic_exchange(&seg->kick[word], 0);

			top &= top - 1;
			while (bits) {
				service_idx(word * 64 + (uint32_t)__builtin_ctzll(bits));
				bits &= bits - 1;
			}
		}
	}
}

static void kick_ready(struct sv_source *s, uint32_t events)
{
	uint64_t count;

	if (read(s->fd, &count, sizeof(count)) < 0) {
		/* Another wake-up's read took it. */
	}
	kicks_run();
}

/* ------------------------------------------------------------------ the loop */

/* To the microsecond where the kernel can: RNR timers are short. */
static int loop_wait(struct epoll_event *ev, int n, uint64_t due)
{
	static _Atomic bool coarse;
	int fd = __atomic_load_n(&sv_proc.ep_fd, __ATOMIC_RELAXED), ret;
	uint64_t now = due == UINT64_MAX ? 0 : sv_now(), wait = due > now ? due - now : 0;
	struct timespec ts = {(time_t)(wait / 1000000000), (long)(wait % 1000000000)};

	if (due == UINT64_MAX)
		return epoll_wait(fd, ev, n, -1);
	if (!coarse) {
		ret = epoll_pwait2(fd, ev, n, &ts, NULL);
		if (ret >= 0 || errno != ENOSYS)
			return ret;
		coarse = true;
	}
	return epoll_wait(fd, ev, n, (int)sv_min((wait + 999999) / 1000000, 60000ull));
}

static uint64_t blocked_due = UINT64_MAX;

uint64_t sv_loop_due(void)
{
	return sv_min(blocked_due, timers_next());
}

static void turn(uint64_t due)
{
	struct retired *dead = graveyard_take();
	struct epoll_event ev[64];
	int n;

	/* Nothing in the kernel's ready list or in a batch names these any more. */
	graveyard_free(dead);
	n = loop_wait(ev, 64, due);
	(void)atomic_load(&source_gen);
	for (int i = 0; i < n; i++) {
		struct sv_source *s = ev[i].data.ptr;

		pthread_mutex_lock(&sv_fd_batch);
		s->ready(s, ev[i].events);
		pthread_mutex_unlock(&sv_fd_batch);
	}
	timers_run();
	blocked_due = blocked_run();
}

void sv_loop_run(void)
{
	turn(0);
}

int sv_loop_fd(void)
{
	return __atomic_load_n(&sv_proc.ep_fd, __ATOMIC_RELAXED);
}

static _Atomic bool owned; /* by a thread of the caller's */
static pthread_t own_thread;

bool sv_loop_self(void)
{
	return sv_load(&owned) && on_loop;
}

static void *loop(void *arg)
{
	on_loop = true;
	while (!sv_load(&owned))
		turn(sv_loop_due());
	return NULL;
}

void sv_loop_own(void)
{
	if (!sv_started() || atomic_exchange(&owned, true))
		return;
	sv_thread_wake();
	pthread_join(own_thread, NULL);
	on_loop = true;
}

void sv_loop_lend(int on)
{
	on_loop = on;
}

void sv_loop_reset(void)
{
	on_loop = false;
}

void sv_loop_let_go(void)
{
	if (sv_loop_self())
		blocked_due = blocked_run();
	else
		sv_thread_wake();
}

/* ------------------------------------------------------------------ locks */

static inline void sv_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

void sv_lock_wait(struct sv_lock *l)
{
	for (int i = 0; i < 50; i++) {
		uint32_t free = 0;

		if (!sv_load(&l->v) && atomic_compare_exchange_strong(&l->v, &free, 1))
			return;
		sv_pause();
	}
	while (atomic_exchange(&l->v, 2))
		syscall(SYS_futex, &l->v, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

void sv_lock_wake(struct sv_lock *l)
{
	syscall(SYS_futex, &l->v, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int sv_thread_start(void)
{
	sigset_t all, old;
	int ret;

	pthread_mutex_init(&timer_lock, NULL);
	timers = NULL;
	blocked = NULL;
	blocked_due = UINT64_MAX;
	graveyard = NULL;
	sv_proc.ep_fd = sv_fd_new(epoll_create1(EPOLL_CLOEXEC));
	if (sv_proc.ep_fd < 0)
		return errno;
	sv_fd_slot(sv_proc.ep_fd, (_Atomic int *)&sv_proc.ep_fd, 0);
	kick_source.fd = sv_proc.kick_fd;
	kick_source.ready = kick_ready;
	ret = sv_source_add(&kick_source, EPOLLIN);
	if (ret)
		return ret;
	sv_store(&owned, false);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(&own_thread, NULL, loop, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return ret;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The process: its segment, its descriptors, fork.
 */
#include "soft.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>

static _Atomic uint32_t no_pid;

struct sv_proc sv_proc = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .pid = &no_pid, .seg_fd = -1, .data_fd = -1, .kick_fd = -1, .ep_fd = -1};

uint64_t sv_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

/* ------------------------------------------------------------------ event queues */

int sv_evq_init(struct sv_evq *q, _Atomic int *user)
{
	pthread_mutex_init(&q->lock, NULL);
	q->head = NULL;
	q->tail = &q->head;
	q->fd = sv_fd_new(eventfd(0, EFD_CLOEXEC));
	if (q->fd < 0)
		return errno;
	sv_fd_slot(q->fd, (_Atomic int *)&q->fd, 0);
	sv_fd_slot(q->fd, user, 0);
	sv_fd_user(q->fd);
	return 0;
}

void sv_evq_fini(struct sv_evq *q)
{
	sv_fd_close(q->fd);
	q->fd = -1;
	pthread_mutex_destroy(&q->lock);
}

static void evq_raise(struct sv_evq *q)
{
	q->raised = true;
	sv_fd_raise(q->fd);
}

/* The user may have left the descriptor blocking: never read it unless it is known to be readable. */
static void evq_lower(struct sv_evq *q)
{
	uint64_t count;
	struct iovec iov = {&count, sizeof(count)};

	if (!q->raised)
		return;
	q->raised = false;
	if (preadv2(q->fd, &iov, 1, -1, RWF_NOWAIT) < 0) {
		/* EAGAIN: the counter was zero already. */
	}
}

void sv_evq_push(struct sv_evq *q, struct sv_event *e)
{
	pthread_mutex_lock(&q->lock);
	e->next = NULL;
	if (!q->head && !(q->quiet && sv_loop_self()))
		evq_raise(q);
	*q->tail = e;
	q->tail = &e->next;
	pthread_mutex_unlock(&q->lock);
}

bool sv_evq_pending(struct sv_evq *q)
{
	bool pending;

	pthread_mutex_lock(&q->lock);
	pending = q->head != NULL;
	pthread_mutex_unlock(&q->lock);
	return pending;
}

struct sv_event *sv_evq_get(struct sv_evq *q)
{
	bool lowered = false;
	uint64_t count;

	for (;;) {
		struct sv_event *e;

		pthread_mutex_lock(&q->lock);
		e = q->head;
		if (e) {
			q->head = e->next;
			if (!q->head) {
				q->tail = &q->head;
				evq_lower(q);
			} else if (lowered) {
				evq_raise(q); /* by the read below, for all that have come since */
			}
			if (q->taken)
				q->taken(e);
		}
		pthread_mutex_unlock(&q->lock);
		if (e)
			return e;
		if (read(q->fd, &count, sizeof(count)) < 0)
			return NULL;
		lowered = true;
	}
}

void sv_evq_purge(struct sv_evq *q, bool (*match)(struct sv_event *, void *), void *arg,
		  void (*drop)(struct sv_event *))
{
	struct sv_event **pp = &q->head, *gone = NULL, *e;

	pthread_mutex_lock(&q->lock);
	while ((e = *pp)) {
		if (match(e, arg)) {
			*pp = e->next;
			e->next = gone;
			gone = e;
		} else {
			pp = &e->next;
		}
	}
	q->tail = pp;
	if (!q->head && gone)
		evq_lower(q);
	pthread_mutex_unlock(&q->lock);
	while ((e = gone)) {
		gone = e->next;
		drop(e);
	}
}

/* ------------------------------------------------------------------ start */

static void *shared_map(const char *name, uint64_t size, int *fd)
{
	void *p;
	int ret;

	*fd = sv_fd_new(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (*fd < 0)
		return NULL;
	sv_fd_slot(*fd, (_Atomic int *)fd, 0);
	do
		ret = ftruncate(*fd, (off_t)size);
	while (ret && errno == EINTR);
	if (ret || fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		goto fail;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
	if (p == MAP_FAILED)
		goto fail;
	madvise(p, size, MADV_DONTFORK);
	madvise(p, size, MADV_DONTDUMP);
	return p;
fail:
	sv_fd_close(*fd);
	*fd = -1;
	return NULL;
}

static int proc_alloc(void)
{
	sv_proc.qps = calloc(SV_MAX_QP, sizeof(*sv_proc.qps));
	sv_proc.cqs = calloc(SV_MAX_CQ, sizeof(*sv_proc.cqs));
	sv_proc.chans = calloc(SV_MAX_CHAN, sizeof(*sv_proc.chans));
	sv_proc.qp_used = calloc(SV_MAX_QP, 1);
	if (!sv_proc.qps || !sv_proc.cqs || !sv_proc.chans || !sv_proc.qp_used)
		return ENOMEM;
	sv_proc.seg = shared_map("vkrdma-soft-segment", SV_SEG_SIZE, &sv_proc.seg_fd);
	if (!sv_proc.seg)
		return errno;
	sv_proc.data = shared_map("vkrdma-soft-data", SV_DATA_SIZE, &sv_proc.data_fd);
	if (!sv_proc.data)
		return errno;
	sv_proc.seg->magic = SV_SEG_MAGIC;
	sv_proc.seg->version = SV_SEG_VERSION;
	sv_proc.seg->pid = getpid();
	return 0;
}

static void proc_unwind(void)
{
	if (sv_proc.seg)
		munmap(sv_proc.seg, SV_SEG_SIZE);
	if (sv_proc.data)
		munmap(sv_proc.data, SV_DATA_SIZE);
	sv_fd_close(sv_proc.seg_fd);
	sv_fd_close(sv_proc.data_fd);
	sv_proc.seg_fd = sv_proc.data_fd = -1;
	sv_proc.seg = NULL;
	sv_proc.data = NULL;
	free(sv_proc.qps);
	free(sv_proc.cqs);
	free(sv_proc.chans);
	free(sv_proc.qp_used);
}

/*
 * No lock is taken before a fork: whoever uses softverbs may hold locks of its own around our calls, and its prepare
 * handler waits for those. The child makes all of it anew instead.
 *
 * The child has none of the mappings (MADV_DONTFORK) and no thread. What the parent's objects hold on the heap is left
 * alone: they belong to whoever made them, and every verb on them fails because of the process number.
 */
static void fork_child(void)
{
	pthread_mutex_init(&sv_proc.lock, NULL);
	sv_fd_fork_child();
	sv_cm_reset();
	sv_mr_reset();
	sv_ring_reset();
	sv_srq_reset();
	sv_loop_reset();
	sv_ctx_reset();
	sv_proc.seg_fd = sv_proc.data_fd = sv_proc.kick_fd = sv_proc.ep_fd = -1;
	sv_proc.seg = NULL;
	sv_proc.data = NULL;
	sv_proc.peers = NULL;
	sv_proc.ctxs = NULL;
	sv_proc.qp_hint = sv_proc.cq_hint = sv_proc.chan_hint = sv_proc.mr_hint = sv_proc.srq_hint = 0;
	sv_proc.link_down = SV_LINK_UP;
	sv_proc.ready = false;
	sv_store(sv_load_acq(&sv_proc.pid), 0);
}

bool sv_started(void)
{
	return sv_load_acq(sv_load_acq(&sv_proc.pid)) == (uint32_t)getpid();
}

static int pid_page(void)
{
	void *p;

	if (sv_load(&sv_proc.pid) != &no_pid)
		return 0;
	p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return errno;
	madvise(p, 4096, MADV_WIPEONFORK);
	sv_store_rel(&sv_proc.pid, p);
	return 0;
}

int sv_start(void)
{
	static bool handlers;
	int ret = 0;

	if (sv_started())
		return 0;
	/* A child that was made without fork handlers, by _Fork() or clone(), catches up. */
	if (sv_proc.ready && !sv_load(sv_load_acq(&sv_proc.pid)))
		fork_child();
	pthread_mutex_lock(&sv_proc.lock);
	if (sv_started())
		goto out;
	ret = pid_page();
	if (ret)
		goto out;
	if (!handlers)
		handlers = !pthread_atfork(NULL, NULL, fork_child);
	ret = proc_alloc();
	if (ret)
		goto unwind;
	sv_proc.kick_fd = sv_fd_new(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (sv_proc.kick_fd < 0) {
		ret = errno;
		goto unwind;
	}
	sv_fd_slot(sv_proc.kick_fd, (_Atomic int *)&sv_proc.kick_fd, 0);
	ret = sv_thread_start();
	if (ret)
		goto unwind;
	sv_fault_start();
	/* In this order: who finds `ready` without a number is a child without handlers. */
	sv_store_rel(sv_load_acq(&sv_proc.pid), (uint32_t)getpid());
	sv_proc.ready = true;
	goto out;
unwind:
	sv_fd_close(sv_proc.kick_fd);
	sv_proc.kick_fd = -1;
	proc_unwind();
out:
	pthread_mutex_unlock(&sv_proc.lock);
	return ret;
}

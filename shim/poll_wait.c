/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Waiting outside epoll: poll, select, and the blocking calls on one socket. A waiter has an eventfd from a pool; its
 * watches on the pollables write it, and the kernel's ppoll sleeps on it, on the engine's completion channels and on
 * the kernel's own descriptors.
 *
 * Lost wake-ups: the waiter announces its sleep (asleep), then looks at the ready masks; a watch that fires comes after
 * the mask was stored, and looks at asleep. With a full fence between the two on both sides, one of them sees the
 * other.
 */
#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_raw.h"
#include "libc_real.h"
#include "nofile.h"
#include "pump.h"
#include "scratch.h"
#include "sock.h"
#include "socket.h"
#include "spin.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEAF_NS 1000000 /* how long a waiter without an eventfd sleeps at a time */

struct waiter {
	struct waiter *next;
	int efd; /* -1: none could be had, and the wait looks again every now and then */
	_Atomic bool asleep, signaled;
};

struct wait_watch {
	struct vkr_watch watch;
	struct waiter *waiter;
	uint32_t want;
};

/* ------------------------------------------------------------------ the pool */

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct waiter *pool;

void vkr_wait_forked(void)
{
	pthread_mutex_init(&pool_lock, NULL);
	pool = NULL; /* the parent's eventfds */
	vkr_spin_forked();
}

static struct waiter *waiter_get(void)
{
	struct waiter *w;

	pthread_mutex_lock(&pool_lock);
	w = pool;
	if (w)
		pool = w->next;
	pthread_mutex_unlock(&pool_lock);
	if (w && w->efd >= 0)
		return w;
	if (!w)
		w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->efd = vkr_guard_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (w->efd >= 0)
		vkr_guard_slot(w->efd, &w->efd);
	/* A wake-up that it had without one was never read. */
	vkr_store(&w->signaled, false);
	return w;
}

static void waiter_put(struct waiter *w)
{
	pthread_mutex_lock(&pool_lock);
	w->next = pool;
	pool = w;
	pthread_mutex_unlock(&pool_lock);
}

static bool waiter_fire(struct vkr_watch *watch, uint32_t edge)
{
	struct wait_watch *ww = vkr_container_of(watch, struct wait_watch, watch);

	if (!(vkr_ready_bits(edge) & (ww->want | EPOLLERR | EPOLLHUP | VKR_EDGE_STATE)))
		return false;
	atomic_thread_fence(memory_order_seq_cst);
	return vkr_load(&ww->waiter->asleep);
}

static void waiter_wake(struct vkr_watch *watch)
{
	struct wait_watch *ww = vkr_container_of(watch, struct wait_watch, watch);
	uint64_t one = 1;

	if (!atomic_exchange(&ww->waiter->signaled, true))
		VKR_RAW(SYS_write, ww->waiter->efd, &one, sizeof(one)); /* no cancellation point: locks are held */
}

static void watch_start(struct wait_watch *ww, struct vkr_pollable *p, struct waiter *w, uint32_t want)
{
	ww->watch.fire = waiter_fire;
	ww->watch.wake = waiter_wake;
	ww->waiter = w;
	ww->want = want;
	vkr_watch_add(p, &ww->watch);
}

/* ------------------------------------------------------------------ sleeping */

/* Descriptors of ours behind the caller's n in fds (room for VKR_MAX_DEVICES + 1). Returns the new number. */
static nfds_t add_own(struct pollfd *fds, nfds_t n, struct waiter *w)
{
	int engine[VKR_MAX_DEVICES], k = vkr_engine_fds(engine), i;

	fds[n++] = (struct pollfd){.fd = w->efd, .events = POLLIN};
	for (i = 0; i < k; i++)
		fds[n++] = (struct pollfd){.fd = engine[i], .events = POLLIN};
	return n;
}

static void handle_own(struct pollfd *fds, nfds_t from, nfds_t to, struct waiter *w)
{
	uint64_t n;

	if (fds[from].revents && VKR_RAW(SYS_read, w->efd, &n, sizeof(n)) == sizeof(n))
		vkr_store(&w->signaled, false);
	for (from++; from < to; from++)
		if (fds[from].revents)
			vkr_engine_event(fds[from].fd);
}

/*
 * ppoll over the caller's n descriptors and ours, unless ready(arg) turns true at the last look. Returns what ppoll
 * returned for the caller's descriptors, or -errno. left in ns, negative: for ever.
 */
static void sleep_over(struct waiter **w)
{
	vkr_store(&(*w)->asleep, false);
	vkr_engine_sleep_end();
}

static int sleep_kernel(struct waiter *w, struct pollfd *fds, nfds_t n, nfds_t *all, int64_t left, const sigset_t *mask,
			bool (*ready)(void *arg), void *arg)
{
	VKR_CLEANUP(sleep_over) struct waiter *asleep = w;
	struct timespec ts;
	int r;

	if (vkr_unlikely(w->efd < 0))
		left = left < 0 ? DEAF_NS : vkr_min(left, (int64_t)DEAF_NS);
	ts = (struct timespec){left / 1000000000, left % 1000000000};
	vkr_engine_sleep_begin();
	vkr_store(&w->asleep, true);
	atomic_thread_fence(memory_order_seq_cst);
	*all = add_own(fds, n, w);
	if (ready(arg))
		return 0;
	r = vkr_real.ppoll(fds, *all, left < 0 ? NULL : &ts, mask);
	return r < 0 ? -errno : r;
}

static int sleep_on(struct waiter *w, struct pollfd *fds, nfds_t n, int64_t left, const sigset_t *mask,
		    bool (*ready)(void *arg), void *arg)
{
	nfds_t all, i;
	int r = sleep_kernel(w, fds, n, &all, left, mask, ready, arg), count = 0;

	if (r > 0) {
		vkr_count(&vkr_stats->wakeups, 1);
		for (i = 0; i < n; i++)
			count += fds[i].revents != 0;
		handle_own(fds, n, all, w);
		return count;
	}
	for (i = 0; i < n; i++)
		fds[i].revents = 0;
	return r;
}

static int64_t left_until(int64_t deadline)
{
	return deadline < 0 ? -1 : vkr_max(deadline - vkr_now_ns(), 0);
}

/* ------------------------------------------------------------------ signals */

static _Atomic uint64_t handlers_without_restart;

void vkr_signal_note(int sig, bool has_handler, bool restart)
{
	uint64_t bit;

	if (sig < 1 || sig > 64)
		return;
	bit = 1ull << (sig - 1);
	if (has_handler && !restart)
		atomic_fetch_or(&handlers_without_restart, bit);
	else
		atomic_fetch_and(&handlers_without_restart, ~bit);
}

/*
 * ppoll ends with EINTR whatever the handler's flags. A blocking call without a time-out goes on after SA_RESTART
 * handlers (signal(7)); which signal it was cannot be seen, so it goes on when every handler has the flag.
 */
static bool restarts(void)
{
	return !vkr_load(&handlers_without_restart);
}

/* ------------------------------------------------------------------ one socket */

struct one {
	struct vkr_pollable *p;
	uint32_t want;
	struct vkr_stream *connecting;
	struct vkr_stream *more; /* IN counts only with more bytes than inq */
	size_t inq;
};

static bool one_ready(void *arg)
{
	struct one *o = arg;

	if (o->connecting && vkr_stream_state(o->connecting) != VKR_STREAM_CONNECTING)
		return true;
	if (o->more && vkr_stream_inq(o->more) > o->inq)
		return true;
	/* What a reader waits for may come by another way from now on. */
	return o->p && vkr_ready_bits(vkr_pollable_ready(o->p)) &
			   (o->want | (o->want & EPOLLIN || o->more ? VKR_EDGE_STATE : 0));
}

struct one_watch {
	struct wait_watch ww;
	struct vkr_pollable *p;
	struct waiter *w;
};

static void one_done(struct one_watch *ow)
{
	if (ow->p)
		vkr_watch_del(ow->p, &ow->ww.watch);
	if (ow->w)
		waiter_put(ow->w);
}

static int wait_one(struct one *o, int64_t deadline, int fd, int other)
{
	struct pollfd fds[VKR_MAX_DEVICES + 3];
	VKR_CLEANUP(one_done) struct one_watch ow = {.p = NULL};
	struct vkr_spin spin = {0};
	int64_t left = deadline ? left_until(deadline) : -1;
	int r;

	vkr_engine_poll();
	if (one_ready(o))
		return 0;
	if (vkr_spin(&spin, one_ready, o, left)) {
		vkr_spin_done(&spin, true);
		return 0;
	}
	ow.w = waiter_get();
	if (!ow.w)
		return -ENOMEM;
	if (o->p)
		watch_start(&ow.ww, o->p, ow.w, o->want | (o->more ? EPOLLIN : 0));
	ow.p = o->p;
	for (;;) {
		vkr_engine_poll();
		if (one_ready(o)) {
			vkr_spin_done(&spin, true);
			return 0;
		}
		left = deadline ? left_until(deadline) : -1;
		if (!left)
			return -EAGAIN;
		fds[0] = (struct pollfd){.fd = fd, .events = POLLIN};
		fds[1] = (struct pollfd){.fd = other, .events = POLLIN};
		r = sleep_on(ow.w, fds, 2, left, NULL, one_ready, o);
		if (r > 0)
			return 0;
		if (r < 0 && !(r == -EINTR && !deadline && restarts()))
			return r;
	}
}

int vkr_wait(struct vkr_pollable *p, uint32_t want, int64_t deadline, int fd, int other)
{
	struct one o = {.p = p, .want = want};

	return wait_one(&o, deadline, fd, other);
}

int vkr_wait_more(struct vkr_stream *s, size_t n, int64_t deadline)
{
	struct one o = {.p = vkr_stream_pollable(s), .want = EPOLLRDHUP | EPOLLERR | EPOLLHUP, .more = s, .inq = n};

	return wait_one(&o, deadline, -1, -1);
}

int vkr_wait_connect(struct vkr_stream *s, int64_t deadline)
{
	struct one o = {.p = vkr_stream_pollable(s), .want = EPOLLOUT, .connecting = s};

	return wait_one(&o, deadline, -1, -1);
}

/* ------------------------------------------------------------------ poll */

struct poll_entry {
	struct vkr_file *file; /* held */
	struct vkr_pollable *watched;
	struct wait_watch ww;
	nfds_t index;
};

struct poll_call {
	struct pollfd *fds, *kernel; /* the caller's; what the kernel is asked about, with room for our own behind it */
	nfds_t n;                    /* in kernel the heirs' ends of listeners follow, one for each entry */
	struct poll_entry *entries;
	nfds_t n_entries;
	struct waiter *waiter;
};

/* A set that holds nothing of ours may come to do so while we sleep. */
static struct vkr_pollable *watchable(struct vkr_file *f)
{
	return f->kind == VKR_KIND_EPOLL ? &((struct vkr_epset *)f)->poll : vkr_file_pollable(f);
}

static bool is_user(struct vkr_file *f, int fd)
{
	vkr_pair_heir(f, fd);
	return vkr_is_heir(f) || (!vkr_file_inherited(f) && watchable(f));
}

/* How many descriptors concern us. */
static nfds_t count_user(const struct pollfd *fds, nfds_t n)
{
	struct vkr_file *f;
	nfds_t i, count = 0;

	for (i = 0; i < n; i++) {
		f = fds[i].fd < 0 ? NULL : vkr_file_get(fds[i].fd);
		if (!f)
			continue;
		count += is_user(f, fds[i].fd);
		vkr_file_put(f);
	}
	return count;
}

static void call_setup(struct poll_call *c, nfds_t max_entries)
{
	struct poll_entry *e;
	struct vkr_file *f;
	nfds_t i;

	for (i = 0; i < c->n; i++) {
		c->kernel[i] = c->fds[i];
		c->kernel[i].revents = 0;
		f = c->fds[i].fd < 0 ? NULL : vkr_file_get(c->fds[i].fd);
		if (f && is_user(f, c->fds[i].fd) && c->n_entries < max_entries) {
			e = &c->entries[c->n_entries++];
			memset(e, 0, sizeof(*e));
			e->file = f;
			e->index = i;
			c->kernel[c->n + c->n_entries - 1] = (struct pollfd){.fd = -1};
			continue;
		}
		if (f)
			vkr_file_put(f);
	}
}

static struct pollfd *heir_of(struct poll_call *c, struct poll_entry *e)
{
	return &c->kernel[c->n + (nfds_t)(e - c->entries)];
}

/* Looks at one descriptor of ours: what user space knows of it, and whether the kernel is to be asked too. */
static short entry_look(struct poll_call *c, struct poll_entry *e)
{
	struct pollfd *k = &c->kernel[e->index];
	short events = c->fds[e->index].events;
	enum vkr_sock_state state;

	if (vkr_unlikely(vkr_is_shared(e->file))) {
		heir_of(c, e)->fd = events & (POLLIN | POLLRDNORM) ? vkr_heir_wait_fd((struct vkr_sock *)e->file) : -1;
		heir_of(c, e)->events = POLLIN;
	} else if (e->file->kind == VKR_KIND_SOCK) {
		heir_of(c, e)->fd = -1;
		state = vkr_sock_settle((struct vkr_sock *)e->file);
		k->fd = state == VKR_SOCK_CARRIED || state == VKR_SOCK_CONNECTING ? -1 : c->fds[e->index].fd;
		if (state == VKR_SOCK_TCP || state == VKR_SOCK_FINAL)
			return vkr_load(&((struct vkr_sock *)e->file)->error) ? POLLERR | POLLHUP | (events & POLLOUT)
									      : 0;
	}
	return (short)(vkr_file_ready(e->file) & ((uint32_t)events | POLLERR | POLLHUP));
}

/* Looks at all: which of them the kernel is asked about follows from it. */
static bool call_ready(void *arg)
{
	struct poll_call *c = arg;
	bool any = false;
	nfds_t i;

	for (i = 0; i < c->n_entries; i++)
		any |= entry_look(c, &c->entries[i]) != 0;
	return any;
}

/* Both halves into the caller's revents; how many are not zero. */
static int call_result(struct poll_call *c)
{
	struct poll_entry *e;
	int count = 0;
	nfds_t i;

	for (i = 0; i < c->n; i++)
		c->fds[i].revents = c->kernel[i].fd >= 0 ? c->kernel[i].revents : 0;
	for (i = 0; i < c->n_entries; i++) {
		e = &c->entries[i];
		/* A set is readable to the kernel when a marker of ours is. */
		if (e->file->kind == VKR_KIND_EPOLL && c->fds[e->index].revents & (POLLIN | POLLRDNORM) &&
		    !vkr_epset_ready((struct vkr_epset *)e->file))
			c->fds[e->index].revents = 0;
		if (heir_of(c, e)->fd >= 0 && heir_of(c, e)->revents) /* a connection, or the owner has gone */
			c->fds[e->index].revents |= c->fds[e->index].events & (POLLIN | POLLRDNORM);
		c->fds[e->index].revents |= entry_look(c, e);
	}
	for (i = 0; i < c->n; i++)
		count += c->fds[i].revents != 0;
	return count;
}

static int watch_all(struct poll_call *c)
{
	struct poll_entry *e;
	nfds_t i;

	c->waiter = waiter_get();
	if (!c->waiter)
		return -ENOMEM;
	for (i = 0; i < c->n_entries; i++) {
		e = &c->entries[i];
		e->watched = watchable(e->file);
		if (e->watched)
			watch_start(&e->ww, e->watched, c->waiter, (uint32_t)(uint16_t)c->fds[e->index].events);
	}
	return 0;
}

static int call_sleep(struct poll_call *c, int64_t deadline, const sigset_t *mask)
{
	int64_t left;
	int r = watch_all(c);

	while (!r) {
		left = left_until(deadline);
		r = sleep_on(c->waiter, c->kernel, c->n + c->n_entries, left, mask, call_ready, c);
		if (r < 0)
			break;
		vkr_engine_poll();
		r = call_result(c);
		if (!left)
			break;
	}
	return r;
}

static bool none_of_kernel(const struct poll_call *c)
{
	nfds_t i;

	for (i = 0; i < c->n; i++)
		if (c->kernel[i].fd >= 0)
			return false;
	return true;
}

static int call_run(struct poll_call *c, int64_t deadline, const sigset_t *mask)
{
	struct vkr_spin spin = {0};
	bool ready;
	int r;

	vkr_engine_poll();
	ready = call_ready(c);
	if (!ready && deadline)
		ready = vkr_spin(&spin, call_ready, c, left_until(deadline));
	if (ready || !deadline) {
		/* Everything that is ready belongs in the answer, the kernel's descriptors too. */
		r = ready && none_of_kernel(c) ? 0
					       : vkr_real.ppoll(c->kernel, c->n + c->n_entries,
								&(struct timespec){0, 0}, deadline ? NULL : mask);
		if (r < 0 && !ready)
			return -errno;
		r = call_result(c);
		if (r || !deadline) {
			vkr_spin_done(&spin, true);
			return r;
		}
	}
	r = call_sleep(c, deadline, mask);
	if (r > 0)
		vkr_spin_done(&spin, call_ready(c));
	return r;
}

#define SMALL         32
#define SMALL_ENTRIES 8

struct poll_room {
	struct poll_call c;
	void *taken; /* lists that are longer */
	size_t size;
	struct pollfd fds[SMALL + SMALL_ENTRIES + VKR_MAX_DEVICES + 1];
	struct poll_entry entries[SMALL_ENTRIES];
};

static void call_done(struct poll_room *room)
{
	struct poll_call *c = &room->c;
	nfds_t i;

	for (i = 0; i < c->n_entries; i++) {
		if (c->entries[i].watched)
			vkr_watch_del(c->entries[i].watched, &c->entries[i].ww.watch);
		vkr_file_put(c->entries[i].file);
	}
	if (c->waiter)
		waiter_put(c->waiter);
	vkr_scratch_give(room->taken, room->size);
}

/* Enough for a call on n descriptors, whatever they are. */
static size_t room_size(nfds_t n)
{
	return (2 * n + VKR_MAX_DEVICES + 1) * sizeof(struct pollfd) + n * sizeof(struct poll_entry);
}

/* deadline: ns, 0 do not wait, -1 for ever; mem: room_size(n), or NULL. VKR_PASS: nothing of ours is among them. */
static int poll_until(struct pollfd *fds, nfds_t n, int64_t deadline, const sigset_t *mask, void *mem)
{
	nfds_t users = count_user(fds, n);
	VKR_CLEANUP(call_done) struct poll_room room;
	struct poll_call *c = &room.c;

	*c = (struct poll_call){.fds = fds, .kernel = room.fds, .n = n, .entries = room.entries};
	room.taken = NULL;
	if (!users)
		return VKR_PASS;
	if (n > SMALL || users > SMALL_ENTRIES) {
		room.size = room_size(n);
		if (!mem)
			mem = room.taken = vkr_scratch_take(room.size);
		if (!mem)
			return -ENOMEM;
		c->entries = mem;
		c->kernel = (struct pollfd *)(c->entries + n);
	}
	call_setup(c, users);
	return call_run(c, deadline, mask);
}

static bool bad_timeout(const struct timespec *t)
{
	return t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999);
}

static int64_t deadline_from(const struct timespec *t)
{
	if (!t || t->tv_sec > 1000000000)
		return -1;
	if (!t->tv_sec && !t->tv_nsec)
		return 0;
	return vkr_now_ns() + t->tv_sec * 1000000000ll + t->tv_nsec;
}

/* The kernel refuses more entries than RLIMIT_NOFILE before it looks at one; the limit is the application's own. */
static bool too_many(nfds_t n)
{
	rlim_t app = vkr_limits_app();
	struct rlimit rl;

	if (app != RLIM_INFINITY || n <= 1024)
		return n > app;
	return vkr_real.getrlimit(RLIMIT_NOFILE, &rl) < 0 || n > rl.rlim_cur;
}

int vkr_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (!n || !vkr_polls_concern_us() || bad_timeout(timeout))
		return VKR_PASS;
	if (too_many(n))
		return -EINVAL;
	if (vkr_bad_pointer(fds, n * sizeof(*fds)))
		return VKR_PASS;
	vkr_fork_check();
	return poll_until(fds, n, deadline_from(timeout), mask, NULL);
}

/* ------------------------------------------------------------------ select */

#define SELECT_IN  (POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define SELECT_OUT (POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)

/* The sets are as long as n, not FD_SETSIZE: programs do use more. */
static bool bit_test(const fd_set *set, int fd)
{
	return set && ((const unsigned long *)set)[fd / 64] >> (fd % 64) & 1;
}

static void bit_put(fd_set *set, int fd, bool on)
{
	if (on)
		((unsigned long *)set)[fd / 64] |= 1ul << (fd % 64);
}

static nfds_t select_count(int n, const fd_set *r, const fd_set *w, const fd_set *e)
{
	const unsigned long *in = (const unsigned long *)r, *out = (const unsigned long *)w,
			    *ex = (const unsigned long *)e;
	unsigned long bits;
	nfds_t count = 0;

	for (int i = 0; i < n; i += 64) {
		bits = (in ? in[i / 64] : 0) | (out ? out[i / 64] : 0) | (ex ? ex[i / 64] : 0);
		if (n - i < 64)
			bits &= (1ul << (n - i)) - 1;
		count += (nfds_t)__builtin_popcountl(bits);
	}
	return count;
}

static void select_to_poll(int n, const fd_set *r, const fd_set *w, const fd_set *e, struct pollfd *out)
{
	short events;
	int fd;

	for (fd = 0; fd < n; fd++) {
		events = (short)((bit_test(r, fd) ? POLLIN | POLLRDNORM | POLLRDBAND : 0) |
				 (bit_test(w, fd) ? POLLOUT | POLLWRNORM | POLLWRBAND : 0) |
				 (bit_test(e, fd) ? POLLPRI : 0));
		if (events)
			*out++ = (struct pollfd){.fd = fd, .events = events};
	}
}

/* The kernel writes whole longs, so bits above n in the last one are cleared with the rest. */
static void select_clear(int n, fd_set *set)
{
	if (set)
		memset(set, 0, ((size_t)n + 63) / 64 * 8);
}

static int select_result(int n, fd_set *r, fd_set *w, fd_set *e, const struct pollfd *fds, nfds_t count)
{
	int total = 0;
	nfds_t i;

	select_clear(n, r);
	select_clear(n, w);
	select_clear(n, e);
	for (i = 0; i < count; i++) {
		bool in = fds[i].events & POLLIN && fds[i].revents & SELECT_IN;
		bool out = fds[i].events & POLLOUT && fds[i].revents & SELECT_OUT;
		bool ex = fds[i].events & POLLPRI && fds[i].revents & POLLPRI;

		bit_put(r, fds[i].fd, in);
		bit_put(w, fds[i].fd, out);
		bit_put(e, fds[i].fd, ex);
		total += in + out + ex;
	}
	return total;
}

struct select_room {
	void *taken;
	size_t size;
	struct pollfd small[SMALL];
};

static void select_done(struct select_room *room)
{
	vkr_scratch_give(room->taken, room->size);
}

#define FDS_MAX (1 << 20)

static bool bad_set(int n, const fd_set *set)
{
	return set && vkr_bad_pointer(set, ((size_t)n + 7) / 8);
}

int vkr_select(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask,
	       struct timespec *left)
{
	VKR_CLEANUP(select_done) struct select_room room;
	struct pollfd *fds = room.small;
	void *mem = NULL;
	nfds_t count, i;
	int64_t deadline, remains;
	int ret;

	room.taken = NULL;
	if (n <= 0 || n > FDS_MAX || (!r && !w && !e) || bad_timeout(timeout) || !vkr_polls_concern_us() ||
	    bad_set(n, r) || bad_set(n, w) || bad_set(n, e))
		return VKR_PASS;
	vkr_fork_check();
	count = select_count(n, r, w, e);
	if (count > SMALL) {
		room.size = room_size(count) + count * sizeof(*fds);
		mem = room.taken = vkr_scratch_take(room.size);
		if (!mem)
			return -ENOMEM;
		fds = (struct pollfd *)((char *)mem + room_size(count));
	}
	select_to_poll(n, r, w, e, fds);
	deadline = deadline_from(timeout);
	ret = poll_until(fds, count, deadline, mask, mem);
	for (i = 0; ret > 0 && i < count; i++)
		if (fds[i].revents & POLLNVAL)
			ret = -EBADF;
	if (ret >= 0)
		ret = select_result(n, r, w, e, fds, count);
	if (left && ret != VKR_PASS && deadline >= 0) {
		remains = deadline ? left_until(deadline) : 0;
		left->tv_sec = remains / 1000000000;
		left->tv_nsec = remains % 1000000000;
	}
	return ret;
}

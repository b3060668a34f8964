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
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "sock.h"
#include "socket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct waiter {
	struct waiter *next;
	int efd;
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
}

static struct waiter *waiter_get(void)
{
	struct waiter *w;

	pthread_mutex_lock(&pool_lock);
	w = pool;
	if (w)
		pool = w->next;
	pthread_mutex_unlock(&pool_lock);
	if (w)
		return w;
	w = calloc(1, sizeof(*w));
	if (!w)
		return NULL;
	w->efd = vkr_guard_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (w->efd < 0) {
		free(w);
		return NULL;
	}
	vkr_guard_slot(w->efd, &w->efd);
	return w;
}

static void waiter_put(struct waiter *w)
{
	pthread_mutex_lock(&pool_lock);
	w->next = pool;
	pool = w;
	pthread_mutex_unlock(&pool_lock);
}

static void waiter_fire(struct vkr_watch *watch, uint32_t edge)
{
	struct wait_watch *ww = vkr_container_of(watch, struct wait_watch, watch);
	uint64_t one = 1;

	if (!(vkr_ready_bits(edge) & (ww->want | EPOLLERR | EPOLLHUP | VKR_EDGE_STATE)))
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (vkr_load(&ww->waiter->asleep) && !atomic_exchange(&ww->waiter->signaled, true))
		(void)!vkr_real.write(ww->waiter->efd, &one, sizeof(one));
}

static void watch_start(struct wait_watch *ww, struct vkr_pollable *p, struct waiter *w, uint32_t want)
{
	ww->watch.fire = waiter_fire;
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

	if (fds[from].revents && vkr_real.read(w->efd, &n, sizeof(n)) == sizeof(n))
		vkr_store(&w->signaled, false);
	for (from++; from < to; from++)
		if (fds[from].revents)
			vkr_engine_event(fds[from].fd);
}

/*
 * ppoll over the caller's n descriptors and ours, unless ready(arg) turns true at the last look. Returns what ppoll
 * returned for the caller's descriptors, or -errno. left in ns, negative: for ever.
 */
static int sleep_on(struct waiter *w, struct pollfd *fds, nfds_t n, int64_t left, const sigset_t *mask,
		    bool (*ready)(void *arg), void *arg)
{
	struct timespec ts = {left / 1000000000, left % 1000000000};
	nfds_t all, i;
	int r = 0, count = 0;

	vkr_engine_sleep_begin();
	vkr_store(&w->asleep, true);
	atomic_thread_fence(memory_order_seq_cst);
	all = add_own(fds, n, w);
	if (!ready(arg)) {
		r = vkr_real.ppoll(fds, all, left < 0 ? NULL : &ts, mask);
		r = r < 0 ? -errno : r;
	}
	vkr_store(&w->asleep, false);
	vkr_engine_sleep_end();
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
};

static bool one_ready(void *arg)
{
	struct one *o = arg;

	if (o->connecting && vkr_stream_state(o->connecting) != VKR_STREAM_CONNECTING)
		return true;
	return o->p && vkr_ready_bits(vkr_pollable_ready(o->p)) & o->want;
}

static int wait_one(struct one *o, int64_t deadline, int kernel_fd, short kernel_events)
{
	struct pollfd fds[VKR_MAX_DEVICES + 2];
	struct wait_watch ww;
	struct waiter *w;
	int64_t left;
	int r;

	vkr_engine_poll();
	if (one_ready(o))
		return 0;
	w = waiter_get();
	if (!w)
		return -ENOMEM;
	if (o->p)
		watch_start(&ww, o->p, w, o->want);
	for (;;) {
		vkr_engine_poll();
		r = 0;
		if (one_ready(o))
			break;
		left = deadline ? left_until(deadline) : -1;
		r = -EAGAIN;
		if (!left)
			break;
		fds[0] = (struct pollfd){.fd = kernel_fd, .events = kernel_events};
		r = sleep_on(w, fds, 1, left, NULL, one_ready, o);
		if (r > 0) {
			r = 0;
			break;
		}
		if (r < 0 && !(r == -EINTR && !deadline && restarts()))
			break;
	}
	if (o->p)
		vkr_watch_del(o->p, &ww.watch);
	waiter_put(w);
	return r;
}

int vkr_wait(struct vkr_pollable *p, uint32_t want, int64_t deadline, int kernel_fd, short kernel_events)
{
	struct one o = {.p = p, .want = want};

	return wait_one(&o, deadline, kernel_fd, kernel_events);
}

int vkr_wait_connect(struct vkr_stream *s, int64_t deadline)
{
	struct one o = {.p = vkr_stream_pollable(s), .want = EPOLLOUT, .connecting = s};

	return wait_one(&o, deadline, -1, 0);
}

/* ------------------------------------------------------------------ poll */

struct poll_entry {
	struct vkr_file *file; /* held */
	struct vkr_pollable *watched;
	struct wait_watch ww;
	nfds_t index;
};

struct poll_call {
	struct pollfd *fds, *kernel; /* the caller's; our copy for the kernel, with room for our own behind it */
	nfds_t n;
	struct poll_entry *entries;
	nfds_t n_entries, n_kernel;
};

static bool is_user(struct vkr_file *f)
{
	return !vkr_file_inherited(f) && vkr_file_pollable(f);
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
		count += is_user(f);
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
		if (f && is_user(f) && c->n_entries < max_entries) {
			e = &c->entries[c->n_entries++];
			memset(e, 0, sizeof(*e));
			e->file = f;
			e->index = i;
			continue;
		}
		if (f)
			vkr_file_put(f);
		c->n_kernel += c->fds[i].fd >= 0;
	}
}

/* Looks at one descriptor of ours: what user space knows of it, and whether the kernel is to be asked too. */
static short entry_look(struct poll_call *c, struct poll_entry *e)
{
	struct pollfd *k = &c->kernel[e->index];
	short events = c->fds[e->index].events;
	enum vkr_sock_state state;

	if (e->file->kind == VKR_KIND_SOCK) {
		state = vkr_sock_settle((struct vkr_sock *)e->file);
		k->fd = state == VKR_SOCK_CARRIED || state == VKR_SOCK_CONNECTING ? -1 : c->fds[e->index].fd;
		if (state == VKR_SOCK_TCP || state == VKR_SOCK_FINAL)
			return vkr_load(&((struct vkr_sock *)e->file)->error) ? POLLERR | POLLHUP | (events & POLLOUT)
									      : 0;
	}
	return (short)(vkr_file_ready(e->file) & ((uint32_t)events | POLLERR | POLLHUP));
}

static bool call_ready(void *arg)
{
	struct poll_call *c = arg;
	nfds_t i;

	for (i = 0; i < c->n_entries; i++)
		if (entry_look(c, &c->entries[i]))
			return true;
	return false;
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
		if (e->file->kind == VKR_KIND_EPOLL && c->fds[e->index].revents & POLLIN &&
		    !vkr_epset_ready((struct vkr_epset *)e->file))
			c->fds[e->index].revents = 0;
		c->fds[e->index].revents |= entry_look(c, e);
	}
	for (i = 0; i < c->n; i++)
		count += c->fds[i].revents != 0;
	return count;
}

static void watch_all(struct poll_call *c, struct waiter *w)
{
	struct poll_entry *e;
	nfds_t i;

	for (i = 0; i < c->n_entries; i++) {
		e = &c->entries[i];
		e->watched = vkr_file_pollable(e->file);
		if (e->watched)
			watch_start(&e->ww, e->watched, w, (uint32_t)(uint16_t)c->fds[e->index].events);
	}
}

static void unwatch_all(struct poll_call *c)
{
	nfds_t i;

	for (i = 0; i < c->n_entries; i++)
		if (c->entries[i].watched)
			vkr_watch_del(c->entries[i].watched, &c->entries[i].ww.watch);
}

static int call_sleep(struct poll_call *c, int64_t deadline, const sigset_t *mask)
{
	struct waiter *w = waiter_get();
	int64_t left;
	int r;

	if (!w)
		return -ENOMEM;
	watch_all(c, w);
	for (;;) {
		left = left_until(deadline);
		r = sleep_on(w, c->kernel, c->n, left, mask, call_ready, c);
		if (r < 0)
			break;
		vkr_engine_poll();
		r = call_result(c);
		if (r || !left)
			break;
	}
	unwatch_all(c);
	waiter_put(w);
	return r;
}

static int call_run(struct poll_call *c, int64_t deadline, const sigset_t *mask)
{
	bool ready;
	int r;

	vkr_engine_poll();
	ready = call_ready(c);
	if (ready || !deadline) {
		/* Everything that is ready belongs in the answer, the kernel's descriptors too. */
		r = vkr_real.ppoll(c->kernel, c->n, &(struct timespec){0, 0}, deadline ? NULL : mask);
		if (r < 0 && !ready)
			return -errno;
		r = call_result(c);
		if (r || !deadline)
			return r;
	}
	return call_sleep(c, deadline, mask);
}

#define SMALL 32

/* deadline: ns, 0 do not wait, -1 for ever. VKR_PASS: nothing of ours is among them. */
static int poll_until(struct pollfd *fds, nfds_t n, int64_t deadline, const sigset_t *mask)
{
	struct pollfd small_fds[SMALL + VKR_MAX_DEVICES + 1];
	struct poll_entry small_entries[8];
	nfds_t users = count_user(fds, n), i;
	struct poll_call c = {.fds = fds, .kernel = small_fds, .n = n, .entries = small_entries};
	int r = -ENOMEM;

	if (!users)
		return VKR_PASS;
	if (n > SMALL)
		c.kernel = malloc((n + VKR_MAX_DEVICES + 1) * sizeof(*c.kernel));
	if (users > VKR_ARRAY_SIZE(small_entries))
		c.entries = malloc(users * sizeof(*c.entries));
	if (c.kernel && c.entries) {
		call_setup(&c, users);
		r = call_run(&c, deadline, mask);
		for (i = 0; i < c.n_entries; i++)
			vkr_file_put(c.entries[i].file);
	}
	if (c.kernel != small_fds)
		free(c.kernel);
	if (c.entries != small_entries)
		free(c.entries);
	return r;
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

int vkr_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (!n || !fds || n > INT32_MAX || bad_timeout(timeout) || !vkr_engine_running())
		return VKR_PASS;
	vkr_fork_check();
	return poll_until(fds, n, deadline_from(timeout), mask);
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
	unsigned long bit = 1ul << (fd % 64);

	if (!set)
		return;
	if (on)
		((unsigned long *)set)[fd / 64] |= bit;
	else
		((unsigned long *)set)[fd / 64] &= ~bit;
}

static nfds_t select_to_poll(int n, const fd_set *r, const fd_set *w, const fd_set *e, struct pollfd *out)
{
	nfds_t count = 0;
	short events;
	int fd;

	for (fd = 0; fd < n; fd++) {
		events = (short)((bit_test(r, fd) ? POLLIN | POLLRDNORM | POLLRDBAND : 0) |
				 (bit_test(w, fd) ? POLLOUT | POLLWRNORM | POLLWRBAND : 0) |
				 (bit_test(e, fd) ? POLLPRI : 0));
		if (events)
			out[count++] = (struct pollfd){.fd = fd, .events = events};
	}
	return count;
}

static int select_result(int n, fd_set *r, fd_set *w, fd_set *e, const struct pollfd *fds, nfds_t count)
{
	int total = 0, fd = 0;
	bool in, out, ex;
	nfds_t i;

	for (i = 0; i < count; i++, fd++) {
		for (; fd < fds[i].fd; fd++)
			; /* not in any set: its bits are zero already */
		in = bit_test(r, fd) && fds[i].revents & SELECT_IN;
		out = bit_test(w, fd) && fds[i].revents & SELECT_OUT;
		ex = bit_test(e, fd) && fds[i].revents & POLLPRI;
		bit_put(r, fd, in);
		bit_put(w, fd, out);
		bit_put(e, fd, ex);
		total += in + out + ex;
	}
	return total;
}

int vkr_select(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask,
	       struct timespec *left)
{
	struct pollfd *fds;
	nfds_t count, i;
	int64_t deadline, remains;
	int ret;

	if (n <= 0 || (!r && !w && !e) || bad_timeout(timeout) || !vkr_engine_running())
		return VKR_PASS;
	vkr_fork_check();
	fds = malloc((size_t)n * sizeof(*fds));
	if (!fds)
		return -ENOMEM;
	count = select_to_poll(n, r, w, e, fds);
	deadline = deadline_from(timeout);
	ret = poll_until(fds, count, deadline, mask);
	for (i = 0; ret > 0 && i < count; i++)
		if (fds[i].revents & POLLNVAL)
			ret = -EBADF;
	if (ret >= 0)
		ret = select_result(n, r, w, e, fds, count);
	free(fds);
	if (left && ret != VKR_PASS && deadline >= 0) {
		remains = deadline ? left_until(deadline) : 0;
		left->tv_sec = remains / 1000000000;
		left->tv_nsec = remains % 1000000000;
	}
	return ret;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * epoll over a mix of kernel and carried descriptors.
 *
 * A set that holds something the kernel knows nothing of ("mixed") gets an eventfd and the engine's completion
 * channels, registered in the application's own kernel set under the address of a marker here. Kernel descriptors stay
 * native. Carried sockets are items of ours with a watch on their stream: a watch that fires puts the item on the set's
 * ready list, a wait takes items from that list and looks at the stream's state, so readiness is always state.
 * Level-triggered items stay on the list while they are ready.
 *
 * Lost wake-ups: a waiter counts itself asleep under the set's lock, arms the CQs and polls (vkr_engine_sleep_begin),
 * looks at the ready list once more, and only then sleeps. Whoever fires a watch looks at the count under the same
 * lock, after it has put the item on the list. tests/model holds the model of it.
 */
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "sock.h"
#include "socket.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

#define KERNEL_EVERY_NS 50000 /* how long ready streams may keep a wait from asking the kernel */

static const char markers[VKR_MAX_DEVICES + 1]; /* [0] the eventfd, [1 + i] the engine's descriptor i */

/* ------------------------------------------------------------------ readiness */

uint32_t vkr_file_ready(struct vkr_file *f)
{
	struct vkr_pollable *p;

	if (f->kind == VKR_KIND_EPOLL)
		return vkr_epset_peek((struct vkr_epset *)f) ? EPOLLIN | EPOLLRDNORM : 0;
	p = vkr_file_pollable(f);
	return p ? vkr_ready_bits(vkr_pollable_ready(p)) : 0;
}

static uint32_t item_wants(const struct vkr_item *it)
{
	return it->disabled ? 0 : it->events | EPOLLERR | EPOLLHUP;
}

/* set->lock held. */
static void ready_add(struct vkr_epset *set, struct vkr_item *it)
{
	if (it->queued)
		return;
	it->queued = true;
	DL_APPEND2(set->ready, it, ready_prev, ready_next);
	vkr_store(&set->n_ready, vkr_load(&set->n_ready) + 1);
}

static void ready_del(struct vkr_epset *set, struct vkr_item *it)
{
	if (!it->queued)
		return;
	it->queued = false;
	DL_DELETE2(set->ready, it, ready_prev, ready_next);
	vkr_store(&set->n_ready, vkr_load(&set->n_ready) - 1);
}

static void efd_write(struct vkr_epset *set)
{
	uint64_t one = 1;

	if (vkr_real.write(set->efd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is readable, which is all that is wanted */
}

static void efd_drain(struct vkr_epset *set)
{
	uint64_t n;

	pthread_mutex_lock(&set->lock);
	if (vkr_real.read(set->efd, &n, sizeof(n)) == sizeof(n) || set->signaled)
		set->signaled = false;
	pthread_mutex_unlock(&set->lock);
}

/* Puts the item where waiters find it and wakes one that sleeps; then those who watch the set itself. No lock of a set
 * held. */
static void item_post(struct vkr_item *it)
{
	struct vkr_epset *set = it->set;
	bool wake;

	pthread_mutex_lock(&set->lock);
	ready_add(set, it);
	wake = set->sleepers && !set->signaled;
	if (wake)
		set->signaled = true;
	pthread_mutex_unlock(&set->lock);
	if (wake)
		efd_write(set);
	if (set->poll.watches) { /* racy on purpose: a watcher that is being added looks at the set afterwards */
		pthread_mutex_lock(&set->poll.lock);
		vkr_pollable_set(&set->poll, EPOLLIN, EPOLLIN);
		pthread_mutex_unlock(&set->poll.lock);
	}
}

/* The pollable's lock is held. */
static void item_fire(struct vkr_watch *w, uint32_t edge)
{
	struct vkr_item *it = vkr_container_of(w, struct vkr_item, watch);

	if (vkr_ready_bits(edge) & (item_wants(it) | VKR_EDGE_STATE))
		item_post(it);
}

bool vkr_epset_peek(struct vkr_epset *set)
{
	struct vkr_item *it, *tmp;
	bool any = false;

	if (!vkr_load(&set->n_ready))
		return false;
	pthread_mutex_lock(&set->lock);
	DL_FOREACH_SAFE2(set->ready, it, tmp, ready_next)
	{
		if (vkr_file_ready(it->file) & item_wants(it)) {
			any = true;
			break;
		}
	}
	pthread_mutex_unlock(&set->lock);
	return any;
}

/* ------------------------------------------------------------------ collecting */

/* A connect that succeeded or failed, and that nobody has acted on yet. */
static bool attempt_ended(struct vkr_file *f)
{
	struct vkr_sock *s = (struct vkr_sock *)f;

	return f->kind == VKR_KIND_SOCK && vkr_load_acq(&s->state) == VKR_SOCK_CONNECTING &&
	       vkr_stream_state(s->stream) != VKR_STREAM_CONNECTING;
}

struct collect {
	struct epoll_event *evs;
	int n, max;
	struct vkr_sock *settle[8]; /* held: attempts that have ended */
	int n_settle;
};

/* set->lock held. */
static void collect_item(struct vkr_epset *set, struct vkr_item *it, struct collect *c)
{
	struct vkr_sock *s = (struct vkr_sock *)it->file;
	uint32_t ready;

	ready_del(set, it);
	if (attempt_ended(it->file)) {
		/* Settling looks at its items again (vkr_items_recheck, vkr_items_to_kernel). */
		if (c->n_settle < (int)VKR_ARRAY_SIZE(c->settle)) {
			vkr_file_hold(it->file);
			c->settle[c->n_settle++] = s;
		} else {
			ready_add(set, it);
		}
		return;
	}
	ready = vkr_file_ready(it->file) & item_wants(it);
	if (!ready)
		return; /* the next edge brings it back */
	c->evs[c->n].events = ready;
	c->evs[c->n++].data.u64 = it->data;
	if (it->events & EPOLLONESHOT)
		it->disabled = true;
	else if (!(it->events & EPOLLET))
		ready_add(set, it); /* level-triggered: at the tail, so that everyone has a turn */
}

static int collect(struct vkr_epset *set, struct epoll_event *evs, int max)
{
	struct collect c = {.evs = evs, .max = max};
	uint32_t todo;
	int i;

	do {
		if (!vkr_load(&set->n_ready))
			return c.n;
		c.n_settle = 0;
		pthread_mutex_lock(&set->lock);
		for (todo = vkr_load(&set->n_ready); todo && c.n < c.max; todo--)
			collect_item(set, set->ready, &c);
		pthread_mutex_unlock(&set->lock);
		for (i = 0; i < c.n_settle; i++) {
			vkr_sock_settle(c.settle[i]);
			vkr_sock_put(c.settle[i]);
		}
	} while (c.n_settle && !c.n);
	return c.n;
}

/* ------------------------------------------------------------------ the kernel's half */

static int real_epoll_wait(int epfd, struct epoll_event *evs, int max, int64_t left, const sigset_t *mask)
{
	struct timespec ts = {left / 1000000000, left % 1000000000};
	int r;

	if (left == 0 || left < 0 || left % 1000000 == 0) {
		r = vkr_real.epoll_pwait(epfd, evs, max,
					 left < 0 ? -1 : (int)vkr_min(left / 1000000, (int64_t)INT32_MAX), mask);
	} else {
		r = vkr_real.epoll_pwait2(epfd, evs, max, &ts, mask);
		if (r < 0 && errno == ENOSYS)
			r = vkr_real.epoll_pwait(epfd, evs, max, (int)vkr_min(left / 1000000 + 1, (int64_t)INT32_MAX),
						 mask);
	}
	return r < 0 ? -errno : r;
}

/* Takes our markers out of what the kernel returned, and does what they ask. */
static int strip_markers(struct vkr_epset *set, struct epoll_event *evs, int n)
{
	int fds[VKR_MAX_DEVICES], nfds = -1, i, out = 0;
	uint64_t which;

	for (i = 0; i < n; i++) {
		which = evs[i].data.u64 - (uint64_t)(uintptr_t)markers;
		if (vkr_likely(which >= sizeof(markers))) {
			evs[out++] = evs[i];
			continue;
		}
		if (which == 0) {
			efd_drain(set);
			continue;
		}
		if (nfds < 0)
			nfds = vkr_engine_fds(fds);
		if ((int)which <= nfds)
			vkr_engine_event(fds[which - 1]);
	}
	return out;
}

/*
 * A set inside this one is readable in the kernel's eyes also when only a marker of ours is: look again once the
 * markers have been dealt with.
 */
#define INNER_MAX 8 /* as deep as the kernel nests is 4; wide sets of sets are looked at in part, and reported */

bool vkr_epset_ready(struct vkr_epset *set)
{
	struct vkr_epset *inner[INNER_MAX];
	struct pollfd p = {.events = POLLIN};
	struct vkr_item *it;
	bool any = false;
	int n = 0, i;

	if (!vkr_load(&set->mixed) || vkr_epset_peek(set))
		return true;
	efd_drain(set);
	pthread_mutex_lock(&vkr_ctl_lock);
	p.fd = vkr_file_number(&set->file);
	DL_FOREACH2(set->duals, it, next)
	{
		if (it->file->kind != VKR_KIND_EPOLL || n == INNER_MAX)
			continue;
		inner[n++] = (struct vkr_epset *)it->file;
		vkr_file_hold(it->file);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	for (i = 0; i < n; i++) {
		any |= vkr_epset_ready(inner[i]); /* which also puts its markers to rest */
		vkr_file_put(&inner[i]->file);
	}
	return any || p.fd < 0 || vkr_real.poll(&p, 1, 0) > 0;
}

static bool event_stands(struct vkr_epset *set, const struct epoll_event *ev)
{
	struct vkr_epset *inner = NULL;
	struct vkr_item *it;
	bool stands;

	pthread_mutex_lock(&vkr_ctl_lock);
	DL_FOREACH2(set->duals, it, next)
	if (it->data == ev->data.u64 && it->file->kind == VKR_KIND_EPOLL) {
		inner = (struct vkr_epset *)it->file;
		vkr_file_hold(it->file);
		break;
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (!inner)
		return true;
	stands = vkr_epset_ready(inner);
	vkr_file_put(&inner->file);
	return stands;
}

/* evs[0..n) come from user space, evs[n..n+k) from the kernel: one descriptor in both is one event. Returns the total.
 */
static int merge_duals(struct vkr_epset *set, struct epoll_event *evs, int n, int k)
{
	int i, j, out = n;

	for (i = n; i < n + k; i++) {
		for (j = 0; j < n && evs[j].data.u64 != evs[i].data.u64; j++)
			;
		if (j < n)
			evs[j].events |= evs[i].events;
		else if (!set->n_inner || event_stands(set, &evs[i]))
			evs[out++] = evs[i];
	}
	return out;
}

/* Adds the kernel's events without waiting. Returns the total, or -errno where there is nothing else to return. */
static int add_kernel(struct vkr_epset *set, int epfd, struct epoll_event *evs, int n, int max, int64_t now)
{
	int k;

	vkr_store(&set->kernel_at, now);
	k = real_epoll_wait(epfd, evs + n, max - n, 0, NULL);
	if (k < 0)
		return n ? n : k;
	k = strip_markers(set, evs + n, k);
	return set->duals ? merge_duals(set, evs, n, k) : n + k;
}

/* ------------------------------------------------------------------ a set becomes mixed */

static void register_engine_fds(struct vkr_epset *set, int epfd)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int fds[VKR_MAX_DEVICES];
	unsigned generation = vkr_engine_generation();
	int n = vkr_engine_fds(fds);

	for (; set->engine_fds < n; set->engine_fds++) {
		ev.data.u64 = (uintptr_t)&markers[1 + set->engine_fds];
		if (vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, fds[set->engine_fds], &ev) < 0)
			vkr_warn("epoll set %d: completion channel: errno %d", epfd, errno);
	}
	set->engine_generation = generation;
}

static void item_make_dual(struct vkr_item *it);

/* vkr_ctl_lock held. */
static int make_mixed(struct vkr_epset *set, int epfd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uintptr_t)&markers[0]};
	struct vkr_item *it;

	if (vkr_load(&set->mixed)) {
		if (set->engine_generation != vkr_engine_generation())
			register_engine_fds(set, epfd);
		return 0;
	}
	set->efd = vkr_guard_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (set->efd < 0)
		return -errno;
	vkr_guard_slot(set->efd, &set->efd);
	if (vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, set->efd, &ev) < 0) {
		int err = errno;

		vkr_guard_close(set->efd);
		set->efd = -1;
		return -err;
	}
	register_engine_fds(set, epfd);
	atomic_store(&set->mixed, true);
	if (atomic_load(&set->in_kernel))
		efd_write(set); /* asleep, and knowing nothing of us */
	/* The sets that hold this one must look into it from now on. */
	DL_FOREACH2(set->file.items, it, file_next)
	if (make_mixed(it->set, vkr_file_number(&it->set->file)) == 0)
		item_make_dual(it);
	return 0;
}

/* ------------------------------------------------------------------ items (vkr_ctl_lock held) */

static struct vkr_item *item_find(struct vkr_epset *set, struct vkr_file *f, int fd)
{
	struct vkr_item *it;

	DL_FOREACH2(f->items, it, file_next)
	if (it->set == set && it->fd == fd)
		return it;
	return NULL;
}

static void item_watch(struct vkr_item *it)
{
	struct vkr_pollable *p = vkr_file_pollable(it->file);

	if (it->watched || !p)
		return;
	it->watch.fire = item_fire;
	it->watched = p;
	vkr_watch_add(p, &it->watch);
	/* What happened before the watch was there fires no more: ready, or an attempt that has ended already. */
	if (vkr_file_ready(it->file) & item_wants(it) || attempt_ended(it->file))
		item_post(it);
}

static void item_unwatch(struct vkr_item *it)
{
	if (!it->watched)
		return;
	vkr_watch_del(it->watched, &it->watch);
	it->watched = NULL;
	pthread_mutex_lock(&it->set->lock);
	ready_del(it->set, it);
	pthread_mutex_unlock(&it->set->lock);
}

static struct vkr_item *item_new(struct vkr_epset *set, struct vkr_file *f, int fd, const struct epoll_event *ev)
{
	struct vkr_item *it = calloc(1, sizeof(*it));

	if (!it)
		return NULL;
	it->set = set;
	it->file = f;
	it->fd = fd;
	it->events = ev->events;
	it->data = ev->data.u64;
	DL_APPEND2(f->items, it, file_prev, file_next);
	DL_APPEND2(set->items, it, prev, next);
	return it;
}

static void item_free(struct vkr_item *it)
{
	item_unwatch(it);
	DL_DELETE2(it->file->items, it, file_prev, file_next);
	if (it->dual) {
		DL_DELETE2(it->set->duals, it, prev, next);
		it->set->n_inner -= it->file->kind == VKR_KIND_EPOLL;
	} else {
		DL_DELETE2(it->set->items, it, prev, next);
	}
	free(it);
}

static void item_make_dual(struct vkr_item *it)
{
	if (!it->dual) {
		DL_DELETE2(it->set->items, it, prev, next);
		DL_APPEND2(it->set->duals, it, prev, next);
		it->dual = true;
		it->set->n_inner += it->file->kind == VKR_KIND_EPOLL;
	}
	item_watch(it);
}

void vkr_items_to_user(struct vkr_file *f)
{
	struct vkr_item *it;
	int epfd;

	DL_FOREACH2(f->items, it, file_next)
	{
		epfd = vkr_file_number(&it->set->file);
		if (epfd < 0 || make_mixed(it->set, epfd) < 0)
			continue;
		if (it->in_kernel)
			vkr_real.epoll_ctl(epfd, EPOLL_CTL_DEL, it->fd, NULL);
		it->in_kernel = false;
		item_watch(it);
	}
}

void vkr_items_to_kernel(struct vkr_file *f)
{
	struct vkr_item *it, *tmp;
	struct epoll_event ev;

	DL_FOREACH_SAFE2(f->items, it, tmp, file_next)
	{
		ev.events = it->disabled ? 0 : it->events;
		ev.data.u64 = it->data;
		if (!it->in_kernel)
			vkr_real.epoll_ctl(vkr_file_number(&it->set->file), EPOLL_CTL_ADD, it->fd, &ev);
		vkr_store(&it->set->native, vkr_load(&it->set->native) + 1);
		item_free(it);
	}
}

void vkr_items_watch(struct vkr_file *f)
{
	struct vkr_item *it;

	DL_FOREACH2(f->items, it, file_next)
	if (vkr_file_pollable(f) && make_mixed(it->set, vkr_file_number(&it->set->file)) == 0)
		item_make_dual(it);
}

void vkr_items_recheck(struct vkr_file *f)
{
	struct vkr_item *it;

	DL_FOREACH2(f->items, it, file_next)
	if (it->watched && vkr_file_ready(f) & item_wants(it))
		item_post(it);
}

void vkr_items_drop(struct vkr_file *f)
{
	struct vkr_item *it, *tmp;

	DL_FOREACH_SAFE2(f->items, it, tmp, file_next)
	item_free(it);
}

void vkr_items_forget(struct vkr_file *f)
{
	vkr_items_drop(f);
}

void vkr_epset_destroy(struct vkr_epset *set)
{
	struct vkr_item *it, *tmp;

	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_drop(&set->file); /* in sets that hold this one */
	DL_FOREACH_SAFE2(set->items, it, tmp, next)
	item_free(it);
	DL_FOREACH_SAFE2(set->duals, it, tmp, next)
	item_free(it);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (set->efd >= 0)
		vkr_guard_close(set->efd);
}

/* ------------------------------------------------------------------ epoll_ctl */

#define EXCLUSIVE_OK (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)

static int ctl_check(int op, const struct vkr_item *it, const struct epoll_event *ev)
{
	if (op != EPOLL_CTL_DEL && vkr_bad_pointer(ev, sizeof(*ev)))
		return -EFAULT;
	switch (op) {
	case EPOLL_CTL_ADD:
		if (ev->events & EPOLLEXCLUSIVE && ev->events & ~EXCLUSIVE_OK)
			return -EINVAL;
		return it ? -EEXIST : 0;
	case EPOLL_CTL_MOD:
		if (ev->events & EPOLLEXCLUSIVE)
			return -EINVAL;
		if (!it)
			return -ENOENT;
		return it->events & EPOLLEXCLUSIVE ? -EINVAL : 0;
	case EPOLL_CTL_DEL:
		return it ? 0 : -ENOENT;
	default:
		return -EINVAL;
	}
}

/* The kernel has it all: its answer counts, and we keep a record in case the file becomes ours later. */
static int ctl_kernel(struct vkr_epset *set, struct vkr_file *f, struct vkr_item *it, int epfd, int op, int fd,
		      struct epoll_event *ev)
{
	if (vkr_real.epoll_ctl(epfd, op, fd, ev) < 0)
		return -errno;
	if (op == EPOLL_CTL_ADD && (it || (it = item_new(set, f, fd, ev)))) {
		it->in_kernel = true;
		vkr_store(&set->native, vkr_load(&set->native) + 1);
	} else if (op == EPOLL_CTL_MOD && it) {
		pthread_mutex_lock(&set->lock);
		it->events = ev->events;
		it->data = ev->data.u64;
		it->disabled = false;
		pthread_mutex_unlock(&set->lock);
	} else if (op == EPOLL_CTL_DEL) {
		vkr_store(&set->native, vkr_load(&set->native) - 1);
		if (it)
			item_free(it);
		return 0;
	}
	if (it && vkr_file_pollable(f) && make_mixed(set, epfd) == 0)
		item_make_dual(it);
	if (it && it->watched && vkr_file_ready(f) & item_wants(it))
		item_post(it);
	return 0;
}

static int ctl_user(struct vkr_epset *set, struct vkr_file *f, struct vkr_item *it, int epfd, int op, int fd,
		    struct epoll_event *ev)
{
	int r = ctl_check(op, it, ev);

	if (r)
		return r;
	if (op == EPOLL_CTL_DEL) {
		item_free(it);
		return 0;
	}
	if (op == EPOLL_CTL_ADD) {
		r = make_mixed(set, epfd);
		if (r)
			return r;
		it = item_new(set, f, fd, ev);
		if (!it)
			return -ENOMEM;
		item_watch(it);
		return 0;
	}
	pthread_mutex_lock(&set->lock);
	it->events = ev->events;
	it->data = ev->data.u64;
	it->disabled = false;
	pthread_mutex_unlock(&set->lock);
	if (vkr_file_ready(f) & item_wants(it))
		item_post(it);
	return 0;
}

/* The number of a set made before we were active, or received from elsewhere: the kernel says whether it is one. */
static struct vkr_epset *adopt(int epfd, int fd)
{
	struct epoll_event ev = {.events = EPOLLET};

	if (vkr_real.epoll_ctl(epfd, EPOLL_CTL_MOD, fd, &ev) < 0 && errno != ENOENT)
		return NULL;
	vkr_fd_epoll(epfd);
	return vkr_epset_get(epfd);
}

static bool in_user_space(struct vkr_file *f)
{
	enum vkr_sock_state state = vkr_load(&((struct vkr_sock *)f)->state);

	return f->kind == VKR_KIND_SOCK && (state == VKR_SOCK_CONNECTING || state == VKR_SOCK_CARRIED);
}

static int ctl_locked(struct vkr_epset *set, struct vkr_file *f, int epfd, int op, int fd, struct epoll_event *ev)
{
	struct vkr_item *it = item_find(set, f, fd);

	if (in_user_space(f))
		return vkr_file_inherited(f) ? -EPERM : ctl_user(set, f, it, epfd, op, fd, ev);
	return ctl_kernel(set, f, it, epfd, op, fd, ev);
}

int vkr_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	struct vkr_file *f;
	struct vkr_epset *set;
	int r = VKR_PASS;

	vkr_fork_check();
	f = vkr_file_get(fd);
	set = vkr_epset_get(epfd);
	if (f && !set && in_user_space(f))
		set = adopt(epfd, fd);
	if (!f || !set || epfd == fd || vkr_file_inherited(&set->file)) {
		if (set && !f && op != EPOLL_CTL_MOD)
			vkr_store(&set->native, vkr_load(&set->native) + (op == EPOLL_CTL_ADD ? 1 : 0));
	} else if (f->kind == VKR_KIND_SOCK && vkr_sock_settle((struct vkr_sock *)f) == VKR_SOCK_FINAL) {
		if (op == EPOLL_CTL_ADD)
			vkr_store(&set->native, vkr_load(&set->native) + 1);
	} else {
		pthread_mutex_lock(&vkr_ctl_lock);
		r = ctl_locked(set, f, epfd, op, fd, ev);
		pthread_mutex_unlock(&vkr_ctl_lock);
	}
	if (f)
		vkr_file_put(f);
	if (set)
		vkr_file_put(&set->file);
	return r;
}

/* ------------------------------------------------------------------ epoll_wait */

/* Something of ours is ready: the kernel is asked too when there is room and it was not asked for a while. */
static int return_ready(struct vkr_epset *set, int epfd, struct epoll_event *evs, int n, int max)
{
	int64_t now;

	if (!vkr_load(&set->native))
		return n;
	now = vkr_now_ns();
	if (now - vkr_load(&set->kernel_at) < KERNEL_EVERY_NS)
		return n;
	if (n < max)
		return add_kernel(set, epfd, evs, n, max, now);
	/* No room beside them: this turn is the kernel's. Level-triggered items come again; others were not taken. */
	return n;
}

/* One look at user space, leaving at least half of the caller's room to the kernel when its turn has come. */
static int look(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max)
{
	int64_t now = vkr_load(&set->native) ? vkr_now_ns() : 0;
	int k = 0, n;

	if (now && now - vkr_load(&set->kernel_at) >= KERNEL_EVERY_NS && (int)vkr_load(&set->n_ready) >= max) {
		k = add_kernel(set, epfd, evs, 0, vkr_max(max / 2, 1), now);
		if (k < 0)
			k = 0;
		if (k == max)
			return k;
	}
	n = collect(set, evs + k, max - k);
	if (!k)
		return n ? return_ready(set, epfd, evs, n, max) : 0;
	return k + n;
}

static void sleep_done(struct vkr_epset **asleep)
{
	struct vkr_epset *set = *asleep;

	vkr_engine_sleep_end();
	pthread_mutex_lock(&set->lock);
	set->sleepers--;
	pthread_mutex_unlock(&set->lock);
}

/* Sleeps once. > 0 events, of either kind; 0 nothing yet; -errno. */
static int sleep_once(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t left,
		      const sigset_t *mask)
{
	int n, k;

	/* Counted after our own last poll, so that what that poll finds makes no noise. */
	vkr_engine_sleep_begin();
	pthread_mutex_lock(&set->lock);
	set->sleepers++;
	pthread_mutex_unlock(&set->lock);
	{
		VKR_CLEANUP(sleep_done) struct vkr_epset *asleep = set;

		n = collect(set, evs, max);
		k = n ? 0 : real_epoll_wait(epfd, evs, max, left, mask);
		(void)asleep;
	}
	if (n)
		return return_ready(set, epfd, evs, n, max);
	if (k <= 0)
		return k;
	vkr_count(&vkr_stats->wakeups, 1);
	k = strip_markers(set, evs, k);
	if (k && set->duals)
		k = merge_duals(set, evs, 0, k);
	if (!k)
		return 0;
	vkr_store(&set->kernel_at, vkr_now_ns());
	/* Ours may have come with the same wake-up. */
	return k < max ? k + collect(set, evs + k, max - k) : k;
}

static int64_t time_left(int64_t deadline)
{
	return deadline < 0 ? -1 : vkr_max(deadline - vkr_now_ns(), 0);
}

static int mixed_wait(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t deadline,
		      const sigset_t *mask)
{
	int64_t left;
	int n;

	for (;;) {
		if (vkr_unlikely(set->engine_generation != vkr_engine_generation())) {
			pthread_mutex_lock(&vkr_ctl_lock);
			register_engine_fds(set, epfd);
			pthread_mutex_unlock(&vkr_ctl_lock);
		}
		vkr_engine_poll();
		n = look(set, epfd, evs, max);
		if (n)
			return n;
		left = time_left(deadline);
		if (!left) {
			n = real_epoll_wait(epfd, evs, max, 0, mask);
			if (n <= 0)
				return n;
			n = strip_markers(set, evs, n);
			if (set->duals)
				n = merge_duals(set, evs, 0, n);
			return n ? n : collect(set, evs, max);
		}
		n = sleep_once(set, epfd, evs, max, left, mask);
		if (n)
			return n;
	}
}

static void kernel_wait_done(struct vkr_epset **set)
{
	atomic_fetch_sub(&(*set)->in_kernel, 1);
}

/* Nothing of ours is in the set. It may become mixed while we sleep: the eventfd ends the kernel's wait then. */
static int plain_wait(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t deadline,
		      const sigset_t *mask)
{
	VKR_CLEANUP(kernel_wait_done) struct vkr_epset *waits = set;
	int r;

	atomic_fetch_add(&waits->in_kernel, 1);
	if (atomic_load(&set->mixed))
		return 0;
	r = real_epoll_wait(epfd, evs, max, time_left(deadline), mask);
	if (r > 0 && vkr_unlikely(vkr_load_acq(&set->mixed)))
		r = strip_markers(set, evs, r);
	return r;
}

/*
 * A set inherited by fork is the parent's: its kernel half still answers here, and our markers in it are not the
 * caller's to see. They cannot be put to rest from this side, so a wait that meets only them looks again a little
 * later.
 */
static int inherited_wait(int epfd, struct epoll_event *evs, int max, int64_t deadline, const sigset_t *mask)
{
	int r, i, out;

	for (;;) {
		r = real_epoll_wait(epfd, evs, max, time_left(deadline), mask);
		for (i = out = 0; i < r; i++)
			if (evs[i].data.u64 - (uint64_t)(uintptr_t)markers >= sizeof(markers))
				evs[out++] = evs[i];
		if (r <= 0 || out || !time_left(deadline))
			return r < 0 ? r : out;
		vkr_real.ppoll(NULL, 0, &(struct timespec){.tv_nsec = 2000000}, mask);
	}
}

static bool bad_wait(const struct epoll_event *evs, int max, const struct timespec *timeout)
{
	return max <= 0 || max > INT32_MAX / (int)sizeof(*evs) ||
	       (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec > 999999999));
}

int vkr_epoll_wait(int epfd, struct epoll_event *evs, int max, const struct timespec *timeout, const sigset_t *mask)
{
	VKR_CLEANUP(vkr_file_putp) struct vkr_file *f = NULL;
	struct vkr_epset *set;
	int64_t deadline = -1;
	int r;

	vkr_fork_check();
	set = vkr_epset_get(epfd);
	if (!set)
		return VKR_PASS;
	f = &set->file;
	if (bad_wait(evs, max, timeout))
		return VKR_PASS;
	if (vkr_bad_pointer(evs, (size_t)max * sizeof(*evs)))
		return -EFAULT;
	if (timeout && !timeout->tv_sec && !timeout->tv_nsec)
		deadline = 0;
	else if (timeout && timeout->tv_sec < 1000000000)
		deadline = vkr_now_ns() + timeout->tv_sec * 1000000000ll + timeout->tv_nsec;
	if (vkr_file_inherited(f))
		return inherited_wait(epfd, evs, max, deadline, mask);
	if (!vkr_load_acq(&set->mixed)) {
		r = plain_wait(set, epfd, evs, max, deadline, mask);
		if (r || !vkr_load_acq(&set->mixed))
			return r;
	}
	return mixed_wait(set, epfd, evs, max, deadline, mask);
}

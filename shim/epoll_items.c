/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Registrations in epoll sets: which items a set has, which of them the kernel knows, what is on the ready list, and
 * epoll_ctl. poll_emul.c says how waiting works.
 */
#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_raw.h"
#include "libc_real.h"
#include "log.h"
#include "plain_wait.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

const char vkr_markers[VKR_MAX_DEVICES + 1];

/* ------------------------------------------------------------------ readiness */

uint32_t vkr_file_ready(struct vkr_file *f)
{
	struct vkr_pollable *p;

	if (f->kind == VKR_KIND_EPOLL)
		return vkr_epset_peek((struct vkr_epset *)f) ? EPOLLIN | EPOLLRDNORM : 0;
	p = vkr_file_pollable(f);
	return p ? vkr_ready_bits(vkr_pollable_ready(p)) : 0;
}

/* set->lock held. */
void vkr_ready_add(struct vkr_epset *set, struct vkr_item *it)
{
	if (it->queued)
		return;
	it->queued = true;
	DL_APPEND2(set->ready, it, ready_prev, ready_next);
	vkr_store(&set->n_ready, vkr_load(&set->n_ready) + 1);
}

void vkr_ready_del(struct vkr_epset *set, struct vkr_item *it)
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

	/* EAGAIN: it is readable, which is all that is wanted. write() would be a cancellation point, and a stream's
	 * lock may be held. */
	VKR_RAW(SYS_write, set->efd, &one, sizeof(one));
}

/* Puts the item where waiters find it; then the set, where those who hold or poll it find that. True: set_wake() is to
 * follow. No lock of a set held. */
static bool item_put(struct vkr_item *it)
{
	struct vkr_epset *set = it->set;
	bool wake;

	pthread_mutex_lock(&set->lock);
	vkr_ready_add(set, it);
	if ((vkr_load(&set->sleepers) || atomic_load(&set->in_kernel)) && !set->signaled) {
		set->signaled = true;
		vkr_store(&set->wake_due, true);
	}
	wake = vkr_load(&set->wake_due); /* perhaps another's, who may never come to it */
	pthread_mutex_unlock(&set->lock);
	if (vkr_load(&set->poll.watched)) { /* a watcher that is being added looks at the set afterwards */
		pthread_mutex_lock(&set->poll.lock);
		wake |= vkr_pollable_post(&set->poll, EPOLLIN, EPOLLIN);
		pthread_mutex_unlock(&set->poll.lock);
	}
	return wake;
}

static void set_wake(struct vkr_epset *set)
{
	if (vkr_load(&set->wake_due) && atomic_exchange(&set->wake_due, false))
		efd_write(set);
	if (vkr_load(&set->poll.watched)) {
		pthread_mutex_lock(&set->poll.lock);
		vkr_pollable_wake(&set->poll);
		pthread_mutex_unlock(&set->poll.lock);
	}
}

static void item_post(struct vkr_item *it)
{
	if (item_put(it))
		set_wake(it->set);
}

/* The pollable's lock is held. */
static bool item_fire(struct vkr_watch *w, uint32_t edge)
{
	struct vkr_item *it = vkr_container_of(w, struct vkr_item, watch);

	/* A set that becomes readable says IN to those that hold it, not RDNORM (ep_poll_callback()). */
	if (it->file->kind != VKR_KIND_EPOLL)
		edge = vkr_ready_bits(edge);
	if (edge & (vkr_item_wants(it) | VKR_EDGE_STATE))
		return item_put(it);
	return false;
}

static void item_wake(struct vkr_watch *w)
{
	set_wake(vkr_container_of(w, struct vkr_item, watch)->set);
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
		if (vkr_file_ready(it->file) & vkr_item_wants(it)) {
			any = true;
			break;
		}
		if (!vkr_attempt_ended(it->file))
			vkr_ready_del(set, it); /* the next edge brings it back */
	}
	pthread_mutex_unlock(&set->lock);
	return any;
}

/* A connect that succeeded or failed, and that nobody has acted on yet. */
bool vkr_attempt_ended(struct vkr_file *f)
{
	struct vkr_sock *s = (struct vkr_sock *)f;

	return f->kind == VKR_KIND_SOCK && vkr_load_acq(&s->state) == VKR_SOCK_CONNECTING &&
	       vkr_stream_state(s->stream) != VKR_STREAM_CONNECTING;
}

/* ------------------------------------------------------------------ a set becomes mixed */

void vkr_epset_engine_fds(struct vkr_epset *set, int epfd)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int fds[VKR_MAX_DEVICES];
	unsigned generation = vkr_engine_generation();
	int n = vkr_engine_fds(fds), i;

	/* One of a device that has gone was closed, and is out of the set by that. */
	for (i = 0; i < n; i++) {
		ev.data.u64 = (uintptr_t)&vkr_markers[1 + i];
		if (fds[i] >= 0 && vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, fds[i], &ev) < 0 && errno != EEXIST)
			vkr_warn("epoll set %d: completion channel: errno %d", epfd, errno);
	}
	set->engine_generation = generation;
}

static void item_be_dual(struct vkr_item *it);
static void item_watch(struct vkr_item *it);

static void claim_number(int fd, struct vkr_file *f, void *arg)
{
	vkr_plain_claim((struct vkr_epset *)f, fd, true);
}

int vkr_epset_mix(struct vkr_epset *set, int epfd)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = (uintptr_t)&vkr_markers[0]};
	struct vkr_item *it;
	int outer, r;

	if (vkr_load(&set->mixed)) {
		if (set->engine_generation != vkr_engine_generation())
			vkr_epset_engine_fds(set, epfd);
		return 0;
	}
	/* The sets that hold this one must look into it from now on: before there is a marker that makes it readable.
	 */
	DL_FOREACH2(set->file.items, it, file_next)
	{
		outer = vkr_epset_fd(it->set);
		r = outer < 0 ? 0 : vkr_epset_mix(it->set, outer);
		if (r)
			return r;
		item_be_dual(it);
	}
	set->efd = vkr_guard_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (set->efd < 0)
		return -errno;
	vkr_guard_slot(set->efd, &set->efd);
	atomic_store(&set->marked, true);
	vkr_file_each_number(&set->file, claim_number, NULL);
	if (vkr_load(&set->known)) /* nobody has counted what was registered past us */
		vkr_store(&set->native, vkr_load(&set->native) + 1);
	if (vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, set->efd, &ev) < 0) {
		int err = errno;

		vkr_guard_close(set->efd);
		set->efd = -1;
		return -err;
	}
	set->own = vkr_guard_spare(vkr_real.fcntl(epfd, F_DUPFD_CLOEXEC, 0));
	if (set->own >= 0)
		vkr_guard_slot(set->own, &set->own);
	vkr_epset_engine_fds(set, epfd);
	/* Those who are asleep in it by now sleep on: who makes something ready writes the eventfd for them too. */
	atomic_store(&set->mixed, true);
	DL_FOREACH2(set->file.items, it, file_next)
	if (it->dual)
		item_watch(it);
	return 0;
}

/* ------------------------------------------------------------------ items (vkr_ctl_lock held) */

struct vkr_item *vkr_item_find(struct vkr_epset *set, struct vkr_file *f, int fd)
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
	it->watch.wake = item_wake;
	it->watched = p;
	/* What happened before the watch was there fires no more: ready, or an attempt that has ended already. What
	 * fires is posted after it: one change makes one edge. */
	pthread_mutex_lock(&p->lock);
	vkr_watch_add_locked(p, &it->watch);
	if (vkr_file_ready(it->file) & vkr_item_wants(it) || vkr_attempt_ended(it->file))
		item_post(it);
	pthread_mutex_unlock(&p->lock);
}

static void item_unwatch(struct vkr_item *it)
{
	if (!it->watched)
		return;
	vkr_watch_del(it->watched, &it->watch);
	it->watched = NULL;
	pthread_mutex_lock(&it->set->lock);
	vkr_ready_del(it->set, it);
	pthread_mutex_unlock(&it->set->lock);
}

struct vkr_item *vkr_item_new(struct vkr_epset *set, struct vkr_file *f, int fd, const struct epoll_event *ev)
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

void vkr_item_free(struct vkr_item *it)
{
	item_unwatch(it);
	DL_DELETE2(it->file->items, it, file_prev, file_next);
	if (it->dual) {
		DL_DELETE2(it->set->duals, it, prev, next);
	} else {
		DL_DELETE2(it->set->items, it, prev, next);
	}
	free(it);
}

/* A thread that sleeps may be given the kernel's event before the item is dual: it waits for vkr_ctl_lock then. */
static void dual_expected(struct vkr_epset *set, const struct vkr_file *f, uint32_t events)
{
	vkr_store(&set->had_duals, true);
	if (f->kind == VKR_KIND_EPOLL || events & EPOLLONESHOT)
		vkr_store(&set->checks_duals, true);
}

static void item_be_dual(struct vkr_item *it)
{
	if (!it->dual) {
		DL_DELETE2(it->set->items, it, prev, next);
		DL_APPEND2(it->set->duals, it, prev, next);
		it->dual = true;
	}
	dual_expected(it->set, it->file, it->events);
}

static void item_make_dual(struct vkr_item *it)
{
	item_be_dual(it);
	item_watch(it);
}

int vkr_items_prepare(struct vkr_file *f)
{
	struct vkr_item *it;
	int epfd, r;

	DL_FOREACH2(f->items, it, file_next)
	{
		if (vkr_file_inherited(&it->set->file))
			continue;
		epfd = vkr_epset_fd(it->set);
		r = epfd < 0 ? 0 : vkr_epset_mix(it->set, epfd);
		if (r < 0)
			return r;
	}
	return 0;
}

void vkr_items_to_user(struct vkr_file *f)
{
	struct vkr_item *it;
	int epfd;

	DL_FOREACH2(f->items, it, file_next)
	{
		epfd = vkr_epset_fd(it->set);
		if (epfd < 0 || vkr_epset_mix(it->set, epfd) < 0)
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
		if (!it->in_kernel || it->off)
			vkr_real.epoll_ctl(vkr_epset_fd(it->set), EPOLL_CTL_ADD, it->fd, &ev);
		vkr_store(&it->set->native, vkr_load(&it->set->native) + 1);
		vkr_item_free(it);
	}
}

void vkr_items_return(struct vkr_file *f)
{
	struct vkr_item *it;
	struct epoll_event ev;

	DL_FOREACH2(f->items, it, file_next)
	{
		item_unwatch(it);
		if (it->in_kernel && !it->off)
			continue;
		it->off = false;
		ev.events = it->disabled ? 0 : it->events;
		ev.data.u64 = it->data;
		it->in_kernel = !vkr_real.epoll_ctl(vkr_epset_fd(it->set), EPOLL_CTL_ADD, it->fd, &ev);
		vkr_store(&it->set->native, vkr_load(&it->set->native) + 1);
	}
}

void vkr_items_watch(struct vkr_file *f)
{
	struct vkr_item *it;

	DL_FOREACH2(f->items, it, file_next)
	if (vkr_load(&it->set->mixed) && !vkr_file_inherited(&it->set->file) && vkr_file_pollable(f))
		item_make_dual(it);
}

void vkr_items_recheck(struct vkr_file *f)
{
	struct vkr_item *it;

	DL_FOREACH2(f->items, it, file_next)
	if (it->watched && vkr_file_ready(f) & vkr_item_wants(it))
		item_post(it);
}

void vkr_items_drop(struct vkr_file *f)
{
	struct vkr_item *it, *tmp;

	DL_FOREACH_SAFE2(f->items, it, tmp, file_next)
	vkr_item_free(it);
}

void vkr_items_forget(struct vkr_file *f)
{
	vkr_items_drop(f);
}

void vkr_epset_empty(struct vkr_epset *set)
{
	struct vkr_item *it, *tmp;

	DL_FOREACH_SAFE2(set->items, it, tmp, next)
	vkr_item_free(it);
	DL_FOREACH_SAFE2(set->duals, it, tmp, next)
	vkr_item_free(it);
}

void vkr_epset_destroy(struct vkr_epset *set)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_drop(&set->file); /* in sets that hold this one */
	vkr_epset_empty(set);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (set->efd >= 0)
		vkr_guard_close(set->efd);
	if (set->own >= 0)
		vkr_guard_close(set->own);
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

/*
 * A dual's registration has two halves, and EPOLLONESHOT is for both: who reports one silences the other. The kernel
 * has no call for that (a registration for nothing still reports HUP), so its half is taken out until the item is armed
 * again.
 */
static void kernel_half_out(struct vkr_item *it)
{
	struct vkr_file *now = vkr_file_get(it->fd);

	it->off = true;
	/* The number may be another file's by now. While vkr_ctl_lock is held it keeps its reference. */
	if (now == it->file)
		vkr_real.epoll_ctl(vkr_epset_fd(it->set), EPOLL_CTL_DEL, it->fd, NULL);
	if (now)
		vkr_file_put(now);
}

void vkr_items_claimed(struct vkr_epset *set)
{
	struct vkr_item *it;

	pthread_mutex_lock(&vkr_ctl_lock);
	DL_FOREACH2(set->duals, it, next)
	if (it->disabled && !it->off)
		kernel_half_out(it);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

bool vkr_item_claim(struct vkr_item *it)
{
	bool first;

	pthread_mutex_lock(&it->set->lock);
	first = !it->disabled;
	it->disabled = true;
	pthread_mutex_unlock(&it->set->lock);
	return first;
}

/* The record comes first: without it the file, ours or not yet, would be forgotten here. */
static int kernel_add(struct vkr_epset *set, struct vkr_file *f, struct vkr_item **it, int epfd, int fd,
		      struct epoll_event *ev)
{
	struct vkr_item *fresh = NULL;
	int err;

	if (!*it && !vkr_bad_pointer(ev, sizeof(*ev))) {
		fresh = *it = vkr_item_new(set, f, fd, ev);
		if (!fresh)
			return -ENOMEM;
	}
	if (vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, fd, ev) == 0)
		return 0;
	err = errno;
	if (fresh)
		vkr_item_free(fresh);
	return -err;
}

/* The kernel has it all: its answer counts, and we keep a record in case the file becomes ours later. */
static int ctl_kernel(struct vkr_epset *set, struct vkr_file *f, struct vkr_item *it, int epfd, int op, int fd,
		      struct epoll_event *ev)
{
	bool watched = it && it->watched, off = it && it->off;
	int r = off ? ctl_check(op, it, ev) : 0;

	if (r)
		return r;
	if (op != EPOLL_CTL_DEL && vkr_file_pollable(f) && !vkr_bad_pointer(ev, sizeof(*ev))) {
		r = vkr_epset_mix(set, epfd);
		if (r)
			return r;
		dual_expected(set, f, ev->events);
	}
	if (op == EPOLL_CTL_ADD)
		r = kernel_add(set, f, &it, epfd, fd, ev);
	else if (!(off && op == EPOLL_CTL_DEL) && vkr_real.epoll_ctl(epfd, off ? EPOLL_CTL_ADD : op, fd, ev) < 0)
		r = -errno;
	if (r)
		return r;
	if (vkr_unlikely(vkr_is_shared(f)))
		vkr_heir_epoll((struct vkr_sock *)f, epfd, op, ev);
	if (op == EPOLL_CTL_ADD && it) {
		it->in_kernel = true;
		vkr_store(&set->native, vkr_load(&set->native) + 1);
	} else if (op == EPOLL_CTL_MOD && it) {
		pthread_mutex_lock(&set->lock);
		it->events = ev->events;
		it->data = ev->data.u64;
		it->disabled = it->off = false;
		pthread_mutex_unlock(&set->lock);
	} else if (op == EPOLL_CTL_DEL) {
		vkr_store(&set->native, vkr_load(&set->native) - 1);
		if (it)
			vkr_item_free(it);
		return 0;
	}
	if (it && vkr_file_pollable(f) && vkr_load(&set->mixed))
		item_make_dual(it);
	if (watched && vkr_file_ready(f) & vkr_item_wants(it))
		item_post(it); /* else the watch has done it */
	return 0;
}

static int ctl_user(struct vkr_epset *set, struct vkr_file *f, struct vkr_item *it, int epfd, int op, int fd,
		    struct epoll_event *ev)
{
	int r = ctl_check(op, it, ev);

	if (r)
		return r;
	if (op == EPOLL_CTL_DEL) {
		vkr_item_free(it);
		return 0;
	}
	if (op == EPOLL_CTL_ADD) {
		r = vkr_epset_mix(set, epfd);
		if (r)
			return r;
		it = vkr_item_new(set, f, fd, ev);
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
	if (vkr_file_ready(f) & vkr_item_wants(it))
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
	struct vkr_item *it = vkr_item_find(set, f, fd);

	if (in_user_space(f))
		return ctl_user(set, f, it, epfd, op, fd, ev);
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
	if (set && vkr_file_inherited(&set->file) && (vkr_load(&set->mixed) || (f && vkr_is_heir(f)))) {
		vkr_file_put(&set->file);
		set = vkr_epset_heir(epfd, &r);
		if (!set)
			goto out;
	}
	if (f && vkr_file_inherited(f)) {
		r = set ? vkr_heir_ctl(set, f, op, fd) : VKR_PASS;
		if (r != VKR_PASS)
			goto out;
		if (op != EPOLL_CTL_DEL)
			vkr_pair_heir(f, fd);
	}
	if (f && !set && in_user_space(f))
		set = adopt(epfd, fd);
	if (set && !f && vkr_guard_has(fd)) {
		r = -EBADF; /* the library's own: the application has no such number */
	} else if (!f || !set || epfd == fd || vkr_file_inherited(&set->file)) {
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
out:
	if (f)
		vkr_file_put(f);
	if (set)
		vkr_file_put(&set->file);
	return r;
}

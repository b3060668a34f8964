/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Epoll sets that a child has inherited. Parent and child share one kernel object, so the child may neither take the
 * parent's markers out of it nor put its own in. A set that is mixed is therefore replaced at
 * the child's first call on it: a fresh set takes its numbers, with what the kernel's had (/proc/self/fdinfo) and what
 * our records know. Inherited streams stay records until the child waits: a child that only tidies up shares nothing.
 */
#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

/* ------------------------------------------------------------------ fork */

static void forget_waits(struct vkr_item *items)
{
	struct vkr_item *it;

	DL_FOREACH2(items, it, next)
	{
		it->queued = false;
		it->watched = NULL; /* the stream is the parent's, and reports nothing here */
	}
}

/* Other threads of the parent may have been inside the set: its own lock and what that protects start anew. */
static void file_forked(int fd, struct vkr_file *f, void *arg)
{
	struct vkr_epset *set = (struct vkr_epset *)f;
	const bool *whole = arg;

	if (!*whole)
		f->items = NULL;
	if (f->kind != VKR_KIND_EPOLL)
		return;
	pthread_mutex_init(&set->lock, NULL);
	vkr_pollable_init(&set->poll);
	set->ready = NULL;
	vkr_store(&set->n_ready, 0);
	set->efd = set->own = -1;
	if (!*whole)
		set->items = set->duals = NULL;
	forget_waits(set->items);
	forget_waits(set->duals);
}

void vkr_epsets_forked(bool whole)
{
	vkr_file_each_number(NULL, file_forked, &whole);
}

void vkr_file_disinherit(struct vkr_file *f)
{
	if (f->kind == VKR_KIND_SOCK)
		vkr_bequest_drop((struct vkr_sock *)f);
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_drop(f);
	if (f->kind == VKR_KIND_EPOLL)
		vkr_epset_empty((struct vkr_epset *)f);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

/* ------------------------------------------------------------------ the fresh set */

struct fresh {
	struct vkr_epset *set, *old;
	int fd;                    /* its kernel half, for now */
	struct vkr_file *gone[16]; /* references that the numbers held */
	int n_gone;
};

/* "tfd: 5 events: 19 data: 5 pos:0 ino:1f sdev:8": a number may be another file's by now, or nobody's. */
static void copy_line(struct fresh *n, const char *line)
{
	unsigned long long data, ino;
	struct epoll_event ev;
	struct stat st;
	unsigned events;
	int fd;

	if (sscanf(line, "tfd: %d events: %x data: %llx pos:%*d ino:%llx", &fd, &events, &data, &ino) != 4)
		return;
	if (data - (uint64_t)(uintptr_t)vkr_markers < sizeof(vkr_markers) || fstat(fd, &st) < 0 || st.st_ino != ino)
		return;
	ev.events = events;
	ev.data.u64 = data;
	if (vkr_real.epoll_ctl(n->fd, EPOLL_CTL_ADD, fd, &ev) == 0)
		vkr_store(&n->set->native, vkr_load(&n->set->native) + 1);
}

static void copy_kernel(struct fresh *n, int epfd)
{
	char path[48], buf[4096], *line, *end;
	size_t have = 0;
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", epfd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	while ((got = vkr_real.read(fd, buf + have, sizeof(buf) - 1 - have)) > 0) {
		have += (size_t)got;
		buf[have] = 0;
		for (line = buf; (end = strchr(line, '\n')); line = end + 1) {
			*end = 0;
			copy_line(n, line);
		}
		have -= (size_t)(line - buf);
		memmove(buf, line, have);
	}
	vkr_real.close(fd);
}

/* A stream, and the owner's half of a listener, is a record that waits for its turn; of what the kernel has there is a
 * record where it may be needed. */
static void copy_records(struct fresh *n, struct vkr_item *items)
{
	struct vkr_item *it, *copy;

	DL_FOREACH2(items, it, next)
	{
		struct epoll_event ev = {.events = it->disabled ? 0 : it->events, .data.u64 = it->data};

		if (!it->in_kernel && it->file->kind != VKR_KIND_SOCK)
			continue;
		copy = vkr_item_new(n->set, it->file, it->fd, &ev);
		if (!copy)
			continue;
		if (it->off)
			vkr_real.epoll_ctl(n->fd, EPOLL_CTL_ADD, it->fd, &ev);
		copy->in_kernel = it->in_kernel;
		copy->heir = !it->in_kernel || vkr_is_heir(it->file);
		if (copy->heir)
			vkr_store(&n->set->n_heirs, vkr_load(&n->set->n_heirs) + 1);
	}
}

static void take_number(int fd, struct vkr_file *f, void *arg)
{
	struct fresh *n = arg;
	int flags = vkr_real.fcntl(fd, F_GETFD);

	if (n->n_gone == (int)VKR_ARRAY_SIZE(n->gone) || flags < 0 ||
	    vkr_real.dup3(n->fd, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
		return;
	if (vkr_file_install(fd, &n->set->file, &n->gone[n->n_gone]) == 0)
		n->n_gone++;
}

/* Sets inside it first: the fresh outer one must hold the fresh inner ones. */
static void renew_inner(int epfd)
{
	struct vkr_epset *set = vkr_epset_get(epfd), *fresh;
	struct vkr_item *it;
	int inner[8], n = 0, i, r;

	if (!set)
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	DL_FOREACH2(set->duals, it, next)
	if (it->file->kind == VKR_KIND_EPOLL && vkr_file_inherited(it->file) && n < (int)VKR_ARRAY_SIZE(inner))
		inner[n++] = it->fd;
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_file_put(&set->file);
	for (i = 0; i < n; i++) {
		fresh = vkr_epset_heir(inner[i], &r);
		if (fresh)
			vkr_file_put(&fresh->file);
	}
}

static bool holds_own(const struct vkr_epset *set)
{
	struct vkr_item *it;

	DL_FOREACH2(set->items, it, next)
	if (!vkr_file_inherited(it->file) && vkr_file_pollable(it->file))
		return true;
	return false;
}

/* Listeners that this process has come to own since the fork. */
static void watch_own(struct vkr_epset *set)
{
	struct vkr_item *it, *tmp;

	pthread_mutex_lock(&vkr_ctl_lock);
	DL_FOREACH_SAFE2(set->items, it, tmp, next)
	if (!vkr_file_inherited(it->file) && !it->dual)
		vkr_items_watch(it->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

struct vkr_epset *vkr_epset_heir(int epfd, int *r)
{
	struct fresh n = {.set = vkr_epset_new(), .fd = vkr_real.epoll_create1(EPOLL_CLOEXEC)};
	struct vkr_epset *set;
	int i;

	*r = !n.set ? -ENOMEM : n.fd < 0 ? -errno : 0;
	if (*r == 0) {
		renew_inner(epfd);
		pthread_mutex_lock(&vkr_ctl_lock);
		n.old = vkr_epset_get(epfd);
		if (n.old && vkr_file_inherited(&n.old->file)) {
			copy_kernel(&n, epfd);
			copy_records(&n, n.old->items);
			copy_records(&n, n.old->duals);
			if (holds_own(n.set))
				*r = vkr_epset_mix(n.set, n.fd);
			if (!*r)
				vkr_file_each_number(&n.old->file, take_number, &n);
		}
		pthread_mutex_unlock(&vkr_ctl_lock);
	}
	for (i = 0; i < n.n_gone; i++)
		vkr_file_put(n.gone[i]);
	if (n.old)
		vkr_file_put(&n.old->file);
	if (n.set)
		vkr_file_put(&n.set->file);
	if (n.fd >= 0)
		vkr_real.close(n.fd);
	if (*r)
		return NULL;
	set = vkr_epset_get(epfd);
	if (set)
		watch_own(set);
	if (set && vkr_file_inherited(&set->file)) {
		vkr_file_put(&set->file);
		set = NULL;
	}
	if (!set)
		*r = -EBADF;
	return set;
}

/* ------------------------------------------------------------------ inherited streams among its items */

/* vkr_ctl_lock held; a stream is shared by now. */
static void into_kernel(struct vkr_epset *set, struct vkr_item *it)
{
	struct epoll_event ev = {.events = it->events, .data.u64 = it->data};
	int epfd = vkr_epset_fd(set);

	it->heir = false;
	vkr_store(&set->n_heirs, vkr_load(&set->n_heirs) - 1);
	if (vkr_is_heir(it->file)) {
		vkr_heir_epoll((struct vkr_sock *)it->file, epfd, EPOLL_CTL_ADD, &ev);
		return;
	}
	if (!it->in_kernel && vkr_real.epoll_ctl(epfd, EPOLL_CTL_ADD, it->fd, &ev) == 0)
		vkr_store(&set->native, vkr_load(&set->native) + 1);
	vkr_item_free(it);
}

/* Shares the stream without a lock, then looks for its record again. */
static void take_heir(struct vkr_epset *set, struct vkr_file *f, int fd)
{
	struct vkr_item *it;

	vkr_pair_heir(f, fd);
	pthread_mutex_lock(&vkr_ctl_lock);
	it = vkr_item_find(set, f, fd);
	if (it && it->heir)
		into_kernel(set, it);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

void vkr_epset_take_heirs(struct vkr_epset *set)
{
	struct vkr_file *f;
	struct vkr_item *it;
	int fd;

	for (;;) {
		pthread_mutex_lock(&vkr_ctl_lock);
		DL_FOREACH2(set->items, it, next)
		if (it->heir)
			break;
		if (!it)
			vkr_store(&set->n_heirs, 0); /* others went with their last number */
		else
			vkr_file_hold(it->file);
		f = it ? it->file : NULL;
		fd = it ? it->fd : -1;
		pthread_mutex_unlock(&vkr_ctl_lock);
		if (!f)
			return;
		take_heir(set, f, fd);
		vkr_file_put(f);
	}
}

int vkr_heir_ctl(struct vkr_epset *set, struct vkr_file *f, int op, int fd)
{
	struct vkr_item *it;
	bool heir;

	pthread_mutex_lock(&vkr_ctl_lock);
	it = vkr_item_find(set, f, fd);
	heir = it && it->heir;
	if (heir && op == EPOLL_CTL_DEL && it->in_kernel) {
		it->heir = heir = false;
	} else if (heir && op == EPOLL_CTL_DEL) {
		vkr_store(&set->n_heirs, vkr_load(&set->n_heirs) - 1);
		vkr_item_free(it);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (!heir)
		return VKR_PASS;
	if (op == EPOLL_CTL_DEL)
		return 0;
	take_heir(set, f, fd);
	return VKR_PASS;
}

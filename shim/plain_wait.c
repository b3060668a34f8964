/* SPDX-License-Identifier: BSD-2-Clause */
#include "plain_wait.h"

#include "epset.h"
#include "libc_raw.h"

#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* That of a thread without one: in a wait, as it seems. Never written. */
static struct vkr_plain nobody = {.number = VKR_PLAIN_NONE, .note = 1};
VKR_TLS struct vkr_plain *vkr_plain_self = &nobody;

/* A leaf: nothing is locked under it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct vkr_plain *all, *unused; /* of live threads; of threads that have ended */
static int changing = VKR_PLAIN_NONE;  /* a number that nobody learns */

/* ------------------------------------------------------------------ the barrier on every thread */

static bool barrier_ready(void)
{
	enum { UNKNOWN, YES, NO };
	static _Atomic int known;

	if (vkr_unlikely(vkr_load(&known) == UNKNOWN))
		vkr_store(&known,
			  VKR_RAW(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) < 0 ? NO : YES);
	return vkr_load(&known) == YES;
}

void vkr_plain_prepare(void)
{
	barrier_ready();
}

/* A child of a process that had registered may have to do it anew. The last is for a filter that came in between: what
 * a processor holds back it holds back for less than that. */
static void barrier_everywhere(void)
{
	const struct timespec longer = {.tv_nsec = 1000000};

	if (VKR_RAW(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
		return;
	VKR_RAW(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
	if (VKR_RAW(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) < 0 &&
	    VKR_RAW(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) < 0)
		VKR_RAW(SYS_nanosleep, &longer, NULL);
}

/* ------------------------------------------------------------------ threads come and go */

static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool key_made;

static struct vkr_epset *unhit(struct vkr_plain *p)
{
	struct vkr_epset *set = p->set;

	p->set = NULL;
	if (set)
		atomic_fetch_sub(&set->in_kernel, 1);
	return set;
}

/* Ended perhaps inside a wait: cancelled, or by pthread_exit() in a handler. */
static void thread_ends(void *arg)
{
	struct vkr_plain *self = vkr_plain_self, **p;
	struct vkr_epset *set;

	if (self != arg || self == &nobody)
		return;
	vkr_plain_self = &nobody;
	pthread_mutex_lock(&lock);
	for (p = &all; *p && *p != self; p = &(*p)->next)
		;
	if (*p)
		*p = self->next;
	vkr_store(&self->number, VKR_PLAIN_NONE);
	set = unhit(self);
	vkr_store(&self->note, 0);
	self->next = unused;
	unused = self;
	pthread_mutex_unlock(&lock);
	vkr_plain_put(set);
}

static void make_key(void)
{
	key_made = pthread_key_create(&key, thread_ends) == 0;
}

/* Lock held. */
static struct vkr_plain *take_unused(void)
{
	enum { SIZE = 4096 };
	struct vkr_plain *p;
	size_t i;

	if (!unused) {
		p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		if (madvise(p, SIZE, MADV_WIPEONFORK)) {
			munmap(p, SIZE);
			return NULL;
		}
		for (i = 0; i < SIZE / sizeof(*p); i++) {
			p[i].next = unused;
			unused = &p[i];
		}
	}
	p = unused;
	unused = p->next;
	return p;
}

static struct vkr_plain *thread_begins(void)
{
	struct vkr_plain *self;

	pthread_once(&key_once, make_key);
	if (!key_made)
		return &nobody;
	pthread_mutex_lock(&lock);
	self = take_unused();
	if (self) {
		vkr_store(&self->number, VKR_PLAIN_NONE);
		self->next = all;
		all = self;
	}
	pthread_mutex_unlock(&lock);
	if (!self)
		return &nobody;
	vkr_plain_self = self;
	if (pthread_setspecific(key, self)) {
		thread_ends(self);
		return &nobody;
	}
	return self;
}

/* The parent's are wiped, and those of its other threads nobody's. A page or two stay behind. */
void vkr_plain_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	all = unused = NULL;
	changing = VKR_PLAIN_NONE;
	vkr_plain_self = &nobody;
}

/* ------------------------------------------------------------------ numbers */

void vkr_plain_learn(int epfd)
{
	struct vkr_plain *self = vkr_plain_self;
	struct vkr_epset *set;
	struct vkr_file *f;
	vkr_entry *e;

	if (!barrier_ready())
		return;
	if (self == &nobody)
		self = thread_begins();
	if (!vkr_plain_may(self))
		return;
	pthread_mutex_lock(&lock);
	/* As claims see it: under the same lock. */
	e = vkr_fd_entry(epfd);
	f = e ? vkr_load_acq(e) : NULL;
	set = f && f->kind == VKR_KIND_EPOLL && !vkr_file_inherited(f) ? (struct vkr_epset *)f : NULL;
	if (set)
		vkr_store(&set->known, true);
	if (epfd != changing && (!f || (set && !set->claimed)))
		vkr_store(&self->number, epfd);
	pthread_mutex_unlock(&lock);
}

/* Lock held. True if the thread is in a wait. */
static bool hit(struct vkr_plain *p, struct vkr_epset *set, int fd)
{
	uint64_t note = vkr_load(&p->note);

	while (note > 1 && !(note & VKR_PLAIN_HIT)) {
		if (!atomic_compare_exchange_weak(&p->note, &note, note | VKR_PLAIN_HIT))
			continue;
		p->events = note;
		p->fd = fd;
		p->hit_at = vkr_now_ns();
		p->set = set;
		vkr_file_hold(&set->file);
		atomic_fetch_add(&set->in_kernel, 1);
		return true;
	}
	return false;
}

void vkr_plain_claim(struct vkr_epset *set, int fd, bool for_good)
{
	struct vkr_plain *p;
	bool any = false, known = false, others = false;

	pthread_mutex_lock(&lock);
	set->claimed |= for_good;
	for (p = all; p; p = p->next)
		if (vkr_load(&p->number) == fd) {
			known = true;
			others |= p != vkr_plain_self;
		}
	if (!known)
		goto out;
	for (p = all; p; p = p->next)
		if (vkr_load(&p->number) == fd)
			vkr_store(&p->number, VKR_PLAIN_CLAIMED);
	if (others)
		barrier_everywhere();
	for (p = all; p; p = p->next) {
		if (vkr_load(&p->number) != VKR_PLAIN_CLAIMED)
			continue;
		any |= hit(p, set, fd);
		vkr_store(&p->number, VKR_PLAIN_NONE);
	}
	if (!any)
		goto out;
	/* Who left at that moment may have missed it, and has come back before there was anything to see. */
	barrier_everywhere();
	for (p = all; p; p = p->next)
		if (p->set == set && vkr_load(&p->note) != 1 && !(vkr_load(&p->note) & VKR_PLAIN_HIT)) {
			unhit(p);
			vkr_file_put(&set->file); /* not the last */
		}
out:
	pthread_mutex_unlock(&lock);
}

void vkr_plain_change(int fd, struct vkr_epset *from, struct vkr_epset *to)
{
	if (from)
		atomic_store(&from->marked, true);
	pthread_mutex_lock(&lock);
	changing = fd;
	pthread_mutex_unlock(&lock);
	vkr_plain_claim(from ? from : to, fd, false);
}

void vkr_plain_changed(struct vkr_epset *from, struct vkr_epset *to)
{
	/* Who has counted itself looks at the number's file once more (plain_wait()): it sees the new one, or is seen.
	 */
	if (from && atomic_load(&from->in_kernel)) {
		atomic_fetch_add(&to->in_kernel, 1);
		vkr_store(&to->native, vkr_load(&to->native) + 1);
	}
	pthread_mutex_lock(&lock);
	changing = VKR_PLAIN_NONE;
	pthread_mutex_unlock(&lock);
}

struct vkr_epset *vkr_plain_left(struct vkr_plain *self, struct vkr_plain *was)
{
	struct vkr_epset *set;

	pthread_mutex_lock(&lock);
	was->timeout = self->timeout;
	was->mask = self->mask;
	was->events = self->events;
	was->fd = self->fd;
	was->hit_at = self->hit_at;
	set = unhit(self);
	vkr_store(&self->note, 0);
	pthread_mutex_unlock(&lock);
	return set;
}

void vkr_plain_put(struct vkr_epset *set)
{
	if (set)
		vkr_file_put(&set->file);
}

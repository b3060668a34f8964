/* SPDX-License-Identifier: BSD-2-Clause */
#include "fdmap.h"

#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "nofile.h"
#include "plain_wait.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Atomic(vkr_entry *) vkr_fd_chunks[VKR_FD_CHUNKS];
static unsigned chunks_used; /* one past the highest; under vkr_ctl_lock */

pthread_mutex_t vkr_ctl_lock = PTHREAD_MUTEX_INITIALIZER;
uint32_t vkr_fork_generation;

static _Atomic uint32_t alive_before_init = 1;
_Atomic uint32_t *_Atomic vkr_alive = &alive_before_init;
static _Atomic pid_t owner_pid;

/* ------------------------------------------------------------------ the table */

/* vkr_ctl_lock held. */
static vkr_entry *entry_make(int fd)
{
	vkr_entry *chunk;
	unsigned i = (unsigned)fd >> VKR_FD_CHUNK_BITS;

	if (fd < 0)
		return NULL;
	if (!vkr_load(&vkr_fd_chunks[i])) {
		chunk = mmap(NULL, VKR_FD_CHUNK_SIZE * sizeof(*chunk), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (chunk == MAP_FAILED)
			return NULL;
		vkr_store_rel(&vkr_fd_chunks[i], chunk);
		chunks_used = vkr_max(chunks_used, i + 1);
	}
	return vkr_fd_entry(fd);
}

static struct vkr_epset *as_set(struct vkr_file *f)
{
	return f && f->kind == VKR_KIND_EPOLL ? (struct vkr_epset *)f : NULL;
}

/* Never nobody's in between: a thread would take it for a set that is not tracked. */
int vkr_file_install(int fd, struct vkr_file *f, struct vkr_file **stale)
{
	vkr_entry *e = entry_make(fd);
	struct vkr_epset *was;

	*stale = NULL;
	if (!e)
		return -ENOMEM;
	vkr_file_hold(f);
	atomic_fetch_add(&f->numbers, 1);
	vkr_store(&f->number, fd);
	*stale = atomic_exchange(e, f);
	was = as_set(*stale);
	if (was)
		vkr_plain_claim(was, fd, false);
	else if (as_set(f))
		vkr_plain_claim(as_set(f), fd, false);
	if (*stale)
		atomic_fetch_sub(&(*stale)->numbers, 1);
	return 0;
}

struct vkr_file *vkr_file_uninstall(int fd)
{
	vkr_entry *e = vkr_fd_entry(fd);
	struct vkr_file *f = e ? atomic_exchange(e, NULL) : NULL;

	if (!f)
		return NULL;
	/* Who sleeps on it does so by a number that the set will not be found by. */
	if (as_set(f))
		vkr_plain_claim(as_set(f), fd, false);
	atomic_fetch_sub(&f->numbers, 1);
	return f;
}

void vkr_file_each_number(struct vkr_file *f, void (*fn)(int fd, struct vkr_file *f, void *arg), void *arg)
{
	int n = f ? vkr_load(&f->numbers) : INT32_MAX, known = f ? vkr_load(&f->number) : -1;
	vkr_entry *chunk = vkr_fd_entry(known);
	unsigned i, j;

	/* Mostly it has one, and that is known. */
	if (n == 1 && chunk && vkr_load(chunk) == f) {
		fn(known, f, arg);
		return;
	}
	for (i = 0; n && i < chunks_used; i++) {
		chunk = vkr_load(&vkr_fd_chunks[i]);
		for (j = 0; chunk && j < VKR_FD_CHUNK_SIZE; j++)
			if (f ? vkr_load(&chunk[j]) == f : vkr_load(&chunk[j]) != NULL)
				fn((int)(i << VKR_FD_CHUNK_BITS | j), vkr_load(&chunk[j]), arg);
	}
}

static void note_number(int fd, struct vkr_file *f, void *arg)
{
	vkr_store(&f->number, fd);
	*(int *)arg = fd;
}

int vkr_file_number(struct vkr_file *f)
{
	int fd = vkr_load(&f->number);
	vkr_entry *e = vkr_fd_entry(fd);

	if (e && vkr_load(e) == f)
		return fd;
	fd = -1;
	vkr_file_each_number(f, note_number, &fd);
	return fd;
}

/* ------------------------------------------------------------------ files */

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vkr_file *free_socks, *free_epsets;

static struct vkr_file *pool_take(struct vkr_file **pool, size_t size)
{
	enum { COUNT = 64 };
	struct vkr_file *f;
	char *p;
	int i;

	pthread_mutex_lock(&pool_lock);
	if (!*pool) {
		p = mmap(NULL, COUNT * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (i = 0; p != MAP_FAILED && i < COUNT; i++) {
			f = (struct vkr_file *)(p + (size_t)i * size);
			f->next_free = *pool;
			*pool = f;
		}
	}
	f = *pool;
	if (f)
		*pool = f->next_free;
	pthread_mutex_unlock(&pool_lock);
	if (f)
		memset((char *)f + sizeof(*f), 0, size - sizeof(*f));
	return f;
}

static void file_init(struct vkr_file *f, enum vkr_kind kind)
{
	f->kind = kind;
	f->items = NULL;
	f->generation = vkr_fork_generation;
	vkr_store(&f->number, -1);
	vkr_store(&f->numbers, 0);
	vkr_store_rel(&f->refs, 1);
}

struct vkr_sock *vkr_sock_new(int domain, int type, int protocol)
{
	struct vkr_file *f = pool_take(&free_socks, sizeof(struct vkr_sock));
	struct vkr_sock *s = (struct vkr_sock *)f;

	if (!f)
		return NULL;
	s->domain = domain;
	s->type = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
	s->protocol = protocol ? protocol : IPPROTO_TCP;
	vkr_store(&s->nonblock, type & SOCK_NONBLOCK);
	s->pair_lib = s->pair_app = s->kernel_fd = -1;
	s->bequest.owner = s->bequest.heir = -1;
	file_init(f, VKR_KIND_SOCK);
	return s;
}

struct vkr_epset *vkr_epset_new(void)
{
	struct vkr_file *f = pool_take(&free_epsets, sizeof(struct vkr_epset));
	struct vkr_epset *e = (struct vkr_epset *)f;

	if (!f)
		return NULL;
	pthread_mutex_init(&e->lock, NULL);
	vkr_pollable_init(&e->poll);
	e->efd = e->own = -1;
	file_init(f, VKR_KIND_EPOLL);
	return e;
}

void vkr_file_end(struct vkr_file *f)
{
	struct vkr_file **pool;

	/* What a forked child inherited is the parent's: nothing to take down, only the memory is reused. */
	if (vkr_file_inherited(f))
		vkr_file_disinherit(f);
	if (f->kind == VKR_KIND_SOCK) {
		if (!vkr_file_inherited(f))
			vkr_sock_destroy((struct vkr_sock *)f);
		pool = &free_socks;
	} else {
		if (!vkr_file_inherited(f))
			vkr_epset_destroy((struct vkr_epset *)f);
		pool = &free_epsets;
	}
	pthread_mutex_lock(&pool_lock);
	f->next_free = *pool;
	*pool = f;
	pthread_mutex_unlock(&pool_lock);
}

/* ------------------------------------------------------------------ numbers come and go */

static void alive_init(void);

int vkr_fd_track(int fd, struct vkr_file *f)
{
	struct vkr_file *stale;
	int r = -ENOMEM;

	pthread_mutex_lock(&vkr_ctl_lock);
	alive_init();
	if (f)
		r = vkr_file_install(fd, f, &stale);
	if (r < 0)
		stale = vkr_file_uninstall(fd);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	if (f)
		vkr_file_put(f);
	return r;
}

void vkr_fd_socket(int fd, int domain, int type, int protocol)
{
	struct vkr_sock *s;

	if ((domain != AF_INET && domain != AF_INET6) || (type & 0xff) != SOCK_STREAM ||
	    (protocol && protocol != IPPROTO_TCP)) {
		vkr_fd_fresh(fd);
		return;
	}
	s = vkr_sock_new(domain, type, protocol);
	vkr_fd_track(fd, s ? &s->file : NULL);
}

int vkr_fd_epoll(int fd)
{
	struct vkr_epset *e = vkr_epset_new();

	return vkr_fd_track(fd, e ? &e->file : NULL);
}

void vkr_fd_fresh(int fd)
{
	struct vkr_file *f;

	if (!vkr_fd_tracked(fd))
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	f = vkr_file_uninstall(fd);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (f)
		vkr_file_put(f);
}

/* A number's registrations in epoll sets go with the file's last number; the kernel's own rule, and the reason why it
 * is not done here. */
int vkr_sock_close(int fd)
{
	struct vkr_file *f;
	int r;

	if (vkr_guard_has(fd))
		return -EBADF;
	vkr_fork_check();
	if (vkr_in_vfork_child())
		return VKR_PASS;
	pthread_mutex_lock(&vkr_ctl_lock);
	f = vkr_file_uninstall(fd);
	if (!f) {
		pthread_mutex_unlock(&vkr_ctl_lock);
		return VKR_PASS;
	}
	/* A kernel socket may linger: not under the lock. Its number is free only after the call, so the order is safe.
	 */
	if (f->kind == VKR_KIND_SOCK && vkr_load(&((struct vkr_sock *)f)->state) == VKR_SOCK_FINAL) {
		pthread_mutex_unlock(&vkr_ctl_lock);
		vkr_sock_tcp_closes((struct vkr_sock *)f, fd);
		vkr_file_put(f);
		return VKR_PASS;
	}
	r = vkr_real.close(fd) < 0 ? -errno : 0;
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_file_put(f);
	return r;
}

struct range {
	int first, last;
	struct vkr_file *gone[64];
	int n;
};

static void take_in_range(int fd, struct vkr_file *f, void *arg)
{
	struct range *r = arg;

	if (fd >= r->first && fd <= r->last && r->n < (int)VKR_ARRAY_SIZE(r->gone))
		r->gone[r->n++] = vkr_file_uninstall(fd);
}

/* Puts out of the table what the range names, a handful at a time since the destructors run without the lock. */
static void forget_range(unsigned first, unsigned last)
{
	struct range r = {.first = (int)vkr_min(first, (unsigned)INT32_MAX),
			  .last = (int)vkr_min(last, (unsigned)INT32_MAX)};
	int i;

	do {
		r.n = 0;
		pthread_mutex_lock(&vkr_ctl_lock);
		vkr_file_each_number(NULL, take_in_range, &r);
		pthread_mutex_unlock(&vkr_ctl_lock);
		for (i = 0; i < r.n; i++)
			vkr_file_put(r.gone[i]);
	} while (r.n == (int)VKR_ARRAY_SIZE(r.gone));
}

#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

int vkr_sock_close_range(unsigned first, unsigned last, int flags)
{
	unsigned from = first;
	int hole, r = 0;

	if (first > last || (flags & ~(int)(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)))
		return VKR_PASS; /* for the kernel's errno */
	vkr_fork_check();
	if (!vkr_in_vfork_child() && !(flags & CLOSE_RANGE_CLOEXEC))
		forget_range(first, last);
	/* Ours are the holes. In a vfork child they may as well go with exec: they are close-on-exec. */
	while (from <= last) {
		hole = from > INT32_MAX ? -1 : vkr_guard_next((int)from);
		if (hole < 0 || (unsigned)hole > last)
			break;
		if ((unsigned)hole > from)
			r |= vkr_real.close_range(from, (unsigned)hole - 1, flags);
		from = (unsigned)hole + 1;
	}
	if (from <= last)
		r |= vkr_real.close_range(from, last, flags);
	return r ? -errno : 0;
}

void vkr_sock_closefrom(int lowfd)
{
	vkr_sock_close_range((unsigned)vkr_max(lowfd, 0), ~0u, 0);
}

int vkr_sock_dup(int fd, int min, bool cloexec)
{
	struct vkr_file *f, *stale = NULL;
	int r;

	vkr_fork_check();
	if (vkr_in_vfork_child())
		return VKR_PASS;
	f = vkr_file_get(fd);
	if (!f)
		return VKR_PASS;
	pthread_mutex_lock(&vkr_ctl_lock);
	r = vkr_real.fcntl(fd, cloexec ? F_DUPFD_CLOEXEC : F_DUPFD, min);
	if (r < 0) {
		r = -errno;
	} else {
		vkr_file_install(r, f, &stale);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	vkr_file_put(f);
	return r;
}

int vkr_sock_dup2(int oldfd, int newfd, int flags, bool is_dup3)
{
	struct vkr_file *f, *stale = NULL;
	vkr_entry *e;
	int r;

	if (vkr_guard_has(oldfd))
		return -EBADF;
	vkr_fork_check();
	if (oldfd == newfd || vkr_in_vfork_child())
		return VKR_PASS; /* dup2: the number, if it is valid; dup3: EINVAL */
	pthread_mutex_lock(&vkr_ctl_lock);
	f = vkr_file_get(oldfd);
	if (vkr_guard_has(newfd) && vkr_guard_evict(newfd) < 0) {
		r = -EBUSY;
		goto out;
	}
	e = vkr_fd_entry(newfd);
	if (as_set(f))
		vkr_plain_change(newfd, e ? as_set(vkr_load(e)) : NULL, as_set(f));
	r = is_dup3 ? vkr_real.dup3(oldfd, newfd, flags) : vkr_real.dup2(oldfd, newfd);
	if (r < 0)
		r = -errno;
	else if (!f || vkr_file_install(newfd, f, &stale) < 0)
		stale = vkr_file_uninstall(newfd);
	if (as_set(f))
		vkr_plain_changed(as_set(stale), as_set(f));
out:
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	/* Where stdio is: printf() and scanf() do not come by us. */
	if (f && r >= 0 && newfd <= STDERR_FILENO && f->kind == VKR_KIND_SOCK)
		vkr_pair_share((struct vkr_sock *)f, newfd);
	if (f)
		vkr_file_put(f);
	return r;
}

/* ------------------------------------------------------------------ fork */

/* vkr_ctl_lock held. The page is made with the first tracked descriptor: before that there is nothing to lose. */
static void alive_init(void)
{
	void *page;

	if (vkr_load(&vkr_alive) != &alive_before_init)
		return;
	vkr_store(&owner_pid, getpid());
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK))
		return;
	*(_Atomic uint32_t *)page = 1;
	vkr_store_rel(&vkr_alive, page);
}

bool vkr_in_vfork_child(void)
{
	return vkr_load(&owner_pid) && getpid() != vkr_load(&owner_pid);
}

static void mark_shared(int fd, struct vkr_file *f, void *arg)
{
	if (f->kind == VKR_KIND_SOCK)
		((struct vkr_sock *)f)->shared = true;
}

static bool prepared; /* the fork was seen: nobody was in the middle of anything */

void vkr_socket_fork_prepare(void)
{
	vkr_pump_fork_prepare();
	pthread_mutex_lock(&vkr_ctl_lock);
	pthread_mutex_lock(&pool_lock);
	prepared = true;
	if (vkr_engine_running())
		vkr_engine_fork_prepare();
}

void vkr_socket_fork_parent(void)
{
	if (vkr_engine_running())
		vkr_engine_fork_parent();
	vkr_file_each_number(NULL, mark_shared, NULL);
	prepared = false;
	pthread_mutex_unlock(&pool_lock);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_pump_fork_parent();
}

static void close_in_child(int fd, void *arg)
{
	vkr_guard_close(fd);
}

static void note_inherited(int fd, struct vkr_file *f, void *arg)
{
	mark_shared(fd, f, arg);
	if (f->kind == VKR_KIND_SOCK && vkr_load(&((struct vkr_sock *)f)->state) == VKR_SOCK_CARRIED)
		vkr_store(&vkr_pair_inherited, true);
}

/*
 * The child owns no connection. What it inherited keeps its entries (so that its first call on one asks the owner for
 * pair mode), is never taken down, and everything it makes from now on is its own.
 */
void vkr_socket_fork_child(void)
{
	bool ran = vkr_engine_running();

	vkr_limits_fork_child();
	if (prepared) { /* they are this thread's */
		pthread_mutex_unlock(&pool_lock);
		pthread_mutex_unlock(&vkr_ctl_lock);
		vkr_pump_fork_parent();
	}
	pthread_mutex_init(&vkr_ctl_lock, NULL);
	pthread_mutex_init(&pool_lock, NULL);
	vkr_store(&owner_pid, getpid());
	vkr_store(vkr_load(&vkr_alive), 1);
	vkr_fork_generation++;
	if (ran)
		vkr_engine_fork_child();
	vkr_stats_forked(); /* first: the guard counts what it closes, and not in the parent's map */
	vkr_bequests_keep();
	vkr_guard_each(close_in_child, NULL);
	vkr_bequests_forked();
	vkr_log_forked();
	vkr_options_forked();
	vkr_connect_forked();
	vkr_wait_forked();
	vkr_plain_forked();
	vkr_pump_fork_child();
	vkr_epsets_forked(prepared);
	prepared = false;
	vkr_file_each_number(NULL, note_inherited, NULL);
}

void vkr_fork_check_slow(void)
{
	vkr_socket_fork_child();
}

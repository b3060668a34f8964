/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Descriptor numbers to open descriptions ("files"), as the kernel has them: several numbers may name one file, and a
 * file lives until its last number is closed and the last call on it has returned.
 *
 * The table is read without locks. File objects are type-stable (their memory is reused for files only and never
 * unmapped), so a reader may touch one that is being freed: it takes a reference only if the count is not zero, then
 * looks again whether the number still names that file.
 *
 * vkr_ctl_lock serialises everything structural: the table's writers, state changes of sockets, and registrations in
 * epoll sets. It is the outermost lock (vkr_ctl_lock -> CQ -> pollable -> epoll set -> leaves) and is never held across
 * a call that can block.
 */
#ifndef VKR_FDMAP_H
#define VKR_FDMAP_H

#include "base.h"
#include "socket.h"

extern pthread_mutex_t vkr_ctl_lock;

enum vkr_kind { VKR_KIND_SOCK = 1, VKR_KIND_EPOLL };

struct vkr_item;
struct vkr_sock;
struct vkr_epset;

struct vkr_file {
	_Atomic uint32_t refs; /* numbers + calls in progress */
	_Atomic int number;    /* one of its numbers, a hint */
	_Atomic int numbers;   /* how many */
	uint32_t generation;   /* vkr_fork_generation when made: another value means inherited by fork */
	uint8_t kind;
	struct vkr_item *items; /* its registrations in epoll sets */
	struct vkr_file *next_free;
};

extern VKR_LOCAL uint32_t vkr_fork_generation;

/* Takes down a file whose last reference has gone. */
void vkr_file_end(struct vkr_file *f);
static inline void vkr_file_put(struct vkr_file *f)
{
	if (vkr_unlikely(atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) == 1))
		vkr_file_end(f);
}

/* A reference, or NULL for a number that we do not track. */
static VKR_INLINE struct vkr_file *vkr_file_get(int fd)
{
	vkr_entry *e = vkr_fd_entry(fd);
	struct vkr_file *f;
	uint32_t refs;

	if (!e)
		return NULL;
	while ((f = vkr_load_acq(e))) {
		refs = vkr_load(&f->refs);
		/* None left: it is being taken down, and the number is about to change. */
		if (!refs || !atomic_compare_exchange_weak_explicit(&f->refs, &refs, refs + 1, memory_order_acquire,
								    memory_order_relaxed))
			continue;
		if (vkr_likely(vkr_load_acq(e) == f))
			return f;
		vkr_file_put(f);
	}
	return NULL;
}

static inline void vkr_file_hold(struct vkr_file *f)
{
	atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}
static inline bool vkr_file_inherited(const struct vkr_file *f)
{
	return f->generation != vkr_fork_generation;
}

/* For VKR_CLEANUP. */
static inline void vkr_file_putp(struct vkr_file **f)
{
	if (*f)
		vkr_file_put(*f);
}

/* The same, of one kind only: a file of another kind is NULL. */
static VKR_INLINE struct vkr_file *vkr_file_get_kind(int fd, enum vkr_kind kind)
{
	struct vkr_file *f = vkr_file_get(fd);

	if (vkr_unlikely(f && f->kind != kind)) {
		vkr_file_put(f);
		return NULL;
	}
	return f;
}
static VKR_INLINE struct vkr_sock *vkr_sock_get(int fd)
{
	return (struct vkr_sock *)vkr_file_get_kind(fd, VKR_KIND_SOCK);
}
static VKR_INLINE struct vkr_epset *vkr_epset_get(int fd)
{
	return (struct vkr_epset *)vkr_file_get_kind(fd, VKR_KIND_EPOLL);
}

/* One reference, no number yet. NULL: out of memory. */
struct vkr_sock *vkr_sock_new(int domain, int type, int protocol);
struct vkr_epset *vkr_epset_new(void);

/* vkr_ctl_lock held. Gives the file one more reference, held by the number; that of whose number it was is *stale, to
 * be put after unlocking. 0 or -ENOMEM: nothing has changed. */
int vkr_file_install(int fd, struct vkr_file *f, struct vkr_file **stale);
/* The number is f's from now on, whose reference it takes over. No lock held. -ENOMEM, for f NULL too: it is nobody's.
 */
int vkr_fd_track(int fd, struct vkr_file *f);
/* vkr_ctl_lock held. Takes the number's reference out of the table for the caller to put after unlocking; NULL if none.
 */
struct vkr_file *vkr_file_uninstall(int fd);
/* A number that names f now, or -1. vkr_ctl_lock held. */
int vkr_file_number(struct vkr_file *f);
/* Calls fn for each number of f. vkr_ctl_lock held. */
void vkr_file_each_number(struct vkr_file *f, void (*fn)(int fd, struct vkr_file *f, void *arg), void *arg);

/* Called by vkr_file_put() for the last reference, no lock held (socket.c, poll_emul.c). */
void vkr_sock_destroy(struct vkr_sock *s);
void vkr_epset_destroy(struct vkr_epset *e);

/* A child of fork that ran no handlers (_Fork, clone) is found here: true once, after which the state is a child's. */
void vkr_fork_check_slow(void);
extern VKR_LOCAL _Atomic uint32_t *_Atomic vkr_alive; /* a MADV_WIPEONFORK page */
static inline void vkr_fork_check(void)
{
	if (vkr_unlikely(!vkr_load(vkr_load(&vkr_alive))))
		vkr_fork_check_slow();
}
/* In a child of vfork, which shares our memory and must change nothing in it. */
bool vkr_in_vfork_child(void);

#endif

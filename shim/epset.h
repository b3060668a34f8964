/* SPDX-License-Identifier: BSD-2-Clause */
/* An epoll set and its registrations, and what poll_emul.c and poll_wait.c do for the sockets. */
#ifndef VKR_EPSET_H
#define VKR_EPSET_H

#include "fdmap.h"
#include "pollable.h"
#include "rdma.h"

#include <sys/epoll.h>

struct vkr_epset {
	struct vkr_file file;
	pthread_mutex_t lock;
	struct vkr_item *items; /* watched or recorded, not dual (DL, under vkr_ctl_lock) */
	struct vkr_item *duals; /* registered in the kernel and watched: listeners, sets that hold streams */
	struct vkr_item *ready; /* DL, under lock */
	_Atomic uint32_t n_ready;
	_Atomic bool mixed;     /* holds something the kernel knows nothing of */
	_Atomic bool marked;    /* by one of its numbers the kernel finds markers of ours, or is about to */
	bool signaled;          /* the eventfd was written and not read yet; under lock */
	_Atomic bool wake_due;  /* signaled, and the eventfd is still to be written */
	_Atomic int sleepers;   /* changed under lock */
	_Atomic int in_kernel;  /* threads in the kernel's wait alone: the set was not mixed, or is another */
	_Atomic bool known;     /* some were or will be past us, and registrations too; under plain_wait.c's lock */
	bool claimed;           /* no more are; likewise */
	_Atomic bool had_duals; /* set before the kernel knows of the first */
	_Atomic bool
	    checks_duals;    /* the same for a set, or one with EPOLLONESHOT: an event of the kernel's may not stand */
	_Atomic int n_heirs; /* inherited streams among the items that the kernel's set does not have yet */
	int efd;             /* guarded */
	int own; /* guarded: the kernel's set under a number that the application cannot close; mixed sets */
	unsigned engine_generation;
	_Atomic int native;        /* registrations made in the kernel (never too few) */
	_Atomic int64_t kernel_at; /* ns: when the kernel was last asked */
	struct vkr_pollable poll;  /* for sets and polls that hold this set */
};

/* A registration. Lists are under vkr_ctl_lock unless said otherwise. */
struct vkr_item {
	struct vkr_watch watch;
	struct vkr_pollable *watched; /* where the watch is, or NULL */
	struct vkr_epset *set;
	struct vkr_file *file;
	int fd;
	_Atomic uint32_t events; /* under set->lock, as are data and disabled */
	uint64_t data;
	_Atomic bool disabled; /* ONESHOT was taken */
	bool in_kernel, dual;
	bool off;    /* dual: the kernel's half was taken out when user space reported the ONESHOT */
	bool heir;   /* an inherited socket's whose half of user space has its turn when the child waits */
	bool queued; /* on set->ready; under set->lock, as are the links */
	struct vkr_item *ready_prev, *ready_next;
	struct vkr_item *prev, *next;           /* on set->items or set->duals */
	struct vkr_item *file_prev, *file_next; /* on file->items */
};

/* The events that make the item ready; its set's lock or vkr_ctl_lock held, or racy on purpose. */
static inline uint32_t vkr_item_wants(const struct vkr_item *it)
{
	return vkr_load(&it->disabled) ? 0 : vkr_load(&it->events) | EPOLLERR | EPOLLHUP;
}

/* What our registrations in a kernel set are known by: [0] the set's eventfd, [1 + i] the engine's descriptor i. */
extern const char vkr_markers[VKR_MAX_DEVICES + 1];
/* vkr_ctl_lock held. Registers the engine's descriptors that are not in the set yet; generation says when. */
void vkr_epset_engine_fds(struct vkr_epset *set, int epfd);

/* The kernel's set: stays valid when the application closes its number while a thread waits. */
static inline int vkr_epset_fd(struct vkr_epset *set)
{
	int own = vkr_load((_Atomic int *)&set->own);

	return own >= 0 ? own : vkr_file_number(&set->file);
}

/* User space has reported a dual with EPOLLONESHOT: the kernel's half is to be silent too. No lock held. */
void vkr_items_claimed(struct vkr_epset *set);
/* The kernel has reported the item, which is a dual's: false if user space has already. vkr_ctl_lock held. */
bool vkr_item_claim(struct vkr_item *it);

/* set->lock held. Idempotent. */
void vkr_ready_add(struct vkr_epset *set, struct vkr_item *it);
void vkr_ready_del(struct vkr_epset *set, struct vkr_item *it);
/* set->lock held. The list begins with `it`, which is on it; what stood before it comes last. */
static inline void vkr_ready_turn(struct vkr_epset *set, struct vkr_item *it)
{
	struct vkr_item *head = set->ready, *tail = head->ready_prev;

	if (it == head)
		return;
	tail->ready_next = head; /* a utlist's head knows its tail, and the tail's next is NULL */
	it->ready_prev->ready_next = NULL;
	set->ready = it;
}

/* A connect that succeeded or failed, and that nobody has acted on yet. */
bool vkr_attempt_ended(struct vkr_file *f);

/* The EPOLL* bits that hold now in user space; 0 for what only the kernel knows. */
uint32_t vkr_file_ready(struct vkr_file *f);

/* The kernel reports a stream socket's IN and OUT under both of their names. */
static inline uint32_t vkr_ready_bits(uint32_t ready)
{
	return ready | (ready & EPOLLIN ? EPOLLRDNORM : 0) | (ready & EPOLLOUT ? EPOLLWRNORM : 0);
}

/* True if the set, readable in the kernel's eyes, holds more than a marker of ours. No lock held. */
bool vkr_epset_ready(struct vkr_epset *set);

/* True if a wait on the set would find something of ours. */
bool vkr_epset_peek(struct vkr_epset *set);

/* ---- poll_emul.c, for socket.c (vkr_ctl_lock held) */
/* The set, of which epfd is a number, can hold carried members from now on. 0, or -errno: it is as it was. */
int vkr_epset_mix(struct vkr_epset *set, int epfd);
int vkr_items_prepare(struct vkr_file *f);    /* the same for the sets that hold the file */
void vkr_items_to_user(struct vkr_file *f);   /* out of the kernel sets, watched instead (CONNECTING) */
void vkr_items_to_kernel(struct vkr_file *f); /* back again (fallback) */
void vkr_items_return(struct vkr_file *f);    /* back again, and may be taken out once more (disconnect) */
void vkr_items_watch(struct vkr_file *f);     /* stay in the kernel, watched too (LISTEN): in prepared sets */
void vkr_items_drop(struct vkr_file *f);      /* the file goes */
void vkr_items_forget(struct vkr_file *f);    /* no longer tracked: records only, the kernel's stay */

/* Carried now: what is ready was not so under the attempt. */
void vkr_items_recheck(struct vkr_file *f);

/* ---- items, for epoll_heir.c (vkr_ctl_lock held) */
struct vkr_item *vkr_item_find(struct vkr_epset *set, struct vkr_file *f, int fd);
/* A record; NULL: out of memory. */
struct vkr_item *vkr_item_new(struct vkr_epset *set, struct vkr_file *f, int fd, const struct epoll_event *ev);
void vkr_item_free(struct vkr_item *it);
/* Every item of the set. */
void vkr_epset_empty(struct vkr_epset *set);

/* ---- epoll_heir.c: sets inherited by fork */

/* The number's set is the parent's, and mixed: puts one of this process's own under it, with the same registrations.
 * The set that the number names now, held, or NULL and *r. No lock held. */
struct vkr_epset *vkr_epset_heir(int epfd, int *r);
/* Before a wait: the inherited streams among its items go into the kernel's set (pair mode). No lock held. */
void vkr_epset_take_heirs(struct vkr_epset *set);
/* epoll_ctl on an inherited stream that only the records know: 0 done, VKR_PASS it is in the kernel's set now. */
int vkr_heir_ctl(struct vkr_epset *set, struct vkr_file *f, int op, int fd);
/* The child of a fork. whole: the lists were quiet. */
void vkr_epsets_forked(bool whole);
/* The last reference to an inherited file goes. */
void vkr_file_disinherit(struct vkr_file *f);

/* poll_wait.c: waits until (ready & want) or the deadline (ns, 0 none). 0, -EAGAIN at the deadline, -EINTR. p may be
 * NULL. Input of fd and of other, the kernel's, is also waited for, -1: none. A wait without a deadline goes on after
 * handlers with SA_RESTART. */
int vkr_wait(struct vkr_pollable *p, uint32_t want, int64_t deadline, int fd, int other);
/* The same for more bytes than n, the end, or an error. */
int vkr_wait_more(struct vkr_stream *s, size_t n, int64_t deadline);
/* The same for the end of a connect attempt, whichever way it goes. */
int vkr_wait_connect(struct vkr_stream *s, int64_t deadline);
void vkr_wait_forked(void);

#endif

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
#include "pollable.h"
#include "rdma.h"

#include <netinet/in.h>
#include <sys/socket.h>

extern pthread_mutex_t vkr_ctl_lock;

enum vkr_kind { VKR_KIND_SOCK = 1, VKR_KIND_EPOLL };

struct vkr_item;

struct vkr_file {
	_Atomic uint32_t refs; /* numbers + calls in progress */
	_Atomic int number;    /* one of its numbers, a hint */
	uint32_t generation;   /* vkr_fork_generation when made: another value means inherited by fork */
	uint8_t kind;
	struct vkr_item *items; /* its registrations in epoll sets */
	struct vkr_file *next_free;
};

enum vkr_sock_state {
	VKR_SOCK_TCP,        /* kernel socket that a rule may still flag */
	VKR_SOCK_LISTEN,     /* flagged: kernel and RDMA listener */
	VKR_SOCK_CONNECTING, /* flagged: the attempt runs; the number is an unconnected kernel TCP socket */
	VKR_SOCK_CARRIED,    /* the number is our end of a socketpair, the bytes go by RDMA */
	VKR_SOCK_FINAL,      /* kernel TCP for good; tracked for its counters only */
};

struct vkr_options;

struct vkr_sock {
	struct vkr_file file;
	_Atomic uint8_t state;
	_Atomic bool nonblock; /* as the application set it */
	bool shared;           /* another process has the unconnected socket too: TCP */
	bool told;             /* a connect() has reported success */
	_Atomic bool shut_wr;
	int domain, type, protocol;
	struct vkr_stream *stream;
	struct vkr_stream *failed_stream; /* of an attempt that fell back; kept for threads that look at it */
	int connect_waits;                /* threads inside a blocking connect(), who will end the attempt themselves */
	struct vkr_listener *listener;
	struct vkr_listener_stats *listener_stats;
	struct vkr_conn_stats *tcp_stats;
	int pair_lib, pair_app;             /* guarded; pair_app only until the number has been replaced */
	_Atomic int error;                  /* SO_ERROR of a connect that failed after it had returned EINPROGRESS */
	_Atomic unsigned turn;              /* accept: who is asked first */
	_Atomic int64_t rcvtimeo, sndtimeo; /* ns, 0 none */
	int linger_on, linger_s;
	struct sockaddr_storage peer; /* of the attempt */
	char rule[72];
	int64_t retry_at; /* LISTEN without an RDMA listener: ns */
	int backlog;
	struct vkr_options *options;
};

struct vkr_epset {
	struct vkr_file file;
	pthread_mutex_t lock;
	struct vkr_item *items; /* watched or recorded, not dual (DL, under vkr_ctl_lock) */
	struct vkr_item *duals; /* registered in the kernel and watched: listeners, sets that hold streams */
	struct vkr_item *ready; /* DL, under lock */
	_Atomic uint32_t n_ready;
	_Atomic bool mixed; /* holds something the kernel knows nothing of */
	bool signaled;      /* the eventfd was written and not read yet; under lock */
	int sleepers;       /* under lock */
	int n_inner;        /* sets among the duals */
	int efd;            /* guarded */
	unsigned engine_generation;
	int engine_fds;            /* how many of the engine's are registered */
	_Atomic int native;        /* registrations made in the kernel (never too few) */
	_Atomic int64_t kernel_at; /* ns: when the kernel was last asked */
	struct vkr_pollable poll;  /* for sets and polls that hold this set */
};

extern uint32_t vkr_fork_generation;

/* A reference, or NULL for a number that we do not track. */
struct vkr_file *vkr_file_get(int fd);
void vkr_file_put(struct vkr_file *f);
static inline void vkr_file_hold(struct vkr_file *f)
{
	atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
}
static inline bool vkr_file_inherited(const struct vkr_file *f)
{
	return f->generation != vkr_fork_generation;
}

/* The same, of one kind only: a file of another kind is NULL. */
struct vkr_sock *vkr_sock_get(int fd);
struct vkr_epset *vkr_epset_get(int fd);
static inline void vkr_sock_put(struct vkr_sock *s)
{
	vkr_file_put(&s->file);
}

/* One reference, no number yet. NULL: out of memory. */
struct vkr_sock *vkr_sock_new(int domain, int type, int protocol);
struct vkr_epset *vkr_epset_new(void);

/* vkr_ctl_lock held. Gives the file one more reference, held by the number; the number must be free in the table. */
int vkr_file_install(int fd, struct vkr_file *f);
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

/* CLOCK_MONOTONIC. */
int64_t vkr_now_ns(void);

/* A child of fork that ran no handlers (_Fork, clone) is found here: true once, after which the state is a child's. */
void vkr_fork_check_slow(void);
extern _Atomic uint32_t *vkr_alive; /* a MADV_WIPEONFORK page */
static inline void vkr_fork_check(void)
{
	if (vkr_unlikely(!vkr_load(vkr_alive)))
		vkr_fork_check_slow();
}
/* In a child of vfork, which shares our memory and must change nothing in it. */
bool vkr_in_vfork_child(void);

/* ---- socket.c and its parts, for each other */

/* Moves a CONNECTING socket on when its attempt has ended. Returns the state. No lock held. */
enum vkr_sock_state vkr_sock_settle(struct vkr_sock *s);
/* What the layers above watch: NULL for a kernel-only file. */
struct vkr_pollable *vkr_file_pollable(struct vkr_file *f);

/* sock_opts.c */
int vkr_options_get(struct vkr_sock *s, int level, int name, void *val, socklen_t *len);
int vkr_options_set(struct vkr_sock *s, int level, int name, const void *val, socklen_t len);
void vkr_options_seed(struct vkr_sock *s, int tcp_fd); /* from a kernel TCP socket */
void vkr_options_inherit(struct vkr_sock *child, struct vkr_sock *listener, int listener_fd);
void vkr_options_changed(struct vkr_sock *listener); /* a setsockopt on it passed */
void vkr_options_free(struct vkr_sock *s);
void vkr_options_forked(void);

/* ---- poll_emul.c, for socket.c (vkr_ctl_lock held) */
void vkr_items_to_user(struct vkr_file *f);   /* out of the kernel sets, watched instead (CONNECTING) */
void vkr_items_to_kernel(struct vkr_file *f); /* back again (fallback) */
void vkr_items_watch(struct vkr_file *f);     /* stay in the kernel, watched too (LISTEN) */
void vkr_items_drop(struct vkr_file *f);      /* the file goes */
void vkr_items_forget(struct vkr_file *f);    /* no longer tracked: records only, the kernel's stay */

/* Carried now: what is ready was not so under the attempt. */
void vkr_items_recheck(struct vkr_file *f);

/* poll_wait.c: waits until (ready & want) or the deadline (ns, 0 none). 0, -EAGAIN at the deadline, -EINTR. p may be
 * NULL. kernel_fd >= 0 is also waited for, for kernel_events. A wait without a deadline goes on after handlers with
 * SA_RESTART. */
int vkr_wait(struct vkr_pollable *p, uint32_t want, int64_t deadline, int kernel_fd, short kernel_events);
/* The same for the end of a connect attempt, whichever way it goes. */
int vkr_wait_connect(struct vkr_stream *s, int64_t deadline);
void vkr_wait_forked(void);

#endif

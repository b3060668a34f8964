/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pair mode: a carried connection that more than this process's intercepted calls use.
 *
 * The application's number is one end of a socketpair. Normally no byte crosses the pair. When somebody needs the
 * descriptor as the kernel knows it (a forked child, another program after exec or SCM_RIGHTS, stdio), the owning
 * process switches the connection for good: the progress thread moves what arrives into the pair, and what is written
 * to the pair to the stream, and every holder, the owner's application too, uses its end by plain system calls. fork
 * alone switches nothing.
 *
 * pump.c is the owner's side; pair.c is what any holder does with the application's end, in whatever process.
 *
 * How a holder asks the owner: it sends one byte with the writing end of a pipe (SCM_RIGHTS) through the application's
 * end; the owner closes that end when it has switched and what had arrived is in the pair. What the pair is stands in
 * its names: the application's end is bound to an abstract address that holds the TCP addresses (getsockname), the
 * library's end to another once the pair is in use (getpeername). The names are the kernel's, so they are seen through
 * every copy of the descriptor, in every process.
 *
 * pump_lock comes before vkr_ctl_lock.
 */
#ifndef VKR_PUMP_H
#define VKR_PUMP_H

#include "sock.h"

/* ------------------------------------------------------------------ the owner (pump.c) */

/* A connection is carried: takes s->pair_lib over and watches it; fd is a number of the application's end. Where that
 * fails the connection works, without pair mode: who would need it sees the end. May be called with vkr_ctl_lock held.
 */
void vkr_pump_new(struct vkr_sock *s, int fd);
/* The last number of s in this process is gone. True: others have the descriptor still, the stream is theirs from now
 * on and ends with their last copy. */
bool vkr_pump_release(struct vkr_sock *s);
/* Taken out of s->pump: its connection was dissolved, for every holder. The stream stays the caller's. */
void vkr_pump_drop(struct vkr_pump *p);
/* No descriptor is left for what the program wants: some connections that nobody shares give up theirs, and cannot be
 * shared from then on. True if there were any. No lock held. */
bool vkr_pump_yield(void);
/* Returns when the pair is in use. No lock held. */
void vkr_pump_switch(struct vkr_sock *s);
/* Bytes in the pair that the stream has not taken yet. */
size_t vkr_pump_outq(struct vkr_sock *s);
/* Before the process ends: waits, at most ms, until the stream has what was written to the pairs. */
void vkr_pump_flush(int ms);

/* For bequest.c. enter and leave: pump_lock, without cancellation. watch: the progress thread calls
 * vkr_bequests_serve(), with pump_lock, when fd has input or room; ask: it does so soon, any thread. */
int vkr_pump_enter(void);
void vkr_pump_leave(int cancel);
bool vkr_pump_watch(int fd);
void vkr_pump_ask(void);
/* pump_lock held. s has no number and goes; whoever reads the other end of `to` gets s->pair_app, and with it the
 * stream. -errno: the stream stays, and can be had by nobody but its closer. */
int vkr_pump_bequeath(struct vkr_sock *s, int to);

void vkr_pump_fork_prepare(void);
void vkr_pump_fork_parent(void);
void vkr_pump_fork_child(void);

/* ------------------------------------------------------------------ any holder (pair.c) */

/* Names the application's end: local and peer are what TCP would show. */
void vkr_pair_name(int fd, int domain, const struct sockaddr_storage *local, const struct sockaddr_storage *peer);
/* Names the library's end: the pair is in use. */
void vkr_pair_name_used(int fd);

/* One byte through fd, with a copy of the descriptor `right` (SCM_RIGHTS); never waits. 0 or -errno. System calls only.
 */
int vkr_pair_pass(int fd, int right);

/* True once this process has inherited a carried connection. */
extern VKR_LOCAL _Atomic bool vkr_pair_inherited;
/* Nothing is carried, inherited or listened for before: poll and select are the kernel's. */
static inline bool vkr_polls_concern_us(void)
{
	return vkr_engine_running() || vkr_load(&vkr_pair_inherited);
}

/* The addresses in the name; false if fd is no connection's. */
bool vkr_pair_addrs(int fd, struct sockaddr_storage *local, struct sockaddr_storage *peer);
/* fd came from another process. If it is the application's end of a connection it is tracked, with TCP's names, and
 * options from `listener` if not NULL: 0, or -errno. */
int vkr_pair_adopt(int fd, struct vkr_sock *listener);

/* A carried socket is about to be used by other means than our calls, or by an heir of it. Afterwards its state is
 * PAIRED. No lock held. */
void vkr_pair_share(struct vkr_sock *s, int fd);
/* The same for an heir's first look at a number; does nothing for any other file. */
static inline void vkr_pair_heir(struct vkr_file *f, int fd)
{
	struct vkr_sock *s = (struct vkr_sock *)f;

	if (vkr_unlikely(vkr_file_inherited(f)) && f->kind == VKR_KIND_SOCK && vkr_load(&s->state) == VKR_SOCK_CARRIED)
		vkr_pair_share(s, fd);
}
/* Every carried number that another program is about to inherit. In a child of vfork nothing is written. */
void vkr_pair_exec(void);

/* Reading and writing with TCP's answers where those of an AF_UNIX socket differ. -errno. */
ssize_t vkr_pair_recv(int fd, const struct iovec *iov, int cnt, int flags);
ssize_t vkr_pair_send(int fd, const struct iovec *iov, int cnt, int flags);

#endif

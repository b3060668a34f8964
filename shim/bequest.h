/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Listeners that children inherit. The process that called listen() owns the RDMA listener; the kernel's is
 * everybody's. Each flagged listener has a pair of sequenced-packet sockets, the owner's end and the heirs', which
 * children keep:
 *
 *   heir -> owner   a byte: I am waiting for connections
 *   owner -> heir   a descriptor: a connection, in pair mode (pump.h), for whichever heir is first
 *   end of file     the owner is gone
 *
 * An RDMA connection that comes while nobody in the owner waits for the listener, and heirs do, is handed to them. When
 * the owner is gone, an heir makes itself the owner at its next call: the first gets the RDMA port, others try again
 * now and then and serve TCP meanwhile.
 */
#ifndef VKR_BEQUEST_H
#define VKR_BEQUEST_H

#include "sock.h"

#include <sys/epoll.h>

/* ---- the owner */

/* listen(): makes the sockets. Where that fails there are none: the listener is to be TCP's alone. */
void vkr_bequest_make(struct vkr_sock *l);
/* The listener goes, or the heir's copy of it. No lock held. */
void vkr_bequest_drop(struct vkr_sock *l);
/* Progress thread, no lock held: reads announcements, hands out connections. */
void vkr_bequests_serve(void);
/* A descriptor that was meant for an heir and that none has taken: its number, or -EAGAIN. */
int vkr_bequest_reclaim(struct vkr_sock *l, int flags);

/* ---- fork: between them every other guarded descriptor is closed */
void vkr_bequests_keep(void);
void vkr_bequests_forked(void);

/* ---- an heir */

static inline bool vkr_is_heir(const struct vkr_file *f)
{
	const struct vkr_sock *s = (const struct vkr_sock *)f;

	return vkr_file_inherited(f) && f->kind == VKR_KIND_SOCK && vkr_load(&s->state) == VKR_SOCK_LISTEN;
}
/* A listener whose connections may come from the owner's half: an heir's, or the owner's own that has heirs. */
static inline bool vkr_is_shared(const struct vkr_file *f)
{
	const struct vkr_sock *s = (const struct vkr_sock *)f;

	return f->kind == VKR_KIND_SOCK && (vkr_load(&s->bequest.wanted) || vkr_is_heir(f));
}
/* The descriptor that is readable when the owner has handed out a connection, or is gone; -1: it never will be.
 * Announces. */
int vkr_heir_wait_fd(struct vkr_sock *l);
/* The number in an epoll set of this process: the owner's half follows what the kernel has just done with the
 * listener. Announces. vkr_ctl_lock held. */
void vkr_heir_epoll(struct vkr_sock *l, int epfd, int op, struct epoll_event *ev);
/* Takes a connection that the owner has handed out: its number, or -EAGAIN; -EOWNERDEAD: this process is the owner
 * now. */
int vkr_heir_accept(struct vkr_sock *l, int fd, int flags);

#endif

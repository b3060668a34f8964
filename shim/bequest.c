/* SPDX-License-Identifier: BSD-2-Clause */
/* Listeners that children inherit: bequest.h. The list of listeners and all that is done for heirs is under pump_lock.
 */
#include "bequest.h"

#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "pump.h"
#include "socket.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

static struct vkr_sock *listeners; /* this process's own */

static struct vkr_sock *sock_of(struct vkr_watch *w)
{
	return vkr_container_of(w, struct vkr_sock, bequest.watch);
}

/* ------------------------------------------------------------------ the owner */

static bool connection_waits(struct vkr_watch *w, uint32_t edge)
{
	(void)sock_of(w);
	(void)edge;
	vkr_pump_ask();
	return false;
}

void vkr_bequest_make(struct vkr_sock *l)
{
	struct vkr_bequest *b = &l->bequest;
	int sv[2], cancel, one = 1;

	if (vkr_real.socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv) < 0)
		return;
	b->owner = vkr_guard_spare(sv[0]);
	b->heir = vkr_guard_spare(sv[1]);
	if (b->owner < 0 || b->heir < 0 || !vkr_pump_watch(b->owner)) {
		vkr_bequest_drop(l);
		return;
	}
	vkr_guard_slot(b->owner, &b->owner);
	vkr_guard_slot(b->heir, &b->heir);
	vkr_real.setsockopt(b->owner, SOL_SOCKET, SO_PASSCRED, &one, sizeof(one));
	b->watch.fire = connection_waits;
	cancel = vkr_pump_enter();
	DL_APPEND2(listeners, l, bequest.prev, bequest.next);
	b->listed = true;
	vkr_pump_leave(cancel);
}

static void close_one(int *fd)
{
	if (*fd >= 0)
		vkr_guard_close(*fd);
	*fd = -1;
}

void vkr_bequest_drop(struct vkr_sock *l)
{
	struct vkr_bequest *b = &l->bequest;
	int cancel;

	if (b->owner < 0 && b->heir < 0)
		return;
	cancel = vkr_pump_enter();
	if (b->listed)
		DL_DELETE2(listeners, l, bequest.prev, bequest.next);
	if (b->watches)
		vkr_watch_del(vkr_listener_pollable(l->listener), &b->watch);
	b->listed = b->watches = b->strangers = false;
	vkr_store(&b->wanted, false);
	while (b->n_heirs)
		close_one(&b->heirs[--b->n_heirs]);
	close_one(&b->owner);
	close_one(&b->heir);
	vkr_pump_leave(cancel);
}

static bool writable(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	return vkr_poll_now(&p, 1) > 0 && p.revents & POLLOUT;
}

/* One announcement: the process that sent it is kept an eye on. False: there is none. */
static bool hear(struct vkr_bequest *b)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(struct ucred))];
	} u;
	char c;
	struct iovec iov = {&c, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	struct ucred cred = {0};
	int fd = -1;

	if (vkr_real.recvmsg(b->owner, &m, MSG_DONTWAIT) <= 0)
		return false;
	if (CMSG_FIRSTHDR(&m) && u.h.cmsg_type == SCM_CREDENTIALS)
		memcpy(&cred, CMSG_DATA(&u.h), sizeof(cred));
	if (cred.pid > 0 && b->n_heirs < VKR_HEIRS)
		fd = vkr_guard_spare((int)vkr_real.syscall(SYS_pidfd_open, cred.pid, 0));
	if (fd >= 0)
		b->heirs[b->n_heirs++] = fd;
	else if (cred.pid <= 0 || errno != ESRCH)
		b->strangers = true;
	vkr_store(&b->wanted, true);
	return true;
}

/* Somebody is there to take a connection. */
static bool has_heirs(struct vkr_bequest *b)
{
	struct pollfd p;
	int i = 0;

	while (i < b->n_heirs) {
		p = (struct pollfd){.fd = b->heirs[i], .events = POLLIN};
		if (vkr_poll_now(&p, 1) <= 0)
			return true;
		close_one(&b->heirs[i]); /* it has ended */
		b->heirs[i] = b->heirs[--b->n_heirs];
	}
	return b->strangers;
}

/* The owner's threads come first: who waits for the listener, or has it in an epoll set, watches it. */
static void hand_out(struct vkr_sock *l)
{
	struct sockaddr_storage peer;
	struct vkr_stream *stream;
	struct vkr_sock *s;
	void *ticket;
	char text[80];
	int r;

	while (has_heirs(&l->bequest) && vkr_watch_alone(vkr_listener_pollable(l->listener), &l->bequest.watch) &&
	       writable(l->bequest.owner) && (stream = vkr_listener_accept(l->listener, &ticket))) {
		s = ticket;
		s->stream = stream;
		snprintf(s->rule, sizeof(s->rule), "%s", l->rule);
		vkr_stream_addrs(stream, NULL, &peer);
		vkr_address_text((struct sockaddr *)&peer, text, sizeof(text));
		r = vkr_pump_bequeath(s, l->bequest.owner);
		if (!r) {
			vkr_count(&l->listener_stats->accepted_rdma, 1);
			vkr_info("connection from %s is RDMA (rule %s), and another process accepts it", text, s->rule);
		} else {
			/* It ends here, with a reset: the socket's own end of it would want pump_lock. */
			vkr_warn("connection from %s cannot be given to the process that accepts it: %s", text,
				 strerror(-r));
			s->stream = NULL;
			vkr_stream_close(stream, 0);
		}
		vkr_sock_put(s);
	}
}

void vkr_bequests_serve(void)
{
	struct vkr_sock *l;

	DL_FOREACH2(listeners, l, bequest.next)
	{
		while (hear(&l->bequest))
			;
		if (!vkr_load(&l->bequest.wanted) || !l->listener)
			continue;
		if (!l->bequest.watches)
			vkr_watch_add(vkr_listener_pollable(l->listener), &l->bequest.watch);
		l->bequest.watches = true;
		hand_out(l);
	}
}

/* ------------------------------------------------------------------ fork */

static void keep(int fd, struct vkr_file *f, void *arg)
{
	struct vkr_sock *l = (struct vkr_sock *)f;

	(void)fd;
	if (f->kind == VKR_KIND_SOCK && l->bequest.heir >= 0)
		vkr_guard_unmark(l->bequest.heir);
}

void vkr_bequests_keep(void)
{
	vkr_file_each_number(NULL, keep, NULL);
}

static void forked(int fd, struct vkr_file *f, void *arg)
{
	struct vkr_sock *l = (struct vkr_sock *)f;

	(void)fd;
	if (f->kind != VKR_KIND_SOCK || vkr_load(&l->state) != VKR_SOCK_LISTEN)
		return;
	if (l->bequest.heir >= 0) {
		vkr_guard_mark(l->bequest.heir);
		vkr_guard_slot(l->bequest.heir, &l->bequest.heir);
	}
	l->bequest = (struct vkr_bequest){.owner = -1, .heir = l->bequest.heir};
	l->listener = NULL; /* the parent's */
	l->listener_stats = NULL;
	l->kernel_fd = -1;
	vkr_store(&vkr_pair_inherited, true);
}

void vkr_bequests_forked(void)
{
	listeners = NULL;
	vkr_file_each_number(NULL, forked, NULL);
}

/* ------------------------------------------------------------------ an heir */

static void announce(struct vkr_sock *l)
{
	if (l->bequest.announced || l->bequest.heir < 0)
		return;
	l->bequest.announced = vkr_real.send(l->bequest.heir, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
}

/* Of the owner too, once it has handed out connections: one may be left when the heirs have ended. */
int vkr_heir_wait_fd(struct vkr_sock *l)
{
	if (vkr_is_heir(&l->file))
		announce(l);
	return l->bequest.heir;
}

void vkr_heir_epoll(struct vkr_sock *l, int epfd, int op, struct epoll_event *ev)
{
	if (op != EPOLL_CTL_DEL && vkr_is_heir(&l->file))
		announce(l);
	if (l->bequest.heir >= 0)
		vkr_real.epoll_ctl(epfd, op, l->bequest.heir, ev);
}

/* An open registration would outlive our copy of the descriptor as long as another heir has one. */
static void leave_sets(struct vkr_sock *l)
{
	struct vkr_item *it;

	DL_FOREACH2(l->file.items, it, file_next)
	if (!vkr_file_inherited(&it->set->file))
		vkr_real.epoll_ctl(vkr_file_number(&it->set->file), EPOLL_CTL_DEL, l->bequest.heir, NULL);
}

static void become_owner(struct vkr_sock *l, int fd)
{
	bool first;

	pthread_mutex_lock(&vkr_ctl_lock);
	first = vkr_file_inherited(&l->file);
	if (first) {
		leave_sets(l);
		l->file.generation = vkr_fork_generation;
		l->shared = false;
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (!first)
		return;
	vkr_bequest_drop(l);
	vkr_sock_listen_own(l, fd);
}

/* The descriptor in a message, -EAGAIN, or -EOWNERDEAD at the end. */
static int take_connection(int heir)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u;
	char c;
	struct iovec iov = {&c, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	struct cmsghdr *h;
	ssize_t r = vkr_real.recvmsg(heir, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	int fd;

	if (r < 0)
		return errno == ECONNRESET ? -EOWNERDEAD : -EAGAIN;
	if (r == 0)
		return -EOWNERDEAD;
	h = CMSG_FIRSTHDR(&m);
	if (!h || h->cmsg_type != SCM_RIGHTS)
		return -EAGAIN; /* there was no descriptor to spare */
	memcpy(&fd, CMSG_DATA(h), sizeof(fd));
	return fd;
}

/* As accept4() would have made it. */
static int adopt(struct vkr_sock *l, int fd, int flags)
{
	int r = vkr_pair_adopt(fd, l);

	if (r < 0) {
		vkr_warn("a connection that another process handed over ends: %s", strerror(-r));
		vkr_real.close(fd);
		return r;
	}
	vkr_real.fcntl(fd, F_SETFD, flags & SOCK_CLOEXEC ? FD_CLOEXEC : 0);
	vkr_real.fcntl(fd, F_SETFL, flags & SOCK_NONBLOCK ? O_RDWR | O_NONBLOCK : O_RDWR);
	return fd;
}

int vkr_heir_accept(struct vkr_sock *l, int fd, int flags)
{
	int r;

	if (l->bequest.heir < 0)
		return -EAGAIN;
	announce(l);
	r = take_connection(l->bequest.heir);
	if (r >= 0)
		return adopt(l, r, flags);
	if (r == -EOWNERDEAD)
		become_owner(l, fd);
	return r;
}

int vkr_bequest_reclaim(struct vkr_sock *l, int flags)
{
	int r = vkr_load(&l->bequest.wanted) ? take_connection(l->bequest.heir) : -EAGAIN;

	return r >= 0 ? adopt(l, r, flags) : -EAGAIN;
}

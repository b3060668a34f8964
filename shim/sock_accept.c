/* SPDX-License-Identifier: BSD-2-Clause */
/* accept(): two queues, the kernel's and the RDMA listener's, and what a connection needs before it may wait in one. */
#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "nofile.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#define NS_PER_S 1000000000ll

void *vkr_sock_admit(void *listener)
{
	const struct vkr_sock *l = listener;
	struct vkr_sock *s = vkr_sock_new(l->domain, l->type, l->protocol);
	int r = -ENOMEM;

	if (s) {
		r = vkr_options_room(s, l);
		if (!r)
			r = vkr_pair_make(s);
		if (!r)
			return s;
		vkr_sock_put(s);
	}
	errno = -r;
	return NULL;
}

void vkr_sock_dismiss(void *ticket)
{
	vkr_sock_put(ticket);
}

/* The lowest number that the application may have. */
static int accepted_number(const struct vkr_sock *s, int flags)
{
	int fd = vkr_real.fcntl(s->pair_app, flags & SOCK_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);

	if (fd < 0)
		return -errno;
	if (!vkr_limits_allow(fd)) {
		vkr_real.close(fd);
		return -EMFILE;
	}
	if (flags & SOCK_NONBLOCK)
		vkr_real.fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK);
	return fd;
}

static int accept_rdma(struct vkr_sock *l, int listen_fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	struct sockaddr_storage local, peer;
	struct vkr_stream *stream;
	struct vkr_file *stale;
	struct vkr_sock *s;
	char text[80];
	void *ticket;
	int fd, r;

	stream = vkr_listener_accept(l->listener, &ticket);
	if (!stream)
		return -EAGAIN;
	s = ticket;
	fd = accepted_number(s, flags);
	if (fd < 0) { /* as in the kernel: the client goes on waiting */
		vkr_listener_return(l->listener, stream, ticket);
		return fd;
	}
	s->stream = stream;
	/* A bad address costs the connection, as in the kernel. */
	r = sa ? vkr_check_address(sa, len) : 0;
	if (r) {
		vkr_real.close(fd);
		vkr_sock_put(s);
		return r;
	}
	vkr_guard_close(s->pair_app);
	s->pair_app = -1;
	vkr_stream_addrs(stream, &local, &peer);
	if (sa)
		vkr_copy_address(&peer, sa, len);
	vkr_store(&s->told, true);
	vkr_store(&s->nonblock, flags & SOCK_NONBLOCK);
	snprintf(s->rule, sizeof(s->rule), "%s", l->rule);
	vkr_stream_stats(stream)->fd = fd;
	vkr_count(&l->listener_stats->accepted_rdma, 1);
	if (!s->inherited)
		vkr_options_inherit(s, l, listen_fd);
	else
		vkr_options_apply(s);
	vkr_info("connection from %s is RDMA (rule %s)", vkr_address_text((struct sockaddr *)&peer, text, sizeof(text)),
		 s->rule);
	vkr_pump_new(s, fd);
	vkr_store_rel(&s->state, VKR_SOCK_CARRIED);
	pthread_mutex_lock(&vkr_ctl_lock);
	r = vkr_file_install(fd, &s->file, &stale);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	vkr_sock_put(s);
	if (r < 0)
		vkr_real.close(fd);
	return r < 0 ? r : fd;
}

static int accept_tcp(struct vkr_sock *l, int listen_fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	struct sockaddr_storage local, peer;
	socklen_t llen = sizeof(local), plen = sizeof(peer);
	struct vkr_sock *s;
	struct vkr_file *stale;
	int fd = vkr_real.accept4(listen_fd, (struct sockaddr *)&peer, &plen, flags), r;

	if (fd < 0)
		return -errno;
	r = sa ? vkr_check_address(sa, len) : 0;
	if (r) {
		vkr_real.close(fd);
		return r;
	}
	if (sa)
		vkr_copy_address(&peer, sa, len);
	s = vkr_sock_new(l->domain, l->type | flags, l->protocol);
	if (!s)
		return fd;
	snprintf(s->rule, sizeof(s->rule), "%s", l->rule);
	vkr_real.getsockname(fd, (struct sockaddr *)&local, &llen);
	vkr_sock_final(s, VKR_ROLE_ACCEPT, (struct sockaddr *)&local, (struct sockaddr *)&peer,
		       l->listener_stats->reason[0] ? l->listener_stats->reason : "the peer connected over TCP");
	s->tcp_stats->fd = fd;
	vkr_count(&l->listener_stats->accepted_tcp, 1);
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_file_install(fd, &s->file, &stale);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	vkr_sock_put(s);
	return fd;
}

/* The address of a connection that the owner has handed out. A bad one costs the connection, as in the kernel. */
static int adopted(int fd, struct sockaddr *sa, socklen_t *len)
{
	struct sockaddr_storage local, peer;
	int r = sa ? vkr_check_address(sa, len) : 0;

	if (!r && sa && vkr_pair_addrs(fd, &local, &peer))
		vkr_copy_address(&peer, sa, len);
	if (r)
		vkr_sock_close(fd);
	return r ? r : fd;
}

/* Both queues, in turn first, so that neither kind of client starves the other. */
static int accept_either(struct vkr_sock *l, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	unsigned turn = atomic_fetch_add_explicit(&l->turn, 1, memory_order_relaxed), i;
	int r;

	for (i = 0; i < 2; i++, turn++) {
		if (turn & 1) {
			r = accept_tcp(l, fd, sa, len, flags);
			if (r != -EAGAIN && r != -ECONNABORTED)
				return r;
		} else if (l->listener) {
			r = accept_rdma(l, fd, sa, len, flags);
			if (r != -EAGAIN)
				return r;
		}
	}
	r = vkr_bequest_reclaim(l, flags);
	return r >= 0 ? adopted(r, sa, len) : r;
}

/* The program's numbers come before what the library keeps for connections that may be shared some day. */
static int accept_once(struct vkr_sock *l, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	int r = accept_either(l, fd, sa, len, flags);

	return r == -EMFILE && vkr_pump_yield() ? accept_either(l, fd, sa, len, flags) : r;
}

int64_t vkr_kernel_timeout(int fd, int name)
{
	struct timeval tv = {0, 0};
	socklen_t len = sizeof(tv);

	vkr_real.getsockopt(fd, SOL_SOCKET, name, &tv, &len);
	return tv.tv_sec * NS_PER_S + tv.tv_usec * 1000ll;
}

/* The listener of a parent: the kernel's queue, and what the owner hands out. Our O_NONBLOCK is on it, the blocking is
 * done here. -EOWNERDEAD: it is this process's now. */
static int accept_inherited(struct vkr_sock *l, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	int64_t timeout, deadline = 0;
	int r;

	for (;;) {
		r = vkr_heir_accept(l, fd, flags);
		if (r >= 0)
			return adopted(r, sa, len);
		if (r == -EOWNERDEAD)
			return r;
		r = vkr_real.accept4(fd, sa, len, flags);
		if (r >= 0)
			vkr_fd_fresh(r);
		if (r >= 0 || errno != EAGAIN || vkr_load(&l->nonblock))
			return r < 0 ? -errno : r;
		timeout = vkr_kernel_timeout(fd, SO_RCVTIMEO);
		if (!deadline && timeout)
			deadline = vkr_now_ns() + timeout;
		r = vkr_wait(NULL, 0, deadline, fd, vkr_heir_wait_fd(l));
		if (r < 0)
			return r;
	}
}

int vkr_sock_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *l = NULL;
	int64_t timeout, deadline = 0;
	int r;

	if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC))
		return VKR_PASS;
	vkr_fork_check();
	l = vkr_sock_get(fd);
	if (!l)
		return VKR_PASS;
	if (vkr_is_connected(vkr_load_acq(&l->state))) {
		r = -EINVAL;
	} else if (vkr_load_acq(&l->state) != VKR_SOCK_LISTEN) {
		r = VKR_PASS;
	} else if (vkr_file_inherited(&l->file) && (r = accept_inherited(l, fd, sa, len, flags)) != -EOWNERDEAD) {
		/* as it is */
	} else {
		vkr_sock_listen_retry(l, fd);
		if (l->kernel_fd >= 0)
			fd = l->kernel_fd; /* the number may be closed, and be another's, while we sleep */
		for (;;) {
			r = accept_once(l, fd, sa, len, flags);
			if (r != -EAGAIN || vkr_load(&l->nonblock))
				break;
			timeout = vkr_kernel_timeout(fd, SO_RCVTIMEO);
			if (!deadline && timeout)
				deadline = vkr_now_ns() + timeout;
			r = vkr_wait(l->listener ? vkr_listener_pollable(l->listener) : NULL, EPOLLIN, deadline, fd,
				     vkr_is_shared(&l->file) ? vkr_heir_wait_fd(l) : -1);
			if (r < 0)
				break;
		}
	}
	return r;
}

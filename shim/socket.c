/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A tracked socket's life but for connecting: states, listening, accepting, names, the end.
 */
#include "bequest.h"
#include "config.h"
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
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NS_PER_S 1000000000ll
#define RETRY_NS (10 * NS_PER_S) /* between tries to get the RDMA port */
#define DRAIN_MS 10000           /* unsent bytes behind a close */

/* ------------------------------------------------------------------ states */

struct vkr_pollable *vkr_file_pollable(struct vkr_file *f)
{
	struct vkr_sock *s = (struct vkr_sock *)f;
	struct vkr_epset *e = (struct vkr_epset *)f;

	if (f->kind == VKR_KIND_EPOLL)
		return vkr_load(&e->mixed) ? &e->poll : NULL;
	switch (vkr_load_acq(&s->state)) {
	case VKR_SOCK_CONNECTING:
	case VKR_SOCK_CARRIED:
		return vkr_stream_pollable(s->stream);
	case VKR_SOCK_LISTEN:
		return s->listener ? vkr_listener_pollable(s->listener) : NULL;
	default:
		return NULL;
	}
}

/* No byte goes through it; see sock.h. Both ends are out of the way until the application's takes its number. */
int vkr_pair_make(struct vkr_sock *s)
{
	int sv[2];

	if (vkr_real.socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv) < 0)
		return -errno;
	s->pair_app = vkr_guard_spare(sv[0]);
	s->pair_lib = vkr_guard_spare(sv[1]);
	if (s->pair_app < 0 || s->pair_lib < 0) {
		vkr_pair_free(s);
		return -EMFILE;
	}
	vkr_guard_slot(s->pair_app, &s->pair_app);
	vkr_guard_slot(s->pair_lib, &s->pair_lib);
	return 0;
}

void vkr_pair_free(struct vkr_sock *s)
{
	if (s->pair_app >= 0)
		vkr_guard_close(s->pair_app);
	if (s->pair_lib >= 0)
		vkr_guard_close(s->pair_lib);
	s->pair_app = s->pair_lib = -1;
}

void vkr_sock_final(struct vkr_sock *s, enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
		    const char *why)
{
	char text[80];

	vkr_stats_open();
	s->tcp_stats = vkr_stats_conn_new(role, local, peer, s->rule);
	vkr_stats_conn_open(s->tcp_stats, VKR_TRANSPORT_TCP, why);
	if (role == VKR_ROLE_CONNECT)
		vkr_count(&vkr_stats->fallbacks, 1);
	vkr_info("%s %s is TCP (rule %s): %s", role == VKR_ROLE_CONNECT ? "connection to" : "connection from",
		 vkr_address_text(peer, text, sizeof(text)), s->rule, why);
	vkr_store_rel(&s->state, VKR_SOCK_FINAL);
}

/* SO_LINGER with a time: close waits until what was written is at the peer, but no longer. */
static void linger(struct vkr_sock *s)
{
	int64_t end = vkr_now_ns() + s->linger_s * NS_PER_S;

	while ((vkr_pump_outq(s) || vkr_stream_outq(s->stream)) && vkr_now_ns() < end &&
	       !(vkr_pollable_ready(vkr_stream_pollable(s->stream)) & (EPOLLHUP | EPOLLERR)))
		vkr_wait(vkr_stream_pollable(s->stream), EPOLLHUP | EPOLLERR, vkr_now_ns() + 5000000, -1, -1);
}

/* The last number is gone and nobody is inside a call. */
void vkr_sock_destroy(struct vkr_sock *s)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_drop(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_bequest_drop(s);
	if (s->listener)
		vkr_listener_close(s->listener);
	if (s->kernel_fd >= 0)
		vkr_guard_close(s->kernel_fd);
	if (s->listener_stats)
		vkr_stats_listener_free(s->listener_stats);
	if (s->dissolved)
		s->stream = NULL; /* one of the past */
	if (s->stream && s->linger_on && s->linger_s)
		linger(s);
	if (s->stream && !vkr_pump_release(s))
		vkr_stream_close(s->stream, s->linger_on && !s->linger_s ? 0 : DRAIN_MS);
	vkr_streams_release(s);
	if (s->tcp_stats)
		vkr_stats_conn_free(s->tcp_stats);
	vkr_pair_free(s);
	vkr_options_free(s);
}

void vkr_sock_untrack(int fd, struct vkr_sock *s)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_forget(&s->file);
	vkr_store_rel(&s->state, VKR_SOCK_FINAL);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_fd_fresh(fd);
}

/* ------------------------------------------------------------------ listen */

static void listen_tcp(struct vkr_sock *s, int fd, enum vkr_log_level level, const char *reason)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	char text[80];

	s->listener_stats->transport = VKR_TRANSPORT_TCP;
	s->retry_at = s->bequest.owner < 0 ? INT64_MAX : vkr_now_ns() + RETRY_NS;
	/* Each retry would say so again. */
	if (!strcmp(s->listener_stats->reason, reason))
		return;
	snprintf(s->listener_stats->reason, sizeof(s->listener_stats->reason), "%s", reason);
	if (vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) == 0)
		vkr_log(level, "listening on %s by TCP only (rule %s): %s",
			vkr_address_text((struct sockaddr *)&sa, text, sizeof(text)), s->rule, reason);
}

/* The socket's from listen_ready() on. NULL: there is none, and why is said. */
static struct vkr_listener *listen_rdma(struct vkr_sock *s, int fd)
{
	struct vkr_listener *l = NULL;
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa), optlen = sizeof(int);
	const char *reason = "";
	int v6only = 0, engine, r;

	if (vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
		return NULL;
	if (sa.ss_family == AF_INET6)
		vkr_real.getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, &optlen);
	vkr_stats_open();
	if (!s->listener_stats)
		s->listener_stats = vkr_stats_listener_new((struct sockaddr *)&sa, s->rule);
	s->listener_stats->fd = fd;
	vkr_plain_prepare();
	r = engine = vkr_engine_start(&reason);
	if (!r && s->bequest.owner < 0) {
		r = -EMFILE;
		reason = "no descriptor is left for children that would share it";
	}
	if (!r)
		r = vkr_listener_create((struct sockaddr *)&sa, v6only, s->backlog, s->rule, s->listener_stats,
					&(struct vkr_admission){vkr_sock_admit, vkr_sock_dismiss, s}, &l, &reason);
	if (!r)
		return l;
	/* What is wrong with the engine has been said. */
	listen_tcp(s, fd, engine ? VKR_LOG_INFO : VKR_LOG_WARN, reason);
	return NULL;
}

/* vkr_ctl_lock held. From now on the sets that hold the socket report what comes. A listener that is to be closed
 * because they cannot, or NULL. */
static struct vkr_listener *listen_ready(struct vkr_sock *s, int fd, struct vkr_listener *l)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	char text[80];

	if (l && vkr_items_prepare(&s->file) < 0) {
		listen_tcp(s, fd, VKR_LOG_WARN, "no descriptor or memory is left for the epoll sets that hold it");
	} else if (l) {
		s->listener = l;
		s->listener_stats->transport = VKR_TRANSPORT_RDMA;
		s->listener_stats->reason[0] = 0;
		if (vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) == 0)
			vkr_info("listening on %s by RDMA and TCP (rule %s)",
				 vkr_address_text((struct sockaddr *)&sa, text, sizeof(text)), s->rule);
		l = NULL;
	}
	vkr_store_rel(&s->state, VKR_SOCK_LISTEN);
	vkr_items_watch(&s->file);
	return l;
}

void vkr_sock_listen_own(struct vkr_sock *s, int fd)
{
	struct vkr_listener *l;

	vkr_real.fcntl(fd, F_SETFL, vkr_real.fcntl(fd, F_GETFL) | O_NONBLOCK);
	s->kernel_fd = vkr_guard_fd(vkr_real.fcntl(fd, F_DUPFD_CLOEXEC, 0));
	if (s->kernel_fd >= 0)
		vkr_guard_slot(s->kernel_fd, &s->kernel_fd);
	/* First: children to come must be able to have what comes, else it would wait for nobody. */
	vkr_bequest_make(s);
	l = listen_rdma(s, fd);
	pthread_mutex_lock(&vkr_ctl_lock);
	l = listen_ready(s, fd, l);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (l)
		vkr_listener_close(l);
}

int vkr_sock_listen(int fd, int backlog)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	const struct vkr_rule *rule;
	struct vkr_sock *s;
	int r = 0;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_file_inherited(&s->file) || vkr_sock_settle(s) == VKR_SOCK_FINAL) {
		r = VKR_PASS;
	} else if (vkr_is_connected(vkr_load(&s->state)) || vkr_load(&s->state) == VKR_SOCK_CONNECTING) {
		r = -EINVAL;
	} else if (vkr_real.listen(fd, backlog) < 0 || vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) < 0) {
		r = -errno;
	} else if (vkr_load(&s->state) == VKR_SOCK_LISTEN) {
		s->backlog = backlog;
		if (s->listener)
			vkr_listener_backlog(s->listener, backlog);
	} else if (!(rule = vkr_config_match_listen((struct sockaddr *)&sa))) {
		vkr_sock_untrack(fd, s);
	} else {
		vkr_limits_raise();
		snprintf(s->rule, sizeof(s->rule), "%s", rule->text);
		s->backlog = backlog;
		vkr_store(&s->nonblock, vkr_real.fcntl(fd, F_GETFL) & O_NONBLOCK);
		vkr_sock_listen_own(s, fd);
	}
	vkr_sock_put(s);
	return r;
}

/* The RDMA port was taken, or the device away, at listen(): another try now and then. */
void vkr_sock_listen_retry(struct vkr_sock *s, int fd)
{
	struct vkr_listener *l = NULL;

	if (s->listener || vkr_now_ns() < s->retry_at)
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	if (!s->listener && vkr_now_ns() >= s->retry_at)
		l = listen_ready(s, fd, listen_rdma(s, fd));
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (l)
		vkr_listener_close(l);
	if (s->listener)
		vkr_pump_ask();
}

int vkr_sock_bind(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct vkr_sock *s = vkr_sock_get(fd);
	int r = VKR_PASS;

	if (s && vkr_is_connected(vkr_load(&s->state)))
		r = -EINVAL; /* already bound */
	if (s)
		vkr_sock_put(s);
	return r;
}

/* ------------------------------------------------------------------ names, shutdown, ioctl, fcntl */

void vkr_copy_address(const struct sockaddr_storage *from, struct sockaddr *sa, socklen_t *len)
{
	socklen_t full = from->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	if (*len)
		memcpy(sa, from, vkr_min(*len, full));
	*len = full;
}

int vkr_check_address(const struct sockaddr *sa, const socklen_t *len)
{
	if (vkr_bad_pointer(len, sizeof(*len)))
		return -EFAULT;
	if ((int)*len < 0)
		return -EINVAL;
	return vkr_bad_pointer(sa, *len) ? -EFAULT : 0;
}

static int get_name(int fd, struct sockaddr *sa, socklen_t *len, bool peer)
{
	struct sockaddr_storage l, p;
	struct vkr_sock *s;
	int r = VKR_PASS;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_is_connected(vkr_sock_settle(s))) {
		r = vkr_check_address(sa, len);
		if (r) {
			/* as it is */
		} else if (!s->stream) {
			r = vkr_pair_addrs(fd, &l, &p) ? 0 : VKR_PASS;
			if (!r)
				vkr_copy_address(peer ? &p : &l, sa, len);
		} else if (peer && !vkr_file_inherited(&s->file) && vkr_stream_over(s->stream)) {
			r = -ENOTCONN;
		} else {
			vkr_stream_addrs(s->stream, &l, &p);
			vkr_copy_address(peer ? &p : &l, sa, len);
			r = 0;
		}
	}
	vkr_sock_put(s);
	return r;
}

int vkr_sock_getsockname(int fd, struct sockaddr *sa, socklen_t *len)
{
	return get_name(fd, sa, len, false);
}

int vkr_sock_getpeername(int fd, struct sockaddr *sa, socklen_t *len)
{
	return get_name(fd, sa, len, true);
}

/* Nothing has changed, but the kernel wakes everybody. */
static void wake_all(struct vkr_pollable *p)
{
	pthread_mutex_lock(&p->lock);
	vkr_pollable_set(p, vkr_pollable_ready(p), vkr_pollable_ready(p));
	pthread_mutex_unlock(&p->lock);
}

int vkr_sock_shutdown(int fd, int how)
{
	struct vkr_sock *s;
	int r = VKR_PASS;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	vkr_pair_heir(&s->file, fd);
	if (vkr_sock_settle(s) == VKR_SOCK_CARRIED) {
		r = how < SHUT_RD || how > SHUT_RDWR ? -EINVAL : vkr_stream_shutdown(s->stream, how);
		if (!r && how != SHUT_RD)
			vkr_store(&s->shut_wr, true);
		if (how >= SHUT_RD && how <= SHUT_RDWR)
			vkr_store(&s->told, true); /* a later connect() is EISCONN */
	} else if (vkr_load(&s->state) == VKR_SOCK_CONNECTING && !vkr_file_inherited(&s->file)) {
		r = -ENOTCONN;
	} else if (vkr_load(&s->state) == VKR_SOCK_PAIRED && how != SHUT_RD) {
		vkr_store(&s->shut_wr, true);
	} else if (vkr_load(&s->state) == VKR_SOCK_LISTEN && !vkr_file_inherited(&s->file)) {
		r = vkr_real.shutdown(fd, how) < 0 ? -errno : 0;
		if (!r && how != SHUT_WR && s->listener)
			vkr_listener_stop(s->listener);
		else if (!r && s->listener)
			wake_all(vkr_listener_pollable(s->listener));
	}
	vkr_sock_put(s);
	return r;
}

static int set_flags(struct vkr_sock *s, int fd, int flags)
{
	int real = vkr_load(&s->state) == VKR_SOCK_LISTEN ? flags | O_NONBLOCK : flags;

	if (vkr_real.fcntl(fd, F_SETFL, real) < 0)
		return -errno;
	vkr_store(&s->nonblock, flags & O_NONBLOCK);
	return 0;
}

int vkr_sock_fcntl(int fd, int cmd, void *arg)
{
	struct vkr_sock *s;
	int r = VKR_PASS;

	if (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC)
		return vkr_sock_dup(fd, (int)(intptr_t)arg, cmd == F_DUPFD_CLOEXEC);
	if (cmd != F_GETFL && cmd != F_SETFL)
		return VKR_PASS;
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (cmd == F_SETFL) {
		r = set_flags(s, fd, (int)(intptr_t)arg);
	} else if (vkr_load(&s->state) == VKR_SOCK_LISTEN) {
		r = vkr_real.fcntl(fd, F_GETFL);
		if (r >= 0 && !vkr_load(&s->nonblock))
			r &= ~O_NONBLOCK;
		r = r < 0 ? -errno : r;
	}
	vkr_sock_put(s);
	return r;
}

static int ioctl_count(struct vkr_sock *s, unsigned long request, int *out)
{
	if (vkr_bad_pointer(out, sizeof(*out)))
		return -EFAULT;
	if (request == FIONREAD)
		*out = (int)vkr_min(vkr_stream_inq(s->stream), (size_t)INT32_MAX);
	else if (request == TIOCOUTQ)
		*out = (int)vkr_min(vkr_stream_outq(s->stream), (size_t)INT32_MAX);
	else
		*out = 0; /* SIOCATMARK: there is no urgent data */
	return 0;
}

int vkr_sock_ioctl(int fd, unsigned long request, void *arg)
{
	struct vkr_sock *s;
	int r = VKR_PASS, flags;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	vkr_sock_settle(s);
	if (request == FIONREAD || request == TIOCOUTQ)
		vkr_pair_heir(&s->file, fd);
	if (request == FIONBIO) {
		flags = vkr_real.fcntl(fd, F_GETFL);
		if (vkr_bad_pointer(arg, sizeof(int)))
			r = -EFAULT;
		else if (flags < 0)
			r = -errno;
		else
			r = set_flags(s, fd, *(int *)arg ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
	} else if (vkr_load(&s->state) == VKR_SOCK_CARRIED && !vkr_file_inherited(&s->file) &&
		   (request == FIONREAD || request == TIOCOUTQ || request == 0x8905 /* SIOCATMARK */)) {
		if (request == FIONREAD)
			vkr_engine_poll();
		r = ioctl_count(s, request, arg);
	}
	vkr_sock_put(s);
	return r;
}

int vkr_sock_sockatmark(int fd)
{
	struct vkr_sock *s = vkr_sock_get(fd);
	int r = s && vkr_is_connected(vkr_load(&s->state)) ? 0 : VKR_PASS;

	if (s)
		vkr_sock_put(s);
	return r;
}

/* stdio, and other processes, read and write past any interposition. */
void vkr_sock_share(int fd)
{
	struct vkr_sock *s;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return;
	vkr_pair_share(s, fd);
	vkr_sock_put(s);
}

void vkr_sock_received(int fd)
{
	vkr_fork_check();
	if (!vkr_in_vfork_child())
		vkr_pair_adopt(fd, NULL);
}

#define EXIT_MS 1000

void vkr_socket_exit(void)
{
	int64_t end;

	if (!vkr_engine_running() || !vkr_load(vkr_load(&vkr_alive)) || vkr_in_vfork_child())
		return;
	end = vkr_now_ns() + EXIT_MS * 1000000ll;
	vkr_pump_flush(EXIT_MS);
	vkr_engine_flush((int)vkr_max((end - vkr_now_ns()) / 1000000, 1));
	vkr_stats_log();
}

/* Whether the listeners of this process block is the program's business where we are not. */
static void listener_flags(int fd, struct vkr_file *f, void *ours)
{
	struct vkr_sock *s = (struct vkr_sock *)f;
	int flags;

	if (f->kind != VKR_KIND_SOCK || vkr_file_inherited(f) || vkr_load(&s->state) != VKR_SOCK_LISTEN ||
	    vkr_load(&s->nonblock))
		return;
	flags = vkr_real.fcntl(fd, F_GETFL);
	if (flags >= 0)
		vkr_real.fcntl(fd, F_SETFL, ours ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

void vkr_socket_exec(void)
{
	vkr_fork_check();
	vkr_pair_exec();
	vkr_socket_exit();
	if (vkr_in_vfork_child())
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_file_each_number(NULL, listener_flags, NULL);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

void vkr_socket_exec_failed(void)
{
	if (vkr_in_vfork_child())
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_file_each_number(NULL, listener_flags, &vkr_ctl_lock);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

void vkr_socket_spawn(void)
{
	vkr_fork_check();
	vkr_pair_exec();
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A flagged socket's life: kernel TCP socket, then listener, or an attempt that ends carried or as kernel TCP.
 */
#include "config.h"
#include "fdmap.h"
#include "guard.h"
#include "libc_real.h"
#include "nofile.h"
#include "log.h"
#include "socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define NS_PER_MS   1000000ll
#define NS_PER_S    1000000000ll
#define REMEMBER_NS (10 * NS_PER_S) /* a refusing or silent address is not tried again for so long */
#define DRAIN_MS    10000           /* unsent bytes behind a close */

/* ------------------------------------------------------------------ addresses that refused */

static struct {
	struct sockaddr_in6 addr;
	int64_t until;
	char why[96];
} refused[32];
static pthread_mutex_t refused_lock = PTHREAD_MUTEX_INITIALIZER;

/* v4 in its mapped form, so that one comparison does; flow and scope left out. */
static void address_key(const struct sockaddr *sa, struct sockaddr_in6 *key)
{
	memset(key, 0, sizeof(*key));
	key->sin6_family = AF_INET6;
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)sa;

		key->sin6_port = in->sin_port;
		key->sin6_addr.s6_addr[10] = key->sin6_addr.s6_addr[11] = 0xff;
		memcpy(&key->sin6_addr.s6_addr[12], &in->sin_addr, 4);
	} else {
		const struct sockaddr_in6 *in6 = (const void *)sa;

		key->sin6_port = in6->sin6_port;
		key->sin6_addr = in6->sin6_addr;
	}
}

static bool address_refused(const struct sockaddr *sa, char *why, size_t size)
{
	struct sockaddr_in6 key;
	bool found = false;
	int64_t now = vkr_now_ns();
	unsigned i;

	address_key(sa, &key);
	pthread_mutex_lock(&refused_lock);
	for (i = 0; i < VKR_ARRAY_SIZE(refused) && !found; i++)
		if (refused[i].until > now && !memcmp(&refused[i].addr, &key, sizeof(key))) {
			snprintf(why, size, "%s", refused[i].why);
			found = true;
		}
	pthread_mutex_unlock(&refused_lock);
	return found;
}

static void address_remember(const struct sockaddr *sa, const char *why)
{
	struct sockaddr_in6 key;
	unsigned i, oldest = 0;

	address_key(sa, &key);
	pthread_mutex_lock(&refused_lock);
	for (i = 0; i < VKR_ARRAY_SIZE(refused); i++) {
		if (!memcmp(&refused[i].addr, &key, sizeof(key))) {
			oldest = i;
			break;
		}
		if (refused[i].until < refused[oldest].until)
			oldest = i;
	}
	refused[oldest].addr = key;
	refused[oldest].until = vkr_now_ns() + REMEMBER_NS;
	snprintf(refused[oldest].why, sizeof(refused[oldest].why), "%s (tried less than 10 s ago)", why);
	pthread_mutex_unlock(&refused_lock);
}

static const char *address_text(const struct sockaddr *sa, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?";

	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)sa;

		inet_ntop(AF_INET, &in->sin_addr, ip, sizeof(ip));
		snprintf(buf, size, "%s:%u", ip, ntohs(in->sin_port));
	} else {
		const struct sockaddr_in6 *in6 = (const void *)sa;

		inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof(ip));
		snprintf(buf, size, "[%s]:%u", ip, ntohs(in6->sin6_port));
	}
	return buf;
}

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

/* The application's end takes the descriptor flags that it asked for; ours goes out of its way. */
static int pair_make(struct vkr_sock *s, int type_flags)
{
	int sv[2];

	if (vkr_real.socketpair(AF_UNIX, SOCK_STREAM | type_flags, 0, sv) < 0)
		return -errno;
	s->pair_app = sv[0];
	s->pair_lib = vkr_guard_fd(sv[1]);
	return 0;
}

static void pair_free(struct vkr_sock *s)
{
	if (s->pair_app >= 0)
		vkr_guard_close(s->pair_app);
	if (s->pair_lib >= 0)
		vkr_guard_close(s->pair_lib);
	s->pair_app = s->pair_lib = -1;
}

/* A flagged connection that stays kernel TCP: seen in vkrdma-stat with its reason, and otherwise left alone. */
static void final_tcp(struct vkr_sock *s, enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
		      const char *why)
{
	char text[80];

	vkr_stats_open();
	s->tcp_stats = vkr_stats_conn_new(role, local, peer, s->rule);
	vkr_stats_conn_open(s->tcp_stats, VKR_TRANSPORT_TCP, why);
	if (role == VKR_ROLE_CONNECT)
		vkr_count(&vkr_stats->fallbacks, 1);
	vkr_info("%s %s is TCP (rule %s): %s", role == VKR_ROLE_CONNECT ? "connection to" : "connection from",
		 address_text(peer, text, sizeof(text)), s->rule, why);
	vkr_store_rel(&s->state, VKR_SOCK_FINAL);
}

static void replace_number(int fd, struct vkr_file *f, void *arg)
{
	struct vkr_sock *s = (struct vkr_sock *)f;
	int flags = vkr_real.fcntl(fd, F_GETFD);

	if (vkr_real.dup3(s->pair_app, fd, flags >= 0 && flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
		vkr_warn("descriptor %d: dup3: %s", fd, strerror(errno));
}

/* vkr_ctl_lock held; the stream is open. Every number of the socket becomes the pair's end. */
static void carry(struct vkr_sock *s)
{
	int fd = vkr_file_number(&s->file);
	struct vkr_conn_stats *stats = vkr_stream_stats(s->stream);

	if (fd >= 0) {
		int flags = vkr_real.fcntl(fd, F_GETFL);

		vkr_options_seed(s, fd);
		vkr_store(&s->nonblock, flags & O_NONBLOCK);
		vkr_real.fcntl(s->pair_app, F_SETFL, flags & (O_NONBLOCK | O_ASYNC));
		vkr_file_each_number(&s->file, replace_number, NULL);
	}
	vkr_guard_close(s->pair_app);
	s->pair_app = -1;
	stats->fd = fd;
	vkr_store_rel(&s->state, VKR_SOCK_CARRIED);
	vkr_items_recheck(&s->file);
}

/* vkr_ctl_lock held; the attempt failed. What the application has already been told (EINPROGRESS) must come true by
 * TCP. */
static void fall_back(struct vkr_sock *s, bool connect_now)
{
	const struct sockaddr *peer = (const void *)&s->peer;
	const char *why = "";
	int err = -vkr_stream_failure(s->stream, &why), fd = vkr_file_number(&s->file);
	struct vkr_stream *stream = s->stream;
	char reason[96];

	snprintf(reason, sizeof(reason), "%s", why);
	address_remember(peer, reason);
	vkr_items_to_kernel(&s->file);
	if (vkr_config.fallback_none) {
		vkr_store_rel(&s->state, VKR_SOCK_TCP);
		vkr_store(&s->error, err ? err : ECONNREFUSED);
	} else {
		final_tcp(s, VKR_ROLE_CONNECT, NULL, peer, reason);
		if (connect_now && fd >= 0 && vkr_real.connect(fd, peer, sizeof(s->peer)) < 0 && errno != EINPROGRESS)
			vkr_store(&s->error, errno);
	}
	/* Another thread may be waiting on the stream's state: it goes with the socket. */
	s->failed_stream = stream;
	s->stream = NULL;
	pair_free(s);
}

enum vkr_sock_state vkr_sock_settle(struct vkr_sock *s)
{
	enum vkr_stream_state st;

	if (vkr_likely(vkr_load_acq(&s->state) != VKR_SOCK_CONNECTING) || vkr_file_inherited(&s->file))
		return vkr_load_acq(&s->state);
	pthread_mutex_lock(&vkr_ctl_lock);
	if (vkr_load(&s->state) == VKR_SOCK_CONNECTING && !s->connect_waits) {
		st = vkr_stream_state(s->stream);
		if (st == VKR_STREAM_OPEN)
			carry(s);
		else if (st == VKR_STREAM_FAILED)
			fall_back(s, true);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	return vkr_load_acq(&s->state);
}

/* The last number is gone and nobody is inside a call. */
void vkr_sock_destroy(struct vkr_sock *s)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_drop(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (s->listener)
		vkr_listener_close(s->listener);
	if (s->listener_stats)
		vkr_stats_listener_free(s->listener_stats);
	if (s->stream)
		vkr_stream_close(s->stream, s->linger_on && !s->linger_s ? 0 : DRAIN_MS);
	if (s->failed_stream)
		vkr_stream_close(s->failed_stream, 0);
	if (s->tcp_stats)
		vkr_stats_conn_free(s->tcp_stats);
	pair_free(s);
	vkr_options_free(s);
}

/* No rule wants it: the number is the kernel's alone from now on, and costs nothing more. */
static void untrack(int fd, struct vkr_sock *s)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_forget(&s->file);
	vkr_store_rel(&s->state, VKR_SOCK_FINAL);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_fd_fresh(fd);
}

/* ------------------------------------------------------------------ listen */

static void listen_rdma(struct vkr_sock *s, int fd)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa), optlen = sizeof(int);
	const char *reason = "";
	char text[80];
	int v6only = 0, r;

	if (vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) < 0)
		return;
	if (sa.ss_family == AF_INET6)
		vkr_real.getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, &optlen);
	vkr_stats_open();
	if (!s->listener_stats)
		s->listener_stats = vkr_stats_listener_new((struct sockaddr *)&sa, s->rule);
	s->listener_stats->fd = fd;
	r = vkr_engine_start(&reason);
	if (!r)
		r = vkr_listener_create((struct sockaddr *)&sa, v6only, s->backlog, s->rule, s->listener_stats,
					&s->listener, &reason);
	if (!r) {
		s->listener_stats->transport = VKR_TRANSPORT_RDMA;
		s->listener_stats->reason[0] = 0;
		vkr_info("listening on %s by RDMA and TCP (rule %s)",
			 address_text((struct sockaddr *)&sa, text, sizeof(text)), s->rule);
		return;
	}
	s->listener = NULL;
	s->listener_stats->transport = VKR_TRANSPORT_TCP;
	snprintf(s->listener_stats->reason, sizeof(s->listener_stats->reason), "%s", reason);
	s->retry_at = vkr_now_ns() + REMEMBER_NS;
	vkr_warn("listening on %s by TCP only (rule %s): %s", address_text((struct sockaddr *)&sa, text, sizeof(text)),
		 s->rule, reason);
}

int vkr_sock_listen(int fd, int backlog)
{
	struct sockaddr_storage sa;
	socklen_t len = sizeof(sa);
	const struct vkr_rule *rule;
	struct vkr_sock *s;
	int r = 0, flags;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_file_inherited(&s->file) || vkr_sock_settle(s) == VKR_SOCK_FINAL) {
		r = VKR_PASS;
	} else if (vkr_load(&s->state) == VKR_SOCK_CARRIED || vkr_load(&s->state) == VKR_SOCK_CONNECTING) {
		r = -EINVAL;
	} else if (vkr_real.listen(fd, backlog) < 0 || vkr_real.getsockname(fd, (struct sockaddr *)&sa, &len) < 0) {
		r = -errno;
	} else if (vkr_load(&s->state) == VKR_SOCK_LISTEN) {
		s->backlog = backlog;
		if (s->listener)
			vkr_listener_backlog(s->listener, backlog);
	} else if (!(rule = vkr_config_match_listen((struct sockaddr *)&sa))) {
		untrack(fd, s);
	} else {
		vkr_limits_raise();
		snprintf(s->rule, sizeof(s->rule), "%s", rule->text);
		s->backlog = backlog;
		flags = vkr_real.fcntl(fd, F_GETFL);
		vkr_store(&s->nonblock, flags & O_NONBLOCK);
		vkr_real.fcntl(fd, F_SETFL, flags | O_NONBLOCK);
		listen_rdma(s, fd);
		pthread_mutex_lock(&vkr_ctl_lock);
		vkr_store_rel(&s->state, VKR_SOCK_LISTEN);
		vkr_items_watch(&s->file);
		pthread_mutex_unlock(&vkr_ctl_lock);
	}
	vkr_sock_put(s);
	return r;
}

/* The RDMA port was taken, or the device away, at listen(): another try now and then. */
static void listen_retry(struct vkr_sock *s, int fd)
{
	if (s->listener || vkr_now_ns() < s->retry_at)
		return;
	pthread_mutex_lock(&vkr_ctl_lock);
	if (!s->listener && vkr_now_ns() >= s->retry_at) {
		listen_rdma(s, fd);
		if (s->listener)
			vkr_items_watch(&s->file);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
}

/* ------------------------------------------------------------------ accept */

static void copy_address(const struct sockaddr_storage *from, struct sockaddr *sa, socklen_t *len)
{
	socklen_t full = from->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

	if (!sa || !len)
		return;
	memcpy(sa, from, vkr_min(*len, full));
	*len = full;
}

static int accept_rdma(struct vkr_sock *l, int listen_fd, struct vkr_stream *stream, struct sockaddr *sa,
		       socklen_t *len, int flags)
{
	struct sockaddr_storage local, peer;
	struct vkr_sock *s = vkr_sock_new(l->domain, l->type | flags, l->protocol);
	struct vkr_file *stale;
	int fd, r;

	if (!s)
		goto fail;
	r = pair_make(s, flags & (SOCK_NONBLOCK | SOCK_CLOEXEC));
	if (r)
		goto fail_sock;
	vkr_stream_addrs(stream, &local, &peer);
	copy_address(&peer, sa, len);
	fd = s->pair_app;
	s->pair_app = -1;
	s->stream = stream;
	s->told = true;
	snprintf(s->rule, sizeof(s->rule), "%s", l->rule);
	vkr_stream_stats(stream)->fd = fd;
	vkr_count(&l->listener_stats->accepted_rdma, 1);
	vkr_options_inherit(s, l, listen_fd);
	vkr_store_rel(&s->state, VKR_SOCK_CARRIED);
	pthread_mutex_lock(&vkr_ctl_lock);
	stale = vkr_file_uninstall(fd);
	r = vkr_file_install(fd, &s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	vkr_sock_put(s);
	return r < 0 ? r : fd;

fail_sock:
	vkr_sock_put(s);
	vkr_stream_close(stream, 0);
	return r;
fail:
	vkr_stream_close(stream, 0);
	return -ENOMEM;
}

static int accept_tcp(struct vkr_sock *l, int listen_fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	struct sockaddr_storage local, peer;
	socklen_t llen = sizeof(local), plen = sizeof(peer);
	struct vkr_sock *s;
	struct vkr_file *stale;
	int fd = vkr_real.accept4(listen_fd, (struct sockaddr *)&peer, &plen, flags);

	if (fd < 0)
		return -errno;
	if (vkr_config.fallback_none) {
		char text[80];

		vkr_warn("closing the TCP connection from %s: VKRDMA_FALLBACK=none",
			 address_text((struct sockaddr *)&peer, text, sizeof(text)));
		vkr_real.close(fd);
		return -EAGAIN;
	}
	copy_address(&peer, sa, len);
	s = vkr_sock_new(l->domain, l->type | flags, l->protocol);
	if (!s)
		return fd;
	snprintf(s->rule, sizeof(s->rule), "%s", l->rule);
	vkr_real.getsockname(fd, (struct sockaddr *)&local, &llen);
	final_tcp(s, VKR_ROLE_ACCEPT, (struct sockaddr *)&local, (struct sockaddr *)&peer,
		  l->listener ? "the peer connected over TCP" : l->listener_stats->reason);
	s->tcp_stats->fd = fd;
	vkr_count(&l->listener_stats->accepted_tcp, 1);
	pthread_mutex_lock(&vkr_ctl_lock);
	stale = vkr_file_uninstall(fd);
	vkr_file_install(fd, &s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (stale)
		vkr_file_put(stale);
	vkr_sock_put(s);
	return fd;
}

/* Both queues, in turn first, so that neither kind of client starves the other. */
static int accept_once(struct vkr_sock *l, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	unsigned turn = atomic_fetch_add_explicit(&l->turn, 1, memory_order_relaxed), i;
	struct vkr_stream *stream;
	int r = -EAGAIN;

	for (i = 0; i < 2; i++, turn++) {
		if (turn & 1) {
			r = accept_tcp(l, fd, sa, len, flags);
			if (r != -EAGAIN && r != -ECONNABORTED)
				return r;
		} else if (l->listener && (stream = vkr_listener_accept(l->listener))) {
			return accept_rdma(l, fd, stream, sa, len, flags);
		}
	}
	return r == -ECONNABORTED ? -EAGAIN : r;
}

static int64_t kernel_timeout(int fd, int name)
{
	struct timeval tv = {0, 0};
	socklen_t len = sizeof(tv);

	vkr_real.getsockopt(fd, SOL_SOCKET, name, &tv, &len);
	return tv.tv_sec * NS_PER_S + tv.tv_usec * 1000ll;
}

/* The listener of a parent: its kernel queue only. Our O_NONBLOCK is on it, the blocking is done here. */
static int accept_inherited(struct vkr_sock *l, int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	int r;

	for (;;) {
		r = vkr_real.accept4(fd, sa, len, flags);
		if (r >= 0 || errno != EAGAIN || vkr_load(&l->nonblock))
			return r < 0 ? -errno : r;
		r = vkr_wait(NULL, 0, 0, fd, POLLIN);
		if (r < 0)
			return r;
	}
}

int vkr_sock_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	struct vkr_sock *l;
	int64_t timeout, deadline = 0;
	int r;

	if (flags & ~(SOCK_NONBLOCK | SOCK_CLOEXEC))
		return VKR_PASS;
	vkr_fork_check();
	l = vkr_sock_get(fd);
	if (!l)
		return VKR_PASS;
	if (vkr_load_acq(&l->state) == VKR_SOCK_CARRIED) {
		r = -EINVAL;
	} else if (vkr_load_acq(&l->state) != VKR_SOCK_LISTEN) {
		r = VKR_PASS;
	} else if (vkr_file_inherited(&l->file)) {
		r = accept_inherited(l, fd, sa, len, flags);
	} else {
		listen_retry(l, fd);
		for (;;) {
			r = accept_once(l, fd, sa, len, flags);
			if (r != -EAGAIN || vkr_load(&l->nonblock))
				break;
			timeout = kernel_timeout(fd, SO_RCVTIMEO);
			if (!deadline && timeout)
				deadline = vkr_now_ns() + timeout;
			r = vkr_wait(l->listener ? vkr_listener_pollable(l->listener) : NULL, EPOLLIN, deadline, fd,
				     POLLIN);
			if (r < 0)
				break;
		}
	}
	vkr_sock_put(l);
	return r;
}

/* ------------------------------------------------------------------ connect */

/* Wants RDMA and cannot even try: 0 to go TCP, or the errno where TCP is not allowed. */
static int no_attempt(struct vkr_sock *s, const struct sockaddr *sa, const char *why, int err)
{
	if (vkr_config.fallback_none)
		return err;
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_forget(&s->file);
	final_tcp(s, VKR_ROLE_CONNECT, NULL, sa, why);
	pthread_mutex_unlock(&vkr_ctl_lock);
	return VKR_PASS;
}

static const struct sockaddr *bound_address(int fd, struct sockaddr_storage *sa)
{
	socklen_t len = sizeof(*sa);
	struct sockaddr_in6 key;
	static const struct in6_addr any4 = {{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}}};

	if (vkr_real.getsockname(fd, (struct sockaddr *)sa, &len) < 0)
		return NULL;
	address_key((struct sockaddr *)sa, &key);
	if (!key.sin6_port && (IN6_IS_ADDR_UNSPECIFIED(&key.sin6_addr) || !memcmp(&key.sin6_addr, &any4, 16)))
		return NULL;
	return (struct sockaddr *)sa;
}

/* 0: the attempt runs and the state is CONNECTING. VKR_PASS: TCP. */
static int connect_begin(struct vkr_sock *s, int fd, const struct sockaddr *sa, socklen_t len, int timeout_ms)
{
	struct sockaddr_storage local;
	const char *why = "";
	char buf[96];
	int r;

	if (s->shared)
		return no_attempt(s, sa, "the unconnected socket is shared with another process", -EOPNOTSUPP);
	if (address_refused(sa, buf, sizeof(buf)))
		return no_attempt(s, sa, buf, -ECONNREFUSED);
	r = vkr_engine_start(&why);
	if (r)
		return no_attempt(s, sa, why, r);
	vkr_limits_raise();
	r = pair_make(s, SOCK_CLOEXEC);
	if (r)
		return no_attempt(s, sa, "no descriptor is left for a carried connection", r);
	s->pair_app = vkr_guard_fd(s->pair_app);
	memcpy(&s->peer, sa, vkr_min((size_t)len, sizeof(s->peer)));
	r = vkr_connect_start(bound_address(fd, &local), sa, timeout_ms, s->rule, &s->stream, &why);
	if (r) {
		pair_free(s);
		return no_attempt(s, sa, why, r);
	}
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_store_rel(&s->state, VKR_SOCK_CONNECTING);
	vkr_items_to_user(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	return 0;
}

/* Blocks until the attempt has ended. 0 carried, VKR_PASS: make the real call now. */
static int connect_wait(struct vkr_sock *s, int64_t deadline)
{
	struct vkr_stream *stream;
	int r = 0;

	pthread_mutex_lock(&vkr_ctl_lock);
	stream = vkr_load(&s->state) == VKR_SOCK_CONNECTING ? s->stream : NULL;
	s->connect_waits += stream != NULL;
	pthread_mutex_unlock(&vkr_ctl_lock);
	while (stream && vkr_stream_state(stream) == VKR_STREAM_CONNECTING && !r)
		r = vkr_wait_connect(stream, deadline);
	pthread_mutex_lock(&vkr_ctl_lock);
	s->connect_waits -= stream != NULL;
	if (vkr_load(&s->state) != VKR_SOCK_CONNECTING) {
		r = vkr_load(&s->state) == VKR_SOCK_CARRIED ? 0 : VKR_PASS; /* another thread was here */
	} else if (vkr_stream_state(s->stream) == VKR_STREAM_OPEN) {
		carry(s);
		s->told = true;
		r = 0;
	} else if (vkr_stream_state(s->stream) == VKR_STREAM_FAILED) {
		fall_back(s, false);
		r = vkr_config.fallback_none ? -atomic_exchange(&s->error, 0) : VKR_PASS;
	} else {
		r = r == -EAGAIN ? -EINPROGRESS : r; /* SO_SNDTIMEO; or a signal: it goes on behind the caller */
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	return r;
}

static int connect_again(struct vkr_sock *s)
{
	if (vkr_load(&s->state) == VKR_SOCK_CONNECTING)
		return vkr_load(&s->nonblock) ? -EALREADY : connect_wait(s, 0);
	/* Linux: the call that first sees the connection made reports success, every later one EISCONN. */
	if (s->told)
		return -EISCONN;
	s->told = true;
	return 0;
}

static int connect_first(struct vkr_sock *s, int fd, const struct sockaddr *sa, socklen_t len)
{
	const struct vkr_rule *rule;
	int64_t timeout;
	int r, ms = (int)vkr_config.connect_timeout_ms, flags;

	if (!sa || len < sizeof(struct sockaddr_in) || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) ||
	    sa->sa_family != s->domain || (s->domain == AF_INET6 && len < sizeof(struct sockaddr_in6)))
		return VKR_PASS;
	rule = vkr_config_match_connect(sa);
	if (!rule) {
		untrack(fd, s);
		return VKR_PASS;
	}
	snprintf(s->rule, sizeof(s->rule), "%s", rule->text);
	flags = vkr_real.fcntl(fd, F_GETFL);
	vkr_store(&s->nonblock, flags & O_NONBLOCK);
	timeout = flags & O_NONBLOCK ? 0 : kernel_timeout(fd, SO_SNDTIMEO);
	if (timeout)
		ms = (int)vkr_min((int64_t)ms, vkr_max(timeout / NS_PER_MS, 1));
	r = connect_begin(s, fd, sa, len, ms);
	if (r)
		return r;
	return flags & O_NONBLOCK ? -EINPROGRESS : connect_wait(s, timeout ? vkr_now_ns() + timeout : 0);
}

int vkr_sock_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct vkr_sock *s;
	int r;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_file_inherited(&s->file)) {
		r = vkr_load(&s->state) == VKR_SOCK_CARRIED ? -EISCONN : VKR_PASS;
	} else {
		switch (vkr_sock_settle(s)) {
		case VKR_SOCK_TCP:
			r = connect_first(s, fd, sa, len);
			break;
		case VKR_SOCK_LISTEN:
			r = -EISCONN;
			break;
		case VKR_SOCK_FINAL:
			r = VKR_PASS;
			break;
		default:
			r = connect_again(s);
			break;
		}
	}
	vkr_sock_put(s);
	return r;
}

int vkr_sock_bind(int fd, const struct sockaddr *sa, socklen_t len)
{
	struct vkr_sock *s = vkr_sock_get(fd);
	int r = VKR_PASS;

	if (s && vkr_load(&s->state) == VKR_SOCK_CARRIED)
		r = -EINVAL; /* already bound */
	if (s)
		vkr_sock_put(s);
	return r;
}

/* ------------------------------------------------------------------ names, shutdown, ioctl, fcntl */

static int get_name(int fd, struct sockaddr *sa, socklen_t *len, bool peer)
{
	struct sockaddr_storage l, p;
	struct vkr_sock *s;
	int r = VKR_PASS;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_sock_settle(s) == VKR_SOCK_CARRIED) {
		if (vkr_file_inherited(&s->file)) {
			r = -ENOTCONN;
		} else if (!sa || !len) {
			r = -EFAULT;
		} else if ((int)*len < 0) {
			r = -EINVAL;
		} else if (peer && vkr_pollable_ready(vkr_stream_pollable(s->stream)) & EPOLLHUP) {
			r = -ENOTCONN;
		} else {
			vkr_stream_addrs(s->stream, &l, &p);
			copy_address(peer ? &p : &l, sa, len);
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

int vkr_sock_shutdown(int fd, int how)
{
	struct vkr_sock *s;
	int r = VKR_PASS;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_file_inherited(&s->file)) {
		r = vkr_load(&s->state) == VKR_SOCK_CARRIED ? -ENOTCONN : VKR_PASS;
	} else if (vkr_sock_settle(s) == VKR_SOCK_CARRIED) {
		r = how < SHUT_RD || how > SHUT_RDWR ? -EINVAL : vkr_stream_shutdown(s->stream, how);
		if (!r && how != SHUT_RD)
			vkr_store(&s->shut_wr, true);
	} else if (vkr_load(&s->state) == VKR_SOCK_CONNECTING) {
		r = -ENOTCONN;
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
	if (!out)
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
	if (request == FIONBIO) {
		flags = arg ? vkr_real.fcntl(fd, F_GETFL) : -1;
		if (flags < 0)
			r = arg ? -errno : -EFAULT;
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
	int r = s && vkr_load(&s->state) == VKR_SOCK_CARRIED ? 0 : VKR_PASS;

	if (s)
		vkr_sock_put(s);
	return r;
}

/* stdio reads and writes past any interposition; its bytes would land in the pair. */
void vkr_sock_fdopen(int fd)
{
	struct vkr_sock *s = vkr_sock_get(fd);

	if (s && vkr_sock_settle(s) == VKR_SOCK_CARRIED)
		vkr_warn("descriptor %d: stdio on a carried socket is not supported yet", fd);
	if (s)
		vkr_sock_put(s);
}

void vkr_socket_exit(void)
{
	if (vkr_engine_running() && vkr_load(vkr_alive) && !vkr_in_vfork_child())
		vkr_engine_flush(1000);
}

void vkr_socket_exec(void)
{
	vkr_socket_exit();
}

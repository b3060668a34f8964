/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connecting: an RDMA attempt on a kernel TCP socket that is left unconnected meanwhile, and its two ends. Carried: the
 * socketpair takes the numbers. Fallen back: the real connect() is made on the very socket, and nothing was replaced.
 */
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
#include <linux/tcp.h> /* glibc's tcp_info ends before what was received */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS 1000000ll
#define NS_PER_S  1000000000ll
/* How long an address is not tried again: a silent one costs the whole time-out, a refusal one round trip. */
#define REMEMBER_NS         (10 * NS_PER_S)
#define REMEMBER_REFUSED_NS (500 * NS_PER_MS)

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

static void address_remember(const struct sockaddr *sa, const char *why, int64_t ns)
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
	refused[oldest].until = vkr_now_ns() + ns;
	snprintf(refused[oldest].why, sizeof(refused[oldest].why), "%s (tried a moment ago)", why);
	pthread_mutex_unlock(&refused_lock);
}

static void address_forget(const struct sockaddr *sa)
{
	struct sockaddr_in6 key;
	unsigned i;

	address_key(sa, &key);
	pthread_mutex_lock(&refused_lock);
	for (i = 0; i < VKR_ARRAY_SIZE(refused); i++)
		if (!memcmp(&refused[i].addr, &key, sizeof(key)))
			refused[i].until = 0;
	pthread_mutex_unlock(&refused_lock);
}

void vkr_connect_forked(void)
{
	pthread_mutex_init(&refused_lock, NULL);
}

/* ------------------------------------------------------------------ the two ends of an attempt */

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

/* What the program has bound stays bound in the kernel, where others look for a free port. */
static void port_keep(struct vkr_sock *s, int fd)
{
	struct sockaddr_storage sa;

	if (s->kernel_fd >= 0 || !bound_address(fd, &sa))
		return;
	s->kernel_fd = vkr_guard_spare(vkr_real.fcntl(fd, F_DUPFD_CLOEXEC, 0));
	if (s->kernel_fd >= 0)
		vkr_guard_slot(s->kernel_fd, &s->kernel_fd);
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
	char text[80];

	if (fd >= 0) {
		int flags = vkr_real.fcntl(fd, F_GETFL);

		vkr_options_seed(s, fd);
		port_keep(s, fd);
		vkr_store(&s->nonblock, flags & O_NONBLOCK);
		vkr_real.fcntl(s->pair_app, F_SETFL, flags & (O_NONBLOCK | O_ASYNC));
		vkr_file_each_number(&s->file, replace_number, NULL);
	}
	vkr_pump_new(s, s->pair_app);
	vkr_guard_close(s->pair_app);
	s->pair_app = -1;
	stats->fd = fd;
	vkr_info("connection to %s is RDMA (rule %s)", vkr_address_text((void *)&s->peer, text, sizeof(text)), s->rule);
	vkr_store_rel(&s->state, VKR_SOCK_CARRIED);
	vkr_items_recheck(&s->file);
}

static void warn_none(const struct vkr_sock *s, const struct sockaddr *peer, const char *why)
{
	char text[80];

	vkr_warn("connection to %s fails (rule %s, VKRDMA_FALLBACK=none): %s",
		 vkr_address_text(peer, text, sizeof(text)), s->rule, why);
}

/* The kernel has chosen it once connect() was called. */
static void note_local(struct vkr_sock *s, int fd)
{
	struct sockaddr_storage local;
	socklen_t len = sizeof(local);

	if (!vkr_real.getsockname(fd, (struct sockaddr *)&local, &len))
		vkr_stats_conn_addrs(s->tcp_stats, (struct sockaddr *)&local, NULL);
}

/* Nobody waits for it here, though the application may have made the socket blocking meanwhile. 0 or an errno. */
static int connect_nonblock(int fd, const struct sockaddr *peer, socklen_t len)
{
	int flags = vkr_real.fcntl(fd, F_GETFL), err = 0;

	vkr_real.fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	if (vkr_real.connect(fd, peer, len) < 0 && errno != EINPROGRESS)
		err = errno;
	if (!(flags & O_NONBLOCK))
		vkr_real.fcntl(fd, F_SETFL, flags);
	return err;
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
	vkr_items_to_kernel(&s->file);
	if (vkr_config.fallback_none) {
		warn_none(s, peer, reason);
		vkr_store_rel(&s->state, VKR_SOCK_TCP);
		vkr_store(&s->error, err ? err : ECONNREFUSED);
	} else {
		vkr_sock_final(s, VKR_ROLE_CONNECT, NULL, peer, reason);
		s->silent = err == ETIMEDOUT;
		vkr_store(&s->on_trial, true);
		if (connect_now && fd >= 0) {
			vkr_store(&s->error, connect_nonblock(fd, peer, sizeof(s->peer)));
			if (!vkr_load(&s->error))
				note_local(s, fd);
		}
	}
	/* Another thread may be waiting on the stream's state: it goes with the socket. */
	vkr_stream_keep(s, stream);
	s->stream = NULL;
	vkr_pair_free(s);
}

/*
 * An address that does not answer by RDMA but does by TCP will not answer by RDMA next time either. One that answers by
 * neither is a server that is away, and may come back with both.
 */
void vkr_sock_tcp_stands(struct vkr_sock *s)
{
	if (atomic_exchange(&s->on_trial, false)) {
		address_remember((const void *)&s->peer, s->tcp_stats->reason,
				 s->silent ? REMEMBER_NS : REMEMBER_REFUSED_NS);
		vkr_store(&s->vouched, !s->silent);
	}
}

/*
 * A server on its way out has closed its RDMA listener while the kernel still accepts for it. It says nothing before it
 * hangs up, and when it is back its clients are to find it by RDMA again.
 */
void vkr_sock_tcp_closes(struct vkr_sock *s, int fd)
{
	struct tcp_info info = {.tcpi_bytes_received = UINT64_MAX};
	socklen_t len = sizeof(info);

	/* The end of the stream counts as a byte. */
	if (vkr_load(&s->vouched) && vkr_real.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	    info.tcpi_bytes_received <= 1)
		address_forget((const void *)&s->peer);
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

/* ------------------------------------------------------------------ connect */

/* Wants RDMA and cannot even try: 0 to go TCP, or the errno where TCP is not allowed. */
static int no_attempt(struct vkr_sock *s, const struct sockaddr *sa, const char *why, int err)
{
	if (vkr_config.fallback_none) {
		warn_none(s, sa, why);
		return err;
	}
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_items_forget(&s->file);
	vkr_sock_final(s, VKR_ROLE_CONNECT, NULL, sa, why);
	pthread_mutex_unlock(&vkr_ctl_lock);
	return VKR_PASS;
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
	vkr_plain_prepare();
	r = vkr_engine_start(&why);
	if (r)
		return no_attempt(s, sa, why, r);
	vkr_limits_raise();
	pthread_mutex_lock(&vkr_ctl_lock);
	r = vkr_items_prepare(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (!r)
		r = vkr_pair_make(s);
	if (r)
		return no_attempt(s, sa, "no descriptor is left for a carried connection", r);
	vkr_store(&s->error, 0);
	memcpy(&s->peer, sa, vkr_min((size_t)len, sizeof(s->peer)));
	r = vkr_connect_start(bound_address(fd, &local), sa, timeout_ms, s->rule, &s->stream, &why);
	if (r) {
		vkr_pair_free(s);
		return no_attempt(s, sa, why, r);
	}
	s->dissolved = false;
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_store_rel(&s->state, VKR_SOCK_CONNECTING);
	vkr_items_to_user(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	return 0;
}

static void connect_waits_done(struct vkr_sock **s)
{
	pthread_mutex_lock(&vkr_ctl_lock);
	(*s)->connect_waits--;
	pthread_mutex_unlock(&vkr_ctl_lock);
}

/* Meanwhile nobody else ends the attempt, so that the stream stays. */
static int await_end(struct vkr_sock *s, int64_t deadline)
{
	VKR_CLEANUP(connect_waits_done) struct vkr_sock *waits = s;
	struct vkr_stream *stream;
	int r = 0;

	pthread_mutex_lock(&vkr_ctl_lock);
	stream = vkr_load(&s->state) == VKR_SOCK_CONNECTING ? s->stream : NULL;
	waits->connect_waits++;
	pthread_mutex_unlock(&vkr_ctl_lock);
	while (stream && vkr_stream_state(stream) == VKR_STREAM_CONNECTING && !r)
		r = vkr_wait_connect(stream, deadline);
	return r;
}

/* Blocks until the attempt has ended. 0 carried, VKR_PASS: make the real call now. */
static int connect_wait(struct vkr_sock *s, int64_t deadline)
{
	int r = await_end(s, deadline);

	pthread_mutex_lock(&vkr_ctl_lock);
	if (vkr_load(&s->state) != VKR_SOCK_CONNECTING) {
		r = vkr_is_connected(vkr_load(&s->state)) ? 0 : VKR_PASS; /* another thread was here */
	} else if (vkr_stream_state(s->stream) == VKR_STREAM_OPEN) {
		carry(s);
		vkr_store(&s->told, true);
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
	if (vkr_load(&s->told))
		return -EISCONN;
	vkr_store(&s->told, true);
	return 0;
}

static int connect_first(struct vkr_sock *s, int fd, const struct sockaddr *sa, socklen_t len)
{
	const struct vkr_rule *rule;
	int64_t timeout;
	int r, ms = (int)vkr_config.connect_timeout_ms, flags;

	if (vkr_bad_pointer(sa, len) || len < sizeof(struct sockaddr_in) || len > sizeof(struct sockaddr_storage) ||
	    (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) || sa->sa_family != s->domain ||
	    (s->domain == AF_INET6 && len < sizeof(struct sockaddr_in6)))
		return VKR_PASS;
	rule = vkr_config_match_connect(sa);
	if (!rule) {
		vkr_sock_untrack(fd, s);
		return VKR_PASS;
	}
	snprintf(s->rule, sizeof(s->rule), "%s", rule->text);
	flags = vkr_real.fcntl(fd, F_GETFL);
	vkr_store(&s->nonblock, flags & O_NONBLOCK);
	timeout = flags & O_NONBLOCK ? 0 : vkr_kernel_timeout(fd, SO_SNDTIMEO);
	if (timeout)
		ms = (int)vkr_min((int64_t)ms, vkr_max(timeout / NS_PER_MS, 1));
	r = connect_begin(s, fd, sa, len, ms);
	if (r)
		return r;
	return flags & O_NONBLOCK ? -EINPROGRESS : connect_wait(s, timeout ? vkr_now_ns() + timeout : 0);
}

/* A flagged connection that is the kernel's. */
static int connect_tcp(struct vkr_sock *s, int fd, const struct sockaddr *sa, socklen_t len)
{
	int r = vkr_real.connect(fd, sa, len) < 0 ? -errno : 0;

	if (!r || r == -EISCONN)
		vkr_sock_tcp_stands(s);
	if (!r || r == -EINPROGRESS)
		note_local(s, fd);
	return r;
}

static bool dissolves(const struct sockaddr *sa, socklen_t len)
{
	return len >= sizeof(sa->sa_family) && !vkr_bad_pointer(sa, sizeof(sa->sa_family)) &&
	       sa->sa_family == AF_UNSPEC;
}

int vkr_sock_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	int r;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_file_inherited(&s->file)) {
		r = vkr_is_connected(vkr_load(&s->state)) ? -EISCONN : VKR_PASS;
	} else {
		switch (vkr_sock_settle(s)) {
		case VKR_SOCK_TCP:
			/* After an attempt that failed the next call reports how, before another one begins. */
			r = s->dissolved ? 0 : -atomic_exchange(&s->error, 0);
			if (!r)
				r = connect_first(s, fd, sa, len);
			break;
		case VKR_SOCK_LISTEN:
			r = -EISCONN;
			break;
		case VKR_SOCK_FINAL:
			r = VKR_PASS;
			break;
		default:
			if (dissolves(sa, len) && vkr_load(&s->state) != VKR_SOCK_PAIRED)
				r = vkr_sock_disconnect(s);
			else
				r = connect_again(s);
			break;
		}
	}
	return r == VKR_PASS && s->tcp_stats && !vkr_file_inherited(&s->file) ? connect_tcp(s, fd, sa, len) : r;
}

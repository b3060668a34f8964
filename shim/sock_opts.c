/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Socket options of carried sockets. There is no kernel TCP socket behind one any more, so what the application set
 * lives in a small table, seeded from the TCP socket (or the listener) that it was. The kernel still judges: every set
 * is tried on a scratch TCP socket first, whose errno is returned and whose transformed value (SO_RCVBUF doubles, ...)
 * is what a get shows.
 */
#include "guard.h"
#include "libc_real.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VALUE_MAX 16
#define ENTRIES   48

struct entry {
	int level, name;
	socklen_t len;
	unsigned char value[VALUE_MAX];
};

struct vkr_options {
	int n;
	bool seeded; /* a listener's: read from the kernel since its last setsockopt */
	struct entry entry[ENTRIES];
};

/* What a program may have set before connect() or listen() and expects to find afterwards. */
static const struct {
	int level, name;
} carried_over[] = {
    {SOL_SOCKET, SO_REUSEADDR},
    {SOL_SOCKET, SO_REUSEPORT},
    {SOL_SOCKET, SO_KEEPALIVE},
    {SOL_SOCKET, SO_BROADCAST},
    {SOL_SOCKET, SO_OOBINLINE},
    {SOL_SOCKET, SO_LINGER},
    {SOL_SOCKET, SO_SNDBUF},
    {SOL_SOCKET, SO_RCVBUF},
    {SOL_SOCKET, SO_RCVTIMEO},
    {SOL_SOCKET, SO_SNDTIMEO},
    {SOL_SOCKET, SO_RCVLOWAT},
    {SOL_SOCKET, SO_PRIORITY},
    {SOL_SOCKET, SO_MARK},
    {SOL_SOCKET, SO_DONTROUTE},
    {SOL_SOCKET, SO_TIMESTAMP},
    {SOL_SOCKET, SO_BUSY_POLL},
    {IPPROTO_TCP, TCP_NODELAY},
    {IPPROTO_TCP, TCP_CORK},
    {IPPROTO_TCP, TCP_KEEPIDLE},
    {IPPROTO_TCP, TCP_KEEPINTVL},
    {IPPROTO_TCP, TCP_KEEPCNT},
    {IPPROTO_TCP, TCP_SYNCNT},
    {IPPROTO_TCP, TCP_LINGER2},
    {IPPROTO_TCP, TCP_WINDOW_CLAMP},
    {IPPROTO_TCP, TCP_CONGESTION},
    {IPPROTO_TCP, TCP_USER_TIMEOUT},
    {IPPROTO_TCP, TCP_NOTSENT_LOWAT},
    {IPPROTO_IP, IP_TOS},
    {IPPROTO_IP, IP_TTL},
    {IPPROTO_IP, IP_FREEBIND},
    {IPPROTO_IPV6, IPV6_TCLASS},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS},
    {IPPROTO_IPV6, IPV6_V6ONLY},
};

/* One scratch socket a family, made when first needed, under scratch_lock. */
static pthread_mutex_t scratch_lock = PTHREAD_MUTEX_INITIALIZER;
static int scratch[2] = {-1, -1};

static int scratch_fd(int domain)
{
	int *fd = &scratch[domain == AF_INET6];

	if (*fd < 0) {
		*fd = vkr_guard_fd(vkr_real.socket(domain, SOCK_STREAM | SOCK_CLOEXEC, 0));
		if (*fd >= 0)
			vkr_guard_slot(*fd, fd);
	}
	return *fd;
}

void vkr_options_forked(void)
{
	pthread_mutex_init(&scratch_lock, NULL);
	scratch[0] = scratch[1] = -1; /* closed with the other guarded descriptors */
}

/* ------------------------------------------------------------------ the table */

static struct entry *find(struct vkr_options *o, int level, int name)
{
	int i;

	for (i = 0; o && i < o->n; i++)
		if (o->entry[i].level == level && o->entry[i].name == name)
			return &o->entry[i];
	return NULL;
}

static struct vkr_options *table_of(struct vkr_sock *s)
{
	if (!s->options)
		s->options = calloc(1, sizeof(*s->options));
	return s->options;
}

int vkr_options_room(struct vkr_sock *s, const struct vkr_sock *listener)
{
	int r;

	pthread_mutex_lock(&scratch_lock);
	r = (!listener->options && !vkr_load(&listener->touched)) || table_of(s) ? 0 : -ENOMEM;
	pthread_mutex_unlock(&scratch_lock);
	return r;
}

/* What the library itself acts on. */
static void note(struct vkr_sock *s, int level, int name, const void *val)
{
	struct timeval tv;
	struct linger l;

	if (level != SOL_SOCKET)
		return;
	if (name == SO_RCVTIMEO || name == SO_SNDTIMEO) {
		memcpy(&tv, val, sizeof(tv));
		vkr_store(name == SO_RCVTIMEO ? &s->rcvtimeo : &s->sndtimeo,
			  tv.tv_sec * 1000000000ll + tv.tv_usec * 1000ll);
	} else if (name == SO_LINGER) {
		memcpy(&l, val, sizeof(l));
		s->linger_on = l.l_onoff;
		s->linger_s = l.l_linger;
	}
}

/* scratch_lock held. The library asks idle peers itself: options say after how long; and how much may wait to be sent.
 */
static void to_stream(struct vkr_sock *s)
{
	struct entry *on = find(s->options, SOL_SOCKET, SO_KEEPALIVE),
		     *idle = find(s->options, IPPROTO_TCP, TCP_KEEPIDLE),
		     *sndbuf = find(s->options, SOL_SOCKET, SO_SNDBUF);
	socklen_t len = sizeof(int);
	int v = 0;

	if (!s->stream || vkr_file_inherited(&s->file))
		return;
	if (!on || !on->value[0])
		v = 0;
	else if (idle)
		memcpy(&v, idle->value, sizeof(v));
	else
		vkr_real.getsockopt(scratch_fd(s->domain), IPPROTO_TCP, TCP_KEEPIDLE, &v, &len);
	vkr_stream_keepalive(s->stream, v);
	if (sndbuf) {
		memcpy(&v, sndbuf->value, sizeof(v));
		vkr_stream_sndbuf(s->stream, (uint32_t)v);
	}
}

static bool is_streams(int level, int name)
{
	return (level == SOL_SOCKET && (name == SO_KEEPALIVE || name == SO_SNDBUF)) ||
	       (level == IPPROTO_TCP && name == TCP_KEEPIDLE);
}

static void put(struct vkr_sock *s, int level, int name, const void *val, socklen_t len)
{
	struct vkr_options *o = table_of(s);
	struct entry *e = find(o, level, name);

	if (!o || len > VALUE_MAX || (!e && o->n == ENTRIES))
		return;
	if (!e)
		e = &o->entry[o->n++];
	e->level = level;
	e->name = name;
	e->len = len;
	memcpy(e->value, val, len);
	note(s, level, name, val);
}

_Static_assert(VKR_ARRAY_SIZE(carried_over) <= 64, "a bit each in touched");

/* The kernel may still refuse the value; what counts is read from it when the socket is carried. */
static void touch(struct vkr_sock *s, int level, int name)
{
	unsigned i;

	for (i = 0; i < VKR_ARRAY_SIZE(carried_over); i++)
		if (carried_over[i].level == level && carried_over[i].name == name)
			atomic_fetch_or(&s->touched, UINT64_C(1) << i);
	if (level == IPPROTO_IP && name == IP_TOS)
		touch(s, SOL_SOCKET, SO_PRIORITY);
}

/* Before the kernel has the value, so that there is a place for it if the socket is carried. */
static int touch_with_room(struct vkr_sock *s, int level, int name)
{
	touch(s, level, name);
	return vkr_options_room(s, s);
}

/* The kernel gives a socket the priority of its new type of service; the scratch socket has it now. scratch_lock held.
 */
static void priority_follows(struct vkr_sock *s, const void *tos_before, const void *tos)
{
	struct entry *e = find(s->options, IPPROTO_IP, IP_TOS);
	int priority;
	socklen_t len = sizeof(priority);

	if (!memcmp(e ? e->value : tos_before, tos, sizeof(int)) ||
	    vkr_real.getsockopt(scratch_fd(s->domain), SOL_SOCKET, SO_PRIORITY, &priority, &len) < 0)
		return;
	put(s, SOL_SOCKET, SO_PRIORITY, &priority, len);
}

/* Stores what differs from a fresh socket's value. scratch_lock held. */
static void copy_from(struct vkr_sock *s, int fd, int level, int name)
{
	unsigned char a[VALUE_MAX], b[VALUE_MAX];
	socklen_t alen = sizeof(a), blen = sizeof(b);

	memset(a, 0, sizeof(a));
	memset(b, 0, sizeof(b));
	if (vkr_real.getsockopt(fd, level, name, a, &alen) < 0)
		return;
	if (vkr_real.getsockopt(scratch_fd(s->domain), level, name, b, &blen) == 0 && alen == blen &&
	    !memcmp(a, b, alen))
		return;
	put(s, level, name, a, alen);
}

/* scratch_lock held. */
static void seed(struct vkr_sock *s, int fd)
{
	uint64_t left = vkr_load(&s->touched);
	int i;

	for (; left; left &= left - 1) {
		i = __builtin_ctzll(left);
		copy_from(s, fd, carried_over[i].level, carried_over[i].name);
	}
	to_stream(s);
}

void vkr_options_seed(struct vkr_sock *s, int fd)
{
	pthread_mutex_lock(&scratch_lock);
	seed(s, fd);
	pthread_mutex_unlock(&scratch_lock);
}

/* scratch_lock held. */
static void apply(struct vkr_sock *s)
{
	if (find(s->options, SOL_SOCKET, SO_KEEPALIVE) || find(s->options, SOL_SOCKET, SO_SNDBUF))
		to_stream(s);
}

void vkr_options_apply(struct vkr_sock *s)
{
	pthread_mutex_lock(&scratch_lock);
	apply(s);
	pthread_mutex_unlock(&scratch_lock);
}

/* Accepted sockets start with their listener's options; reading those from the kernel once does for many accepts. Many
 * threads may be at it: a listener's table is under scratch_lock. */
void vkr_options_inherit(struct vkr_sock *child, struct vkr_sock *l, int listener_fd)
{
	struct vkr_options *o;
	int i;

	pthread_mutex_lock(&scratch_lock);
	if (!l->options || !l->options->seeded) {
		if (l->options)
			l->options->n = 0;
		seed(l, listener_fd);
		if (!table_of(l))
			goto out;
		l->options->seeded = true;
	}
	o = l->options;
	for (i = 0; i < o->n; i++)
		put(child, o->entry[i].level, o->entry[i].name, o->entry[i].value, o->entry[i].len);
	apply(child);
out:
	pthread_mutex_unlock(&scratch_lock);
}

struct listener {
	struct vkr_sock *sock;
	int fd;
};

static void inherit_now(void *ticket, void *arg)
{
	struct vkr_sock *child = ticket;
	const struct listener *l = arg;

	if (!child->inherited)
		vkr_options_inherit(child, l->sock, l->fd);
	child->inherited = true;
}

/* A listener's option is about to change. Who has connected before has what it was then. */
static void options_changed(struct vkr_sock *l, int fd)
{
	struct listener arg = {l, fd};

	if (vkr_load(&l->state) == VKR_SOCK_LISTEN && l->listener && !vkr_file_inherited(&l->file))
		vkr_listener_each(l->listener, inherit_now, &arg);
	pthread_mutex_lock(&scratch_lock);
	if (l->options)
		l->options->seeded = false;
	pthread_mutex_unlock(&scratch_lock);
}

void vkr_options_return(struct vkr_sock *s, int fd)
{
	struct entry *e;
	int i;

	for (i = 0; s->options && i < s->options->n; i++) {
		e = &s->options->entry[i];
		if (e->level == SOL_SOCKET && (e->name == SO_RCVBUF || e->name == SO_SNDBUF))
			*(int *)e->value /= 2; /* the kernel doubles what it is given */
		vkr_real.setsockopt(fd, e->level, e->name, e->value, e->len);
		touch(s, e->level, e->name);
	}
	e = find(s->options, SOL_SOCKET, SO_PRIORITY); /* last: the type of service has changed it */
	if (e)
		vkr_real.setsockopt(fd, e->level, e->name, e->value, e->len);
	vkr_options_free(s);
}

void vkr_options_free(struct vkr_sock *s)
{
	free(s->options);
	s->options = NULL;
}

/* ------------------------------------------------------------------ get and set */

static int give(void *val, socklen_t *len, const void *from, socklen_t n)
{
	*len = vkr_min(*len, n);
	memcpy(val, from, *len);
	return 0;
}

static int give_int(void *val, socklen_t *len, int v)
{
	return give(val, len, &v, sizeof(v));
}

/* TCP_INFO of an idle loopback connection, as far as it makes sense: the state, and the window that the ring gives. */
static int give_tcp_info(struct vkr_sock *s, int fd, void *val, socklen_t *len)
{
	unsigned char buf[512];
	socklen_t n = sizeof(buf);
	struct tcp_info *info = (void *)buf;
	uint32_t ready = s->stream ? vkr_pollable_ready(vkr_stream_pollable(s->stream)) : 0;

	if (vkr_real.getsockopt(fd, IPPROTO_TCP, TCP_INFO, buf, &n) < 0)
		return -errno;
	if (ready & EPOLLHUP)
		info->tcpi_state = TCP_CLOSE;
	else if (ready & EPOLLRDHUP)
		info->tcpi_state = TCP_CLOSE_WAIT;
	else
		info->tcpi_state = vkr_load(&s->shut_wr) ? TCP_FIN_WAIT2 : TCP_ESTABLISHED;
	info->tcpi_unacked = s->stream && vkr_stream_outq(s->stream) ? 1 : 0;
	return give(val, len, buf, n);
}

static int get_socket_level(struct vkr_sock *s, int name, void *val, socklen_t *len, bool *done)
{
	*done = true;
	switch (name) {
	case SO_ERROR:
		return give_int(val, len, vkr_stream_take_error(s->stream));
	case SO_TYPE:
		return give_int(val, len, SOCK_STREAM);
	case SO_DOMAIN:
		return give_int(val, len, s->domain);
	case SO_PROTOCOL:
		return give_int(val, len, IPPROTO_TCP);
	case SO_ACCEPTCONN:
		return give_int(val, len, 0);
	}
	*done = false;
	return 0;
}

static int options_get(struct vkr_sock *s, int level, int name, void *val, socklen_t *len)
{
	struct entry *e;
	bool done = false;
	int r, fd;

	if (vkr_bad_pointer(len, sizeof(*len)))
		return -EFAULT;
	if ((int)*len < 0)
		return -EINVAL;
	if (vkr_bad_pointer(val, *len))
		return -EFAULT;
	if (level == SOL_SOCKET) {
		r = get_socket_level(s, name, val, len, &done);
		if (done)
			return r;
	}
	pthread_mutex_lock(&scratch_lock);
	fd = scratch_fd(s->domain);
	e = find(s->options, level, name);
	if (e)
		r = give(val, len, e->value, e->len);
	else if (level == IPPROTO_TCP && name == TCP_INFO)
		r = give_tcp_info(s, fd, val, len);
	else
		r = vkr_real.getsockopt(fd, level, name, val, len) < 0 ? -errno : 0;
	pthread_mutex_unlock(&scratch_lock);
	return r;
}

/* What servers set on each connection that they accept: whether the kernel takes a value, and what it makes of it,
 * depends on nothing but the value. scratch_lock held. */
static struct {
	struct entry in, out;
} judged[16];

static unsigned judged_slot(const struct entry *in)
{
	return ((unsigned)in->name * 5 + (unsigned)in->level + in->value[0]) % VKR_ARRAY_SIZE(judged);
}

/* False: not one of them. */
static bool judged_key(struct entry *in, int level, int name, const void *val, socklen_t len)
{
	bool plain = level == IPPROTO_TCP ? name == TCP_NODELAY || name == TCP_KEEPIDLE || name == TCP_KEEPINTVL ||
						name == TCP_KEEPCNT || name == TCP_USER_TIMEOUT
					  : level == SOL_SOCKET && name == SO_KEEPALIVE;

	memset(in, 0, sizeof(*in));
	if (!plain || len != sizeof(int))
		return false;
	*in = (struct entry){.level = level, .name = name, .len = len};
	memcpy(in->value, val, len);
	return true;
}

/* The scratch socket takes the value and gives back what the kernel made of it, then its own default again. */
static int options_set(struct vkr_sock *s, int level, int name, const void *val, socklen_t len)
{
	unsigned char before[VALUE_MAX], after[VALUE_MAX];
	socklen_t blen = sizeof(before), alen = sizeof(after);
	int fd, r = 0, known;
	struct entry key;
	bool plain = judged_key(&key, level, name, val, len);
	unsigned slot = judged_slot(&key);

	pthread_mutex_lock(&scratch_lock);
	if (!table_of(s)) {
		pthread_mutex_unlock(&scratch_lock);
		return -ENOMEM;
	}
	if (plain && !memcmp(&judged[slot].in, &key, sizeof(key))) {
		put(s, level, name, judged[slot].out.value, judged[slot].out.len);
		if (is_streams(level, name))
			to_stream(s);
		pthread_mutex_unlock(&scratch_lock);
		return 0;
	}
	fd = scratch_fd(s->domain);
	known = vkr_real.getsockopt(fd, level, name, before, &blen) == 0;
	if (vkr_real.setsockopt(fd, level, name, val, len) < 0) {
		r = -errno;
	} else if (known && vkr_real.getsockopt(fd, level, name, after, &alen) == 0) {
		if (level == IPPROTO_IP && name == IP_TOS)
			priority_follows(s, before, after);
		put(s, level, name, after, alen);
		if (plain) {
			judged[slot].in = key;
			judged[slot].out.len = alen;
			memcpy(judged[slot].out.value, after, alen);
		}
		if (level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF))
			*(int *)before /= 2; /* the kernel doubles what it is given */
		vkr_real.setsockopt(fd, level, name, before, blen);
		if (is_streams(level, name))
			to_stream(s);
	}
	pthread_mutex_unlock(&scratch_lock);
	return r;
}

/* How a program learns what became of a non-blocking connect(). */
static int trial(struct vkr_sock *s, int fd, void *val, socklen_t *len)
{
	struct sockaddr_storage sa;
	socklen_t salen = sizeof(sa);

	if (vkr_real.getsockopt(fd, SOL_SOCKET, SO_ERROR, val, len) < 0)
		return -errno;
	if (vkr_real.getpeername(fd, (struct sockaddr *)&sa, &salen) == 0)
		vkr_sock_tcp_stands(s);
	return 0;
}

int vkr_sock_getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	struct vkr_sock *s;
	int r = VKR_PASS, err;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	switch (vkr_sock_settle(s)) {
	case VKR_SOCK_PAIRED:
	case VKR_SOCK_CARRIED:
		/* Errors of a shared connection are with the pair. */
		if ((level != SOL_SOCKET || name != SO_ERROR) ||
		    (vkr_load(&s->state) == VKR_SOCK_CARRIED && !vkr_file_inherited(&s->file)))
			r = options_get(s, level, name, val, len);
		break;
	case VKR_SOCK_CONNECTING:
		if (level == SOL_SOCKET && name == SO_ERROR && !vkr_bad_pointer(len, sizeof(*len)) &&
		    !vkr_bad_pointer(val, *len))
			r = give_int(val, len, 0);
		break;
	default: /* an attempt that failed for good after connect() had returned */
		if (level == SOL_SOCKET && name == SO_ERROR && !vkr_bad_pointer(len, sizeof(*len)) &&
		    !vkr_bad_pointer(val, *len) && (err = atomic_exchange(&s->error, 0)))
			r = give_int(val, len, err);
		else if (vkr_load(&s->on_trial) && level == SOL_SOCKET && name == SO_ERROR)
			r = trial(s, fd, val, len);
		break;
	}
	vkr_sock_put(s);
	return r;
}

int vkr_sock_setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	struct vkr_sock *s;
	int r = VKR_PASS;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (!s)
		return VKR_PASS;
	if (vkr_is_connected(vkr_sock_settle(s))) {
		r = vkr_bad_pointer(val, len) ? -EFAULT : options_set(s, level, name, val, len);
		if (!r && level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO) &&
		    (vkr_load(&s->state) == VKR_SOCK_PAIRED || vkr_file_inherited(&s->file)))
			r = VKR_PASS; /* the pair's too */
	} else {
		if (touch_with_room(s, level, name))
			r = -ENOMEM;
		options_changed(s, fd);
	}
	vkr_sock_put(s);
	return r;
}

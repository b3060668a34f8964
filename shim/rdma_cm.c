/* SPDX-License-Identifier: BSD-2-Clause */
/* Connection management: events, connecting, accepting, listeners. All but the calls of rdma.h is the progress thread.
 */
#include "rdma_cm.h"

#include "config.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "socket.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#define EVENTS_A_TURN      64
#define ACCEPT_NS          (10000 * VKR_MS)
#define STALE_ATTEMPTS     16
#define WAITING_MAX        4096
#define OUR_FEATURES       (VKR_FEAT_FIN | VKR_FEAT_RESIZE)
#define RECEIVES_MIN       16
#define REJECT_NO_LISTENER 8
#define REJECT_STALE       10
#define REJECT_CONSUMER    28

struct vkr_listener *vkr_listeners;
static struct rdma_event_channel *channel;

/* An event, copied so that it is acknowledged before anything is destroyed on its account. */
struct cm_event {
	enum rdma_cm_event_type type;
	int status;
	struct rdma_cm_id *id, *listen_id;
	uint8_t data[256];
	size_t data_len;
};

int vkr_cm_open(const char **reason)
{
	errno = 0;
	channel = vkr_verbs.rdma_create_event_channel();
	if (!channel) {
		*reason = errno == EACCES || errno == EPERM
			      ? "no permission for RDMA connection management (/dev/infiniband/rdma_cm)"
			      : "RDMA connection management is not available (kernel module rdma_ucm?)";
		return errno ? -errno : -ENODEV;
	}
	if (!vkr_verbs.soft)
		channel->fd = vkr_guard_fd(channel->fd);
	vkr_real.fcntl(channel->fd, F_SETFL, vkr_real.fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	return 0;
}

int vkr_cm_fd(void)
{
	return channel ? channel->fd : -1;
}

void vkr_cm_forked(void)
{
	channel = NULL;
	vkr_listeners = NULL;
}

/* ------------------------------------------------------------------ addresses */

static void map_v4(struct sockaddr_storage *sa)
{
	struct sockaddr_in v4;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)sa;

	if (sa->ss_family != AF_INET)
		return;
	memcpy(&v4, sa, sizeof(v4));
	memset(sa, 0, sizeof(*sa));
	v6->sin6_family = AF_INET6;
	v6->sin6_port = v4.sin_port;
	v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
	memcpy(&v6->sin6_addr.s6_addr[12], &v4.sin_addr, 4);
}

static bool unmap_v4(struct sockaddr_storage *sa)
{
	struct sockaddr_in6 v6;
	struct sockaddr_in *v4 = (struct sockaddr_in *)sa;

	memcpy(&v6, sa, sizeof(v6));
	if (v6.sin6_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
		return false;
	memset(sa, 0, sizeof(*sa));
	v4->sin_family = AF_INET;
	v4->sin_port = v6.sin6_port;
	memcpy(&v4->sin_addr, &v6.sin6_addr.s6_addr[12], 4);
	return true;
}

static void take_addr(struct sockaddr_storage *to, const struct sockaddr *from, bool mapped)
{
	memset(to, 0, sizeof(*to));
	memcpy(to, from, from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	if (mapped)
		map_v4(to);
}

static void take_addrs(struct vkr_stream *s)
{
	take_addr(&s->local, rdma_get_local_addr(s->id), s->mapped);
	take_addr(&s->peer, rdma_get_peer_addr(s->id), s->mapped);
}

/* ------------------------------------------------------------------ negotiation */

static void hello_make(const struct vkr_stream *s, uint8_t out[VKR_HELLO_SIZE])
{
	struct vkr_hello h = {
	    .version = VKR_HELLO_VERSION,
	    .receives = VKR_RECV_BOUND,
	    .features = OUR_FEATURES,
	    .ring_length = s->rx[0].len,
	    .ring_rkey = s->rx[0].mr->rkey,
	    .ring_address = (uintptr_t)s->rx[0].buf,
	    .ring_max = VKR_RING_MAX,
	};

	vkr_wire_hello_encode(&h, out);
}

/* Who is there? Sets the peer's kind, the features both have, and where we may write. 0 or -EPROTO. */
static int hello_take(struct vkr_stream *s, const struct cm_event *e)
{
	struct vkr_hello h;
	int ret = vkr_wire_hello_decode(e->data, e->data_len, &h);

	if (ret == -ENOMSG) {
		s->peer_kind = VKR_PEER_NATIVE;
		s->tx.bound = s->role == VKR_ROLE_CONNECT ? VKR_NATIVE_BOUND : VKR_NO_BOUND;
		return 0;
	}
	if (ret || h.ring_length > VKR_RING_BELIEVED || h.receives < RECEIVES_MIN)
		return -EPROTO;
	s->peer_kind = VKR_PEER_SHIM;
	s->features = h.features & OUR_FEATURES;
	s->tx.bound = h.receives;
	if (!(s->features & VKR_FEAT_RESIZE))
		s->ring_limit = s->ring_first;
	vkr_tx_ring(s, h.ring_address, h.ring_length, h.ring_rkey);
	return 0;
}

/* A native server crashes when the client's length ever changes (T2): its ring is made in one length, once. */
static int native_ring(struct vkr_stream *s)
{
	int ret = 0;

	if (s->peer_kind != VKR_PEER_NATIVE)
		return 0;
	pthread_mutex_lock(&s->p.lock);
	if (s->role == VKR_ROLE_CONNECT) {
		s->ring_first = s->ring_limit = vkr_config.native_ring;
		vkr_ring_destroy(s, &s->rx[0]);
		ret = vkr_ring_create(s, &s->rx[0], s->ring_first);
	}
	s->tx.control |= VKR_CTL_REFRESH;
	pthread_mutex_unlock(&s->p.lock);
	return ret;
}

/* ------------------------------------------------------------------ connecting */

void vkr_cm_connect_failed(struct vkr_stream *s, int err, const char *fmt, ...)
{
	va_list ap;

	if (s->role == VKR_ROLE_ACCEPT || s->fail_errno)
		return;
	if (fmt) {
		va_start(ap, fmt);
		vsnprintf(s->reason, sizeof(s->reason), fmt, ap);
		va_end(ap);
	} else {
		snprintf(s->reason, sizeof(s->reason), "no RDMA answer within %d ms", s->timeout_ms);
	}
	pthread_mutex_lock(&s->p.lock);
	s->fail_errno = err;
	vkr_store_rel(&s->state, VKR_STREAM_FAILED);
	vkr_pollable_set(&s->p, 0, VKR_EDGE_STATE);
	pthread_mutex_unlock(&s->p.lock);
}

static void connect_over(struct vkr_stream *s, int err, const char *what)
{
	char who[64];

	vkr_addr_text(&s->peer, who, sizeof(who));
	vkr_cm_connect_failed(s, err, "%s (%s)", what, who);
	vkr_stream_teardown(s);
}

static int remaining_ms(const struct vkr_stream *s)
{
	int64_t left = (s->deadline - vkr_clock_ns()) / VKR_MS;

	return (int)vkr_max(left, 1);
}

static void phase_set(struct vkr_stream *s, enum vkr_phase phase)
{
	pthread_mutex_lock(&s->p.lock);
	s->phase = phase;
	pthread_mutex_unlock(&s->p.lock);
}

void vkr_cm_connect_begin(struct vkr_stream *s)
{
	struct sockaddr_storage src = s->bind, dst = s->peer;

	s->attempts++;
	s->mapped = unmap_v4(&dst);
	unmap_v4(&src);
	vkr_stream_timer(s, s->deadline);
	if (vkr_verbs.rdma_create_id(channel, &s->id, s, RDMA_PS_TCP)) {
		s->id = NULL;
		connect_over(s, errno, "no RDMA connection identifier left");
		return;
	}
	phase_set(s, VKR_PH_ADDR);
	if (vkr_verbs.rdma_resolve_addr(s->id, s->bound ? (struct sockaddr *)&src : NULL, (struct sockaddr *)&dst,
					remaining_ms(s)))
		connect_over(s, ENETUNREACH, "address has no RDMA device behind it");
}

static void on_addr_resolved(struct vkr_stream *s)
{
	phase_set(s, VKR_PH_ROUTE);
	if (vkr_verbs.rdma_resolve_route(s->id, remaining_ms(s)))
		connect_over(s, ENETUNREACH, "no RDMA route");
}

static void on_route_resolved(struct vkr_stream *s)
{
	struct rdma_conn_param param;
	uint8_t hello[VKR_HELLO_SIZE];
	const char *what;
	int ret;

	ret = vkr_stream_verbs_create(s, &what);
	if (ret) {
		connect_over(s, -ret, what);
		return;
	}
	hello_make(s, hello);
	memset(&param, 0, sizeof(param));
	param.private_data = hello;
	param.private_data_len = sizeof(hello);
	param.responder_resources = param.initiator_depth = 1;
	param.retry_count = param.rnr_retry_count = 7;
	param.qp_num = s->qp->qp_num;
	phase_set(s, VKR_PH_REQUEST);
	if (vkr_verbs.rdma_connect(s->id, &param))
		connect_over(s, errno ? errno : EIO, "the RDMA connection request could not be sent");
}

static void on_response(struct vkr_stream *s, const struct cm_event *e)
{
	if (s->phase != VKR_PH_REQUEST)
		return;
	if (hello_take(s, e)) {
		connect_over(s, EPROTO, "the peer speaks another version of the protocol");
		return;
	}
	if (native_ring(s)) {
		connect_over(s, ENOMEM, "memory could not be registered (ulimit -l?)");
		return;
	}
	if (vkr_stream_verbs_connect(s) || vkr_verbs.rdma_establish(s->id)) {
		connect_over(s, EIO, "the connection's queue pair could not be set up");
		return;
	}
	vkr_timer_cancel(&s->timer);
	take_addrs(s);
	vkr_stream_opened(s);
}

/* T12: our queue pair's number is still in TIMEWAIT at the peer. Another one will do. */
static bool stale_retry(struct vkr_stream *s)
{
	if (s->attempts >= STALE_ATTEMPTS || vkr_clock_ns() >= s->deadline)
		return false;
	vkr_stream_verbs_destroy(s);
	phase_set(s, VKR_PH_NEW);
	vkr_task_queue(&s->task);
	return true;
}

static void on_connect_error(struct vkr_stream *s, const struct cm_event *e)
{
	char who[64], what[112];

	if (s->phase >= VKR_PH_OPEN || s->phase == VKR_PH_NEW)
		return;
	if (s->role == VKR_ROLE_ACCEPT) {
		vkr_stream_teardown(s);
		return;
	}
	vkr_addr_text(&s->peer, who, sizeof(who));
	switch (e->type) {
	case RDMA_CM_EVENT_ADDR_ERROR:
		connect_over(s, ENETUNREACH, "address has no RDMA device behind it");
		break;
	case RDMA_CM_EVENT_ROUTE_ERROR:
		connect_over(s, ENETUNREACH, "no RDMA route");
		break;
	case RDMA_CM_EVENT_REJECTED:
		if (e->status == REJECT_STALE && stale_retry(s))
			return;
		snprintf(what, sizeof(what), "no RDMA listener at %s (%s)", who,
			 e->status == REJECT_CONSUMER ? "refused" : "nothing listens");
		vkr_cm_connect_failed(s, ECONNREFUSED, "%s", what);
		vkr_stream_teardown(s);
		break;
	default:
		connect_over(s, e->status == -ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH, "no RDMA answer");
		break;
	}
}

int vkr_connect_start(const struct sockaddr *local, const struct sockaddr *peer, int timeout_ms, const char *rule,
		      struct vkr_stream **stream, const char **reason)
{
	struct vkr_stream *s;

	if (!vkr_engine_running()) {
		*reason = "the RDMA engine does not run";
		return -ENODEV;
	}
	s = vkr_stream_new(VKR_ROLE_CONNECT, local, peer, rule);
	if (!s) {
		*reason = "out of memory";
		return -ENOMEM;
	}
	s->held = true;
	s->timeout_ms = timeout_ms;
	s->deadline = vkr_clock_ns() + timeout_ms * VKR_MS;
	if (local) {
		s->bound = true;
		s->bind = s->local;
	}
	*stream = s;
	vkr_task_queue(&s->task);
	return 0;
}

/* ------------------------------------------------------------------ accepting */

/* Nothing was promised yet: without a queue pair there is no other answer (T7 is about requests that could be met). */
static void refuse(struct rdma_cm_id *id)
{
	vkr_verbs.rdma_reject(id, NULL, 0);
}

static int accept_request(struct vkr_stream *s, const char **what)
{
	struct rdma_conn_param param;
	uint8_t hello[VKR_HELLO_SIZE];
	int ret;

	ret = vkr_stream_verbs_create(s, what);
	if (!ret)
		ret = vkr_stream_verbs_connect(s);
	if (ret)
		return ret;
	memset(&param, 0, sizeof(param));
	if (s->peer_kind == VKR_PEER_SHIM) {
		hello_make(s, hello);
		param.private_data = hello;
		param.private_data_len = sizeof(hello);
	}
	param.responder_resources = param.initiator_depth = 1;
	param.retry_count = param.rnr_retry_count = 7;
	param.qp_num = s->qp->qp_num;
	s->phase = VKR_PH_ACCEPTED;
	*what = "the RDMA connection could not be accepted";
	return vkr_verbs.rdma_accept(s->id, &param) ? (errno ? -errno : -EIO) : 0;
}

static void on_request(struct vkr_listener *l, const struct cm_event *e)
{
	const char *what = "";
	struct vkr_stream *s;
	char who[64];
	int ret;

	s = vkr_stream_new(VKR_ROLE_ACCEPT, rdma_get_local_addr(e->id), rdma_get_peer_addr(e->id), l->rule);
	if (!s || l->n_waiting >= WAITING_MAX || hello_take(s, e)) {
		refuse(e->id);
		vkr_verbs.rdma_destroy_id(e->id);
		if (s)
			vkr_stream_free(s);
		return;
	}
	s->id = e->id;
	s->id->context = s;
	s->listener = l;
	s->mapped = l->family == AF_INET6;
	take_addrs(s);
	ret = accept_request(s, &what);
	if (ret) {
		vkr_addr_text(&s->peer, who, sizeof(who));
		vkr_warn("RDMA connection from %s refused: %s (%s)", who, what, strerrordesc_np(-ret));
		refuse(s->id);
		vkr_stream_teardown(s);
		return;
	}
	s->deadline = vkr_clock_ns() + ACCEPT_NS;
	vkr_stream_timer(s, s->deadline);
}

static void on_established(struct vkr_stream *s)
{
	struct vkr_listener *l = s->listener;

	if (s->phase != VKR_PH_ACCEPTED)
		return;
	vkr_timer_cancel(&s->timer);
	native_ring(s);
	s->held = true;
	s->listener = NULL;
	vkr_stream_opened(s);
	pthread_mutex_lock(&l->p.lock);
	DL_APPEND2(l->waiting, s, wait_prev, wait_next);
	l->n_waiting++;
	vkr_pollable_set(&l->p, EPOLLIN, EPOLLIN);
	pthread_mutex_unlock(&l->p.lock);
}

void vkr_cm_forget(struct vkr_stream *s)
{
	s->listener = NULL;
}

/* ------------------------------------------------------------------ events */

static void on_disconnected(struct vkr_stream *s)
{
	if (s->phase == VKR_PH_ACCEPTED || s->phase < VKR_PH_OPEN) {
		if (s->role == VKR_ROLE_CONNECT)
			vkr_cm_connect_failed(s, ECONNRESET, "the peer left at once");
		vkr_stream_teardown(s);
		return;
	}
	vkr_stream_disconnected(s);
	vkr_stream_step(&s->task);
}

static void event_handle(const struct cm_event *e)
{
	struct vkr_stream *s = e->id->context;

	vkr_debug("CM event %d status %d", e->type, e->status);
	switch (e->type) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		on_request(e->listen_id->context, e);
		break;
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		on_addr_resolved(s);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		on_route_resolved(s);
		break;
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		on_response(s, e);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		on_established(s);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_REJECTED:
		on_connect_error(s, e);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		on_disconnected(s);
		break;
	default:
		break;
	}
}

static bool event_take(struct cm_event *e)
{
	struct rdma_cm_event *event;

	if (vkr_verbs.rdma_get_cm_event(channel, &event))
		return false;
	e->type = event->event;
	e->status = event->status;
	e->id = event->id;
	e->listen_id = event->listen_id;
	e->data_len = 0;
	if ((e->type == RDMA_CM_EVENT_CONNECT_REQUEST || e->type == RDMA_CM_EVENT_CONNECT_RESPONSE) &&
	    event->param.conn.private_data) {
		e->data_len = event->param.conn.private_data_len;
		memcpy(e->data, event->param.conn.private_data, e->data_len);
	}
	vkr_verbs.rdma_ack_cm_event(event);
	return true;
}

/* The listening id has a listener, not a stream, behind it. */
static bool event_of_listener(const struct cm_event *e)
{
	struct vkr_listener *l;
	bool found = false;

	if (e->type == RDMA_CM_EVENT_CONNECT_REQUEST)
		return false;
	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_listeners, l)
		found |= e->id->context == l;
	pthread_mutex_unlock(&vkr_registry_lock);
	return found;
}

void vkr_cm_readable(void)
{
	struct cm_event e;
	int i;

	for (i = 0; i < EVENTS_A_TURN && event_take(&e); i++) {
		/* Removal and address change of a device may name a listener; its port stays as it is. */
		if (!event_of_listener(&e))
			event_handle(&e);
	}
}

/* ------------------------------------------------------------------ listeners */

static struct vkr_stream *handshaking(const struct vkr_listener *l)
{
	struct vkr_stream *s, *found = NULL;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_registry, s) {
		if (s->listener == l) {
			found = s;
			break;
		}
	}
	pthread_mutex_unlock(&vkr_registry_lock);
	return found;
}

static void listener_task(struct vkr_task *task)
{
	struct vkr_listener *l = vkr_container_of(task, struct vkr_listener, task);
	struct vkr_stream *s;

	vkr_verbs.rdma_destroy_id(l->id);
	/* Handshakes under way have nobody to go to. */
	while ((s = handshaking(l)))
		vkr_stream_teardown(s);
	pthread_mutex_lock(&vkr_registry_lock);
	DL_DELETE(vkr_listeners, l);
	pthread_mutex_unlock(&vkr_registry_lock);
	pthread_mutex_lock(&l->p.lock);
	l->closed = true;
	pthread_cond_signal(&l->closed_cond);
	pthread_mutex_unlock(&l->p.lock);
}

static const char *listen_reason(int err)
{
	switch (err) {
	case EADDRINUSE:
		return "another program has this RDMA port";
	case EADDRNOTAVAIL:
	case ENODEV:
		return "no RDMA device has this address";
	case EACCES:
	case EPERM:
		return "no permission for this RDMA port";
	default:
		return "the RDMA listener could not be made";
	}
}

static int listener_open(struct vkr_listener *l, const struct sockaddr *local, bool v6only, int backlog)
{
	int af_only = v6only;

	errno = 0;
	if (vkr_verbs.rdma_create_id(channel, &l->id, l, RDMA_PS_TCP))
		return errno ? -errno : -ENOMEM;
	if (local->sa_family == AF_INET6)
		vkr_verbs.rdma_set_option(l->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &af_only, sizeof(af_only));
	if (vkr_verbs.rdma_bind_addr(l->id, (struct sockaddr *)(uintptr_t)local) ||
	    vkr_verbs.rdma_listen(l->id, vkr_max(backlog, 1))) {
		int err = errno ? errno : EADDRNOTAVAIL;

		vkr_verbs.rdma_destroy_id(l->id);
		return -err;
	}
	return 0;
}

int vkr_listener_create(const struct sockaddr *local, bool v6only, int backlog, const char *rule,
			struct vkr_listener_stats *stats, struct vkr_listener **out, const char **reason)
{
	struct sockaddr_storage sa;
	struct vkr_listener *l;
	int ret;

	if (!vkr_engine_running()) {
		*reason = "the RDMA engine does not run";
		return -ENODEV;
	}
	l = calloc(1, sizeof(*l));
	if (!l) {
		*reason = "out of memory";
		return -ENOMEM;
	}
	vkr_pollable_init(&l->p);
	pthread_cond_init(&l->closed_cond, NULL);
	l->task.run = listener_task;
	l->epoch = vkr_epoch;
	l->family = local->sa_family;
	l->backlog = backlog;
	l->stats = stats;
	snprintf(l->rule, sizeof(l->rule), "%s", rule ? rule : "");
	take_addr(&sa, local, false);
	unmap_v4(&sa);
	pthread_mutex_lock(&vkr_registry_lock);
	DL_APPEND(vkr_listeners, l);
	pthread_mutex_unlock(&vkr_registry_lock);
	vkr_depth++;
	ret = listener_open(l, (struct sockaddr *)&sa, v6only, backlog);
	vkr_depth--;
	if (ret) {
		pthread_mutex_lock(&vkr_registry_lock);
		DL_DELETE(vkr_listeners, l);
		pthread_mutex_unlock(&vkr_registry_lock);
		*reason = listen_reason(-ret);
		free(l);
		return ret;
	}
	*out = l;
	return 0;
}

struct vkr_pollable *vkr_listener_pollable(struct vkr_listener *l)
{
	return &l->p;
}

void vkr_listener_backlog(struct vkr_listener *l, int backlog)
{
	pthread_mutex_lock(&l->p.lock);
	l->backlog = backlog;
	pthread_mutex_unlock(&l->p.lock);
}

struct vkr_stream *vkr_listener_accept(struct vkr_listener *l)
{
	struct vkr_stream *s;

	pthread_mutex_lock(&l->p.lock);
	s = l->waiting;
	if (s) {
		DL_DELETE2(l->waiting, s, wait_prev, wait_next);
		l->n_waiting--;
		if (!l->waiting)
			vkr_pollable_set(&l->p, 0, 0);
	}
	pthread_mutex_unlock(&l->p.lock);
	return s;
}

void vkr_listener_close(struct vkr_listener *l)
{
	struct vkr_stream *s;

	/* A forked child's copy: the parent's port goes on. */
	if (l->epoch != vkr_epoch)
		return;
	vkr_depth++;
	vkr_task_queue(&l->task);
	/* Until the port is free: the program may listen on it again at once. */
	pthread_mutex_lock(&l->p.lock);
	while (!l->closed)
		pthread_cond_wait(&l->closed_cond, &l->p.lock);
	pthread_mutex_unlock(&l->p.lock);
	while ((s = vkr_listener_accept(l)))
		vkr_stream_close(s, 0);
	pthread_cond_destroy(&l->closed_cond);
	pthread_mutex_destroy(&l->p.lock);
	free(l);
	vkr_depth--;
}

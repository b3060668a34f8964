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
#define STALE_ATTEMPTS     16
#define RECEIVES_MIN       16
#define REJECT_NO_LISTENER 8
#define REJECT_STALE       10

static struct rdma_event_channel *channel;

int vkr_cm_open(const char **reason)
{
	errno = 0;
	channel = vkr_verbs.rdma_create_event_channel();
	if (!channel) {
		*reason = errno == EACCES || errno == EPERM
			      ? "no permission for RDMA connection management (/dev/infiniband/rdma_cm)"
			  : errno == ENOMEM || errno == EMFILE || errno == ENFILE
			      ? "no descriptor or memory is left for RDMA connection management"
			      : "RDMA connection management is not available (kernel module rdma_ucm?)";
		return errno ? -errno : -ENODEV;
	}
	if (!vkr_verbs.soft)
		channel->fd = vkr_guard_fd(channel->fd);
	vkr_real.fcntl(channel->fd, F_SETFL, vkr_real.fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
	return 0;
}

void vkr_cm_close(void)
{
	vkr_verbs.rdma_destroy_event_channel(channel);
	channel = NULL;
}

int vkr_cm_fd(void)
{
	return channel ? channel->fd : -1;
}

void vkr_cm_forked(void)
{
	channel = NULL;
	vkr_listeners = NULL;
	vkr_cm_guests_forked();
}

int vkr_cm_id_create(struct rdma_cm_id **id, struct vkr_cm_owner *owner)
{
	errno = 0;
	if (!vkr_verbs.rdma_create_id(channel, id, owner, RDMA_PS_TCP))
		return 0;
	*id = NULL;
	return errno ? -errno : -ENOMEM;
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

bool vkr_cm_unmap_v4(struct sockaddr_storage *sa)
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

void vkr_cm_take_addr(struct sockaddr_storage *to, const struct sockaddr *from, bool mapped)
{
	memset(to, 0, sizeof(*to));
	memcpy(to, from, from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
	if (mapped)
		map_v4(to);
}

void vkr_cm_take_addrs(struct vkr_stream *s)
{
	vkr_cm_take_addr(&s->local, rdma_get_local_addr(s->id), s->mapped);
	vkr_cm_take_addr(&s->peer, rdma_get_peer_addr(s->id), s->mapped);
}

/* ------------------------------------------------------------------ negotiation */

size_t vkr_cm_hello_make(const struct vkr_stream *s, uint8_t out[VKR_HELLO_SIZE])
{
	struct vkr_hello h = {
	    .version = VKR_HELLO_VERSION,
	    .receives = VKR_RECV_BOUND,
	    .features = vkr_config.features,
	    .ring_length = s->rx[0].len,
	    .ring_rkey = s->rx[0].mr->rkey,
	    .ring_address = (uintptr_t)s->rx[0].buf,
	    .ring_max = VKR_RING_MAX,
	};

	if (h.features & VKR_FEAT_CREDIT) {
		h.credit_address = (uintptr_t)s->word;
		h.credit_rkey = s->word_mr->rkey;
	} else {
		h.version = 1;
	}
	return vkr_wire_hello_encode(&h, out);
}

/* Who is there? Sets the peer's kind, the features both have, and where we may write. 0 or -EPROTO. */
int vkr_cm_hello_take(struct vkr_stream *s, const uint8_t *data, size_t len)
{
	struct vkr_hello h;
	int ret = vkr_wire_hello_decode(data, len, &h);

	if (ret == -ENOMSG) {
		s->peer_kind = VKR_PEER_NATIVE;
		s->tx.bound = s->role == VKR_ROLE_CONNECT ? VKR_NATIVE_BOUND : VKR_NO_BOUND;
		return 0;
	}
	if (ret || h.ring_length > VKR_RING_BELIEVED || h.receives < RECEIVES_MIN)
		return -EPROTO;
	pthread_mutex_lock(&s->p.lock); /* the application may be closing it */
	s->peer_kind = VKR_PEER_SHIM;
	s->features = vkr_wire_features(vkr_config.features, h.features);
	s->credits = (s->features & VKR_FEAT_CREDIT) != 0;
	s->tx.credit_addr = h.credit_address;
	s->tx.credit_rkey = h.credit_rkey;
	s->tx.bound = h.receives;
	if (!(s->features & VKR_FEAT_RESIZE))
		s->ring_limit = s->ring_first;
	vkr_tx_ring(s, h.ring_address, h.ring_length, h.ring_rkey);
	pthread_mutex_unlock(&s->p.lock);
	return 0;
}

/* A native server crashes when the client's length ever changes (T2): its ring is made in one length, once. */
int vkr_cm_native_ring(struct vkr_stream *s)
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

	vkr_address_text((struct sockaddr *)&s->peer, who, sizeof(who));
	vkr_cm_connect_failed(s, err, "%s (%s)", what, who);
	vkr_stream_teardown(s);
}

static int remaining_ms(const struct vkr_stream *s)
{
	int64_t left = (s->deadline - vkr_now_ns()) / VKR_MS;

	return (int)vkr_max(left, 1);
}

void vkr_cm_connect_begin(struct vkr_stream *s)
{
	struct sockaddr_storage src = s->bind, dst = s->peer;

	s->attempts++;
	s->mapped = vkr_cm_unmap_v4(&dst);
	vkr_cm_unmap_v4(&src);
	vkr_stream_timer(s, s->deadline);
	if (vkr_cm_id_create(&s->id, &s->owner)) {
		s->id = NULL;
		connect_over(s, errno, "no RDMA connection identifier left");
		return;
	}
	vkr_stream_phase(s, VKR_PH_ADDR);
	if (vkr_verbs.rdma_resolve_addr(s->id, s->bound ? (struct sockaddr *)&src : NULL, (struct sockaddr *)&dst,
					remaining_ms(s)))
		connect_over(s, ENETUNREACH, "address has no RDMA device behind it");
}

static void on_addr_resolved(struct vkr_stream *s)
{
	vkr_stream_phase(s, VKR_PH_ROUTE);
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
	memset(&param, 0, sizeof(param));
	param.private_data = hello;
	param.private_data_len = (uint8_t)vkr_cm_hello_make(s, hello);
	param.responder_resources = param.initiator_depth = 1;
	param.retry_count = param.rnr_retry_count = 7;
	param.qp_num = s->qp->qp_num;
	vkr_stream_phase(s, VKR_PH_REQUEST);
	if (vkr_verbs.rdma_connect(s->id, &param))
		connect_over(s, errno ? errno : EIO, "the RDMA connection request could not be sent");
}

static void on_response(struct vkr_stream *s, const struct vkr_cm_event *e)
{
	if (s->phase != VKR_PH_REQUEST)
		return;
	if (vkr_cm_hello_take(s, e->data, e->data_len)) {
		connect_over(s, EPROTO, "the peer speaks another version of the protocol");
		return;
	}
	if (vkr_cm_native_ring(s)) {
		connect_over(s, ENOMEM, "memory could not be registered (ulimit -l?)");
		return;
	}
	if (vkr_stream_verbs_connect(s) || vkr_verbs.rdma_establish(s->id)) {
		/* Mostly the peer has gone again. */
		connect_over(s, ECONNRESET, "the connection's queue pair could not be set up");
		return;
	}
	vkr_timer_cancel(&s->timer);
	vkr_cm_take_addrs(s);
	vkr_stream_opened(s);
}

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

/* T12: our queue pair's number is still in TIMEWAIT at the peer. Another one will do. */
static bool stale_retry(struct vkr_stream *s)
{
	if (s->attempts >= STALE_ATTEMPTS || vkr_now_ns() >= s->deadline)
		return false;
	vkr_stream_verbs_destroy(s);
	vkr_stream_phase(s, VKR_PH_NEW);
	vkr_task_queue(&s->task);
	return true;
}

static void on_rejected(struct vkr_stream *s, const struct vkr_cm_event *e)
{
	char who[64], why[64];

	if (e->status == REJECT_STALE && stale_retry(s))
		return;
	vkr_address_text((struct sockaddr *)&s->peer, who, sizeof(who));
	if (vkr_wire_refusal_decode(e->data, e->data_len, why, sizeof(why)))
		vkr_cm_connect_failed(s, ECONNREFUSED, "refused by %s: %s", who, why);
	else if (e->status == REJECT_NO_LISTENER)
		vkr_cm_connect_failed(s, ECONNREFUSED, "no RDMA listener at %s", who);
	else
		vkr_cm_connect_failed(s, ECONNREFUSED, "%s rejects RDMA connections (CM status %d)", who, e->status);
	vkr_stream_teardown(s);
}

static void on_connect_error(struct vkr_stream *s, const struct vkr_cm_event *e)
{
	if (s->phase == VKR_PH_NEW)
		return;
	if (s->phase >= VKR_PH_OPEN) {
		/* The acceptor gave up when it had not heard yet that we are established: its end. */
		if (e->type == RDMA_CM_EVENT_REJECTED)
			on_disconnected(s);
		return;
	}
	if (s->role == VKR_ROLE_ACCEPT) {
		vkr_stream_teardown(s);
		return;
	}
	switch (e->type) {
	case RDMA_CM_EVENT_ADDR_ERROR:
		connect_over(s, ENETUNREACH, "address has no RDMA device behind it");
		break;
	case RDMA_CM_EVENT_ROUTE_ERROR:
		connect_over(s, ENETUNREACH, "no RDMA route");
		break;
	case RDMA_CM_EVENT_REJECTED:
		on_rejected(s, e);
		break;
	default:
		connect_over(s, e->status == -ETIMEDOUT ? ETIMEDOUT : EHOSTUNREACH, "no RDMA answer");
		break;
	}
}

/* Only with all that is known of the peer by now: it may have gone. */
static struct vkr_stream *connect_kept(const struct sockaddr *peer, const char *rule)
{
	struct vkr_stream *s;
	struct vkr_turn turn;

	if (!vkr_progress_enter(&turn))
		return NULL;
	vkr_progress_catch_up();
	s = vkr_keep_take(peer, rule);
	vkr_progress_leave(&turn);
	return s;
}

int vkr_connect_start(const struct sockaddr *local, const struct sockaddr *peer, int timeout_ms, const char *rule,
		      struct vkr_stream **stream, const char **reason)
{
	struct vkr_stream *s;

	if (!vkr_engine_running()) {
		*reason = "the RDMA engine does not run";
		return -ENODEV;
	}
	*stream = local ? NULL : connect_kept(peer, rule);
	if (*stream)
		return 0;
	s = vkr_stream_new(VKR_ROLE_CONNECT, local, peer, rule);
	if (!s) {
		*reason = "out of memory";
		return -ENOMEM;
	}
	s->held = true;
	s->timeout_ms = timeout_ms;
	s->deadline = vkr_now_ns() + timeout_ms * VKR_MS;
	if (local) {
		s->bound = true;
		s->bind = s->local;
	}
	*stream = s;
	vkr_task_now(&s->task);
	return 0;
}

/* ------------------------------------------------------------------ events */

/* An attempt that has broken, its device removed perhaps, goes no further: its end is queued. */
static bool goes_on(struct vkr_stream *s)
{
	bool broken;

	pthread_mutex_lock(&s->p.lock);
	broken = s->broken;
	pthread_mutex_unlock(&s->p.lock);
	return !broken;
}

static void stream_event(struct vkr_stream *s, const struct vkr_cm_event *e)
{
	switch (e->type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
		if (!goes_on(s))
			return;
		break;
	default:
		break;
	}
	switch (e->type) {
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
		vkr_cm_established(s);
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
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		/* Its end, which is queued, releases what it has of the device. TCP would try for a while, and end so.
		 */
		pthread_mutex_lock(&s->p.lock);
		vkr_stream_break(s, ETIMEDOUT);
		pthread_mutex_unlock(&s->p.lock);
		break;
	default:
		break;
	}
}

static bool event_take(struct vkr_cm_event *e)
{
	struct rdma_cm_event *event;

	/* Where one may ask, the reading of an empty channel is saved. */
	if (vkr_verbs.soft && !vkr_verbs.soft->cm_pending(channel))
		return false;
	if (vkr_verbs.rdma_get_cm_event(channel, &event))
		return false;
	e->type = event->event;
	e->status = event->status;
	e->id = event->id;
	e->listen_id = event->listen_id;
	e->data_len = 0;
	if ((e->type == RDMA_CM_EVENT_CONNECT_REQUEST || e->type == RDMA_CM_EVENT_CONNECT_RESPONSE ||
	     e->type == RDMA_CM_EVENT_REJECTED) &&
	    event->param.conn.private_data) {
		e->data_len = event->param.conn.private_data_len;
		memcpy(e->data, event->param.conn.private_data, e->data_len);
	}
	vkr_verbs.rdma_ack_cm_event(event);
	return true;
}

static void event_handle(const struct vkr_cm_event *e)
{
	struct ibv_context *verbs = e->id->verbs;
	struct vkr_cm_owner *owner;

	vkr_debug("CM event %d, status %d", e->type, e->status);
	if (e->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		owner = e->listen_id->context;
		vkr_cm_request(vkr_container_of(owner, struct vkr_listener, owner), e);
		return;
	}
	owner = e->id->context;
	if (owner->kind == VKR_OWNER_STREAM) {
		stream_event(vkr_container_of(owner, struct vkr_stream, owner), e);
	} else if (owner->kind == VKR_OWNER_HELD) {
		/* Whatever it is, the client does not wait any more. */
		vkr_cm_held_gone(owner);
	} else if (owner->kind == VKR_OWNER_GUEST) {
		vkr_cm_guest_event(owner, e->type);
	}
	/* A change of address may name a listener; its port stays as it is. */
	if (e->type == RDMA_CM_EVENT_DEVICE_REMOVAL)
		vkr_cm_device_removed(verbs);
}

void vkr_cm_readable(void)
{
	struct vkr_cm_event e;
	int i;

	for (i = 0; i < EVENTS_A_TURN && event_take(&e); i++)
		event_handle(&e);
}

bool vkr_cm_pending(void)
{
	return vkr_verbs.soft && vkr_verbs.soft->cm_pending(channel);
}

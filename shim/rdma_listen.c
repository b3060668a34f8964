/* SPDX-License-Identifier: BSD-2-Clause */
/* Listeners: requests, the backlog, accepting. All but the calls of rdma.h is the progress thread. */
#include "rdma_cm.h"

#include "log.h"
#include "socket.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#define ACCEPT_NS (10000 * VKR_MS)
#define HELD_MAX  4096
/* Ours is the limit that counts; the kernel would refuse where TCP waits. */
#define KERNEL_BACKLOG 1024
/* Kept queue pairs may come beside a full backlog: few of them. */
#define KEPT_OF_BACKLOG 8
#define KEPT_MAX        64

struct vkr_listener *vkr_listeners;

/* A request that waits for room in the backlog. */
struct vkr_held {
	struct vkr_cm_owner owner;
	struct vkr_held *prev, *next;
	struct vkr_listener *listener;
	struct rdma_cm_id *id;
	size_t data_len;
	uint8_t data[VKR_HELLO_SIZE + 16];
};

/* ------------------------------------------------------------------ requests */

static struct vkr_stream *kept_one(void)
{
	struct vkr_stream *s;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_registry, s)
		if (s->phase == VKR_PH_KEPT && s->role == VKR_ROLE_ACCEPT)
			break;
	pthread_mutex_unlock(&vkr_registry_lock);
	return s;
}

/* But one that has just been opened is there, too: it waits to be accepted, as it would without us. */
static void take_back(struct vkr_stream *s)
{
	vkr_endpoint_drain(&s->ep);
	if (vkr_keep_leave(s))
		vkr_stream_teardown(s);
}

/* Who is there goes before who may come again. */
static void *admit(const struct vkr_admission *admission)
{
	struct vkr_stream *kept;
	void *ticket;

	while (!(ticket = admission->admit(admission->arg)) && (kept = kept_one()))
		take_back(kept);
	return ticket;
}

static int accept_request(struct vkr_stream *s, const char **what)
{
	const struct vkr_admission *admission = &s->listener->admission;
	struct rdma_conn_param param;
	uint8_t hello[VKR_HELLO_SIZE];
	int ret;

	if (admission->admit) {
		s->ticket = admit(admission);
		s->dismiss = admission->dismiss;
		*what = "no descriptor or memory is left for it";
		if (!s->ticket)
			return errno ? -errno : -ENOMEM;
	}
	ret = vkr_stream_verbs_create(s, what);
	if (ret)
		return ret;
	/* From here on it takes two: what fails now may be the client's going. */
	vkr_stream_phase(s, VKR_PH_ACCEPTED);
	ret = vkr_stream_verbs_connect(s);
	if (ret)
		return ret;
	memset(&param, 0, sizeof(param));
	if (s->peer_kind == VKR_PEER_SHIM) {
		param.private_data = hello;
		param.private_data_len = (uint8_t)vkr_cm_hello_make(s, hello);
	}
	param.responder_resources = param.initiator_depth = 1;
	param.retry_count = param.rnr_retry_count = 7;
	param.qp_num = s->qp->qp_num;
	*what = "the RDMA connection could not be accepted";
	return vkr_verbs.rdma_accept(s->id, &param) ? (errno ? -errno : -EIO) : 0;
}

/* As the kernel takes it, so that -1 is much; and each that waits has descriptors and a queue pair. */
static int backlog_of(int asked)
{
	return (unsigned)asked > SOMAXCONN ? SOMAXCONN : asked;
}

/* Answers a request: the id is the stream's from here on, or gone. */
static void request_serve(struct vkr_listener *l, struct rdma_cm_id *id, const uint8_t *data, size_t data_len)
{
	const char *what = "";
	struct vkr_stream *s;
	char who[64];
	int ret;

	s = vkr_stream_new(VKR_ROLE_ACCEPT, rdma_get_local_addr(id), rdma_get_peer_addr(id), l->rule);
	if (!s || vkr_cm_hello_take(s, data, data_len)) {
		vkr_cm_refuse(id, data, data_len, s ? "another version of the protocol" : "out of memory");
		if (s)
			vkr_stream_free(s);
		return;
	}
	s->id = id;
	s->id->context = &s->owner;
	s->listener = l;
	s->home = l->serial;
	l->n_handshaking++;
	s->mapped = l->family == AF_INET6;
	vkr_cm_take_addrs(s);
	ret = accept_request(s, &what);
	if (ret) {
		vkr_address_text((struct sockaddr *)&s->peer, who, sizeof(who));
		/* A client that has gone meanwhile is its own affair; what this machine lacks is the user's. */
		vkr_log(s->phase == VKR_PH_ACCEPTED ? VKR_LOG_INFO : VKR_LOG_WARN,
			"RDMA connection from %s refused: %s (%s)", who, what, strerrordesc_np(-ret));
		s->id = NULL;
		vkr_cm_refuse(id, data, data_len, what);
		vkr_stream_teardown(s);
		return;
	}
	s->deadline = vkr_now_ns() + ACCEPT_NS;
	vkr_stream_timer(s, s->deadline);
}

static bool is_stopped(struct vkr_listener *l)
{
	bool stopped;

	pthread_mutex_lock(&l->p.lock);
	stopped = l->stopped;
	pthread_mutex_unlock(&l->p.lock);
	return stopped;
}

/* As TCP has it: one more than the backlog. */
static bool backlog_full(struct vkr_listener *l)
{
	bool full;

	pthread_mutex_lock(&l->p.lock);
	full = l->n_waiting + l->n_handshaking > l->backlog;
	pthread_mutex_unlock(&l->p.lock);
	return full;
}

static void held_free(struct vkr_held *h)
{
	DL_DELETE(h->listener->held, h);
	h->listener->n_held--;
	free(h);
}

void vkr_cm_held_gone(struct vkr_cm_owner *owner)
{
	struct vkr_held *h = vkr_container_of(owner, struct vkr_held, owner);
	struct rdma_cm_id *id = h->id;

	held_free(h);
	vkr_verbs.rdma_destroy_id(id);
}

/* Room has come up: the oldest requests first. A client that gave up meanwhile shows in an event, or never establishes
 * and falls to the timer. */
static void held_serve(struct vkr_listener *l)
{
	while (l->held && !backlog_full(l)) {
		struct vkr_held h = *l->held;

		held_free(l->held);
		request_serve(l, h.id, h.data, h.data_len);
	}
}

void vkr_cm_request(struct vkr_listener *l, const struct vkr_cm_event *e)
{
	struct vkr_held *h;

	if (is_stopped(l)) {
		vkr_cm_refuse(e->id, e->data, e->data_len, "the listener was shut down");
		return;
	}
	if (!l->held && !backlog_full(l)) {
		request_serve(l, e->id, e->data, e->data_len);
		return;
	}
	h = l->n_held < HELD_MAX ? calloc(1, sizeof(*h)) : NULL;
	if (!h) {
		vkr_cm_refuse(e->id, e->data, e->data_len, "too many requests wait to be accepted");
		return;
	}
	h->owner.kind = VKR_OWNER_HELD;
	h->listener = l;
	h->id = e->id;
	h->id->context = &h->owner;
	h->data_len = vkr_min(e->data_len, sizeof(h->data));
	memcpy(h->data, e->data, h->data_len);
	DL_APPEND(l->held, h);
	l->n_held++;
	held_serve(l); /* accept may have made room meanwhile */
}

/* Lock held. */
static void wait_begin(struct vkr_listener *l, struct vkr_stream *s)
{
	DL_APPEND2(l->waiting, s, wait_prev, wait_next);
	l->n_waiting++;
	vkr_pollable_set(&l->p, EPOLLIN, EPOLLIN);
	if (l->stopped)
		vkr_task_queue(&l->task);
}

void vkr_cm_established(struct vkr_stream *s)
{
	struct vkr_listener *l = s->listener;

	if (s->phase != VKR_PH_ACCEPTED)
		return;
	vkr_timer_cancel(&s->timer);
	vkr_cm_native_ring(s);
	s->held = true;
	vkr_cm_forget(s);
	vkr_stream_opened(s);
	pthread_mutex_lock(&l->p.lock);
	wait_begin(l, s);
	pthread_mutex_unlock(&l->p.lock);
}

void vkr_cm_forget(struct vkr_stream *s)
{
	struct vkr_listener *l = s->listener;

	if (!l)
		return;
	s->listener = NULL;
	l->n_handshaking--;
	if (l->held)
		vkr_task_queue(&l->task);
}

/* ------------------------------------------------------------------ kept queue pairs */

struct vkr_listener *vkr_listener_find(uint32_t serial)
{
	struct vkr_listener *l;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_listeners, l)
		if (l->serial == serial)
			break;
	pthread_mutex_unlock(&vkr_registry_lock);
	return l;
}

bool vkr_listener_keeps(struct vkr_listener *l)
{
	bool keeps;

	pthread_mutex_lock(&l->p.lock);
	keeps = !l->stopped && !l->closing && l->n_kept < vkr_min(l->backlog / KEPT_OF_BACKLOG, KEPT_MAX);
	l->n_kept += keeps;
	pthread_mutex_unlock(&l->p.lock);
	return keeps;
}

void vkr_listener_kept_leaves(struct vkr_stream *s, bool opened)
{
	struct vkr_listener *l = s->listener;

	pthread_mutex_lock(&l->p.lock);
	l->n_kept--;
	if (opened)
		wait_begin(l, s);
	pthread_mutex_unlock(&l->p.lock);
	/* Last: as long as it stands there, the listener is not freed. */
	s->listener = NULL;
}

/* ------------------------------------------------------------------ listeners */

/* Who is to come: in its handshake, or kept for another one. */
static struct vkr_stream *expected(const struct vkr_listener *l, bool kept_only)
{
	struct vkr_stream *s, *found = NULL;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_registry, s) {
		if (s->listener == l && (!kept_only || s->phase == VKR_PH_KEPT)) {
			found = s;
			break;
		}
	}
	pthread_mutex_unlock(&vkr_registry_lock);
	return found;
}

static void id_end(struct vkr_listener *l)
{
	if (l->id)
		vkr_verbs.rdma_destroy_id(l->id);
	l->id = NULL;
}

static void refuse_held(struct vkr_listener *l, const char *why)
{
	while (l->held) {
		struct vkr_held h = *l->held;

		held_free(l->held);
		vkr_cm_refuse(h.id, h.data, h.data_len, why);
	}
}

/* Handshakes under way have nobody to go to. */
static void refuse_all(struct vkr_listener *l, const char *why)
{
	struct vkr_stream *s;

	refuse_held(l, why);
	while ((s = expected(l, false))) {
		if (s->phase == VKR_PH_KEPT || s->phase == VKR_PH_OPEN)
			take_back(s);
		else
			vkr_stream_teardown(s);
	}
}

static void listener_end(struct vkr_listener *l)
{
	id_end(l);
	refuse_all(l, "the listener was closed");
	vkr_task_cancel(&l->task);
	pthread_mutex_lock(&vkr_registry_lock);
	DL_DELETE(vkr_listeners, l);
	pthread_mutex_unlock(&vkr_registry_lock);
	pthread_mutex_lock(&l->p.lock);
	l->closed = true;
	pthread_cond_signal(&l->closed_cond);
	pthread_mutex_unlock(&l->p.lock);
}

static void reset_waiting(struct vkr_listener *l)
{
	struct vkr_stream *s;
	void *ticket;

	while ((s = vkr_listener_accept(l, &ticket))) {
		if (ticket)
			l->admission.dismiss(ticket);
		vkr_stream_close(s, 0);
	}
}

/* Who is being let in just now is told the same as those who wait, when its handshake has ended. */
static void stopped(struct vkr_listener *l)
{
	struct vkr_stream *s;

	refuse_held(l, "the listener was shut down");
	while ((s = expected(l, true)))
		take_back(s);
	reset_waiting(l);
}

static void listener_task(struct vkr_task *task)
{
	struct vkr_listener *l = vkr_container_of(task, struct vkr_listener, task);
	bool closing;

	pthread_mutex_lock(&l->p.lock);
	closing = l->closing;
	pthread_mutex_unlock(&l->p.lock);
	if (closing)
		listener_end(l);
	else if (is_stopped(l))
		stopped(l);
	else
		held_serve(l);
}

static const char *listen_reason(int err)
{
	switch (err) {
	case EADDRINUSE:
		return "another program has this RDMA port";
	case EADDRNOTAVAIL: /* one of the two is for any address, as loopback's are to the CM */
		return "no RDMA device has this address, or another listener has this RDMA port";
	case ENODEV:
		return "no RDMA device has this address";
	case EACCES:
	case EPERM:
		return "no permission for this RDMA port";
	default:
		return "the RDMA listener could not be made";
	}
}

static bool any_address(const struct sockaddr *sa)
{
	if (sa->sa_family == AF_INET6)
		return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)sa)->sin6_addr);
	return !((const struct sockaddr_in *)sa)->sin_addr.s_addr;
}

static int listener_open(struct vkr_listener *l)
{
	struct sockaddr *local = (struct sockaddr *)&l->local;
	int af_only = l->v6only, err = 0;

	errno = 0;
	if (vkr_cm_id_create(&l->id, &l->owner))
		return errno ? -errno : -ENOMEM;
	if (local->sa_family == AF_INET6)
		vkr_verbs.rdma_set_option(l->id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &af_only, sizeof(af_only));
	if (vkr_verbs.rdma_bind_addr(l->id, local))
		err = errno ? errno : EADDRNOTAVAIL;
	/*
	 * The kernel's CM takes loopback's addresses for any: it binds them, to no device, and would let in the whole
	 * network where the program asked for its own machine.
	 */
	else if (!l->id->verbs && !any_address(local))
		err = ENODEV;
	else if (vkr_verbs.rdma_listen(l->id, KERNEL_BACKLOG))
		err = errno ? errno : EADDRNOTAVAIL;
	if (err) {
		vkr_verbs.rdma_destroy_id(l->id);
		l->id = NULL;
	}
	return -err;
}

int vkr_listener_create(const struct sockaddr *local, bool v6only, int backlog, const char *rule,
			struct vkr_listener_stats *stats, const struct vkr_admission *admission,
			struct vkr_listener **out, const char **reason)
{
	static _Atomic uint32_t serial;
	struct vkr_listener *l;
	int ret, cancel;

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
	l->owner.kind = VKR_OWNER_LISTENER;
	l->epoch = vkr_epoch;
	l->serial = atomic_fetch_add(&serial, 1);
	l->family = local->sa_family;
	l->backlog = backlog_of(backlog);
	l->stats = stats;
	if (admission)
		l->admission = *admission;
	snprintf(l->rule, sizeof(l->rule), "%s", rule ? rule : "");
	l->v6only = v6only;
	vkr_cm_take_addr(&l->local, local, false);
	vkr_cm_unmap_v4(&l->local);
	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&vkr_registry_lock);
	ret = listener_open(l);
	if (!ret)
		DL_APPEND(vkr_listeners, l);
	pthread_mutex_unlock(&vkr_registry_lock);
	vkr_verbs_leave(cancel);
	if (ret) {
		*reason = listen_reason(-ret);
		free(l);
		return ret;
	}
	*out = l;
	return 0;
}

static void listener_says(struct vkr_listener *l, enum vkr_transport transport, const char *reason)
{
	char text[64];

	vkr_address_text((struct sockaddr *)&l->local, text, sizeof(text));
	vkr_info("listening on %s by %s (rule %s)%s%s", text,
		 transport == VKR_TRANSPORT_RDMA ? "RDMA and TCP" : "TCP only", l->rule, *reason ? ": " : "", reason);
	if (!l->stats)
		return;
	snprintf(l->stats->reason, sizeof(l->stats->reason), "%s", reason);
	/* Who sees the one has the other. */
	__atomic_store_n(&l->stats->transport, transport, __ATOMIC_RELEASE);
}

void vkr_listener_suspend(struct vkr_listener *l, const char *reason)
{
	id_end(l);
	refuse_held(l, reason);
	listener_says(l, VKR_TRANSPORT_TCP, reason);
}

bool vkr_listener_resume(struct vkr_listener *l)
{
	if (listener_open(l))
		return true;
	listener_says(l, VKR_TRANSPORT_RDMA, "");
	return false;
}

struct vkr_pollable *vkr_listener_pollable(struct vkr_listener *l)
{
	return &l->p;
}

void vkr_listener_backlog(struct vkr_listener *l, int backlog)
{
	pthread_mutex_lock(&l->p.lock);
	l->backlog = backlog_of(backlog);
	l->stopped = false;
	vkr_task_queue(&l->task);
	pthread_mutex_unlock(&l->p.lock);
}

struct vkr_stream *vkr_listener_accept(struct vkr_listener *l, void **ticket)
{
	struct vkr_stream *s;

	pthread_mutex_lock(&l->p.lock);
	s = l->waiting;
	if (s) {
		DL_DELETE2(l->waiting, s, wait_prev, wait_next);
		l->n_waiting--;
		*ticket = s->ticket;
		s->ticket = NULL;
		if (!l->waiting)
			vkr_pollable_set(&l->p, 0, 0);
		/* A request that is held just now looks for room itself, under this lock. */
		if (atomic_load(&l->n_held))
			vkr_task_queue(&l->task);
	}
	pthread_mutex_unlock(&l->p.lock);
	return s;
}

void vkr_listener_return(struct vkr_listener *l, struct vkr_stream *s, void *ticket)
{
	pthread_mutex_lock(&l->p.lock);
	s->ticket = ticket;
	DL_PREPEND2(l->waiting, s, wait_prev, wait_next);
	l->n_waiting++;
	vkr_pollable_set(&l->p, EPOLLIN, EPOLLIN);
	pthread_mutex_unlock(&l->p.lock);
}

void vkr_listener_each(struct vkr_listener *l, void (*fn)(void *ticket, void *arg), void *arg)
{
	struct vkr_stream *s;

	pthread_mutex_lock(&l->p.lock);
	DL_FOREACH2(l->waiting, s, wait_next)
	fn(s->ticket, arg);
	pthread_mutex_unlock(&l->p.lock);
}

void vkr_listener_stop(struct vkr_listener *l)
{
	int cancel;

	if (l->epoch != vkr_epoch)
		return;
	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&l->p.lock);
	l->stopped = true;
	pthread_mutex_unlock(&l->p.lock);
	vkr_task_now(&l->task);
	reset_waiting(l);
	vkr_verbs_leave(cancel);
}

void vkr_listener_close(struct vkr_listener *l)
{
	int cancel;

	/* A forked child's copy: the parent's port goes on. */
	if (l->epoch != vkr_epoch)
		return;
	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&l->p.lock);
	l->closing = true;
	vkr_task_queue(&l->task);
	/* Until the port is free: the program may listen on it again at once. */
	while (!l->closed)
		pthread_cond_wait(&l->closed_cond, &l->p.lock);
	pthread_mutex_unlock(&l->p.lock);
	reset_waiting(l);
	pthread_cond_destroy(&l->closed_cond);
	pthread_mutex_destroy(&l->p.lock);
	free(l);
	vkr_verbs_leave(cancel);
}

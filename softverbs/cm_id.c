/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ids, event channels, events.
 */
#include "cm.h"

struct cm_global cm = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define HANDLE_BITS 20

void sv_cm_reset(void)
{
	pthread_mutex_init(&cm.lock, NULL);
	cm.ids = NULL;
	cm.gens = NULL;
	cm.cap = cm.hint = 0;
	cm.listeners = NULL;
	memset(cm.by_remote, 0, sizeof(cm.by_remote));
	memset(cm.by_qpn, 0, sizeof(cm.by_qpn));
}

bool cm_ours(const struct rdma_cm_id *id)
{
	return sv_load(sv_load_acq(&sv_proc.pid)) == (uint32_t)cm_of(id)->pid;
}

/* ------------------------------------------------------------------ channels */

/* The queue's lock is held: whoever destroys the id purges the queue first and finds the count right. */
static void event_taken(struct sv_event *e)
{
	struct cm_event *ev = sv_container(e, struct cm_event, e);

	atomic_fetch_add(&ev->owner->got, 1);
	if (ev->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		atomic_fetch_sub(&ev->owner->waiting, 1);
}

SV_EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct cm_channel *c;
	int ret = sv_start();

	if (!ret && sv_fault_no_device())
		ret = ENODEV;
	if (ret) {
		errno = ret;
		return NULL;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	ret = sv_evq_init(&c->q, (_Atomic int *)&c->ch.fd);
	if (ret) {
		free(c);
		errno = ret;
		return NULL;
	}
	c->q.taken = event_taken;
	c->q.quiet = true;
	c->ch.fd = c->q.fd;
	c->pid = getpid();
	return &c->ch;
}

static struct cm_channel *chan_of(struct rdma_event_channel *ch)
{
	return sv_container(ch, struct cm_channel, ch);
}

int sv_cm_pending(struct rdma_event_channel *ch)
{
	return sv_evq_pending(&chan_of(ch)->q);
}

SV_EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *ch)
{
	struct cm_channel *c = chan_of(ch);

	if (sv_load(sv_load_acq(&sv_proc.pid)) == (uint32_t)c->pid)
		sv_evq_fini(&c->q);
	free(c);
}

/* ------------------------------------------------------------------ handles */

static int table_grow(void)
{
	uint32_t cap = cm.cap ? cm.cap * 2 : 256;
	struct cm_id **ids;
	uint16_t *gens;

	if (cap > 1u << HANDLE_BITS)
		return ENOMEM;
	ids = realloc(cm.ids, cap * sizeof(*ids));
	if (!ids)
		return ENOMEM;
	cm.ids = ids;
	gens = realloc(cm.gens, cap * sizeof(*gens));
	if (!gens)
		return ENOMEM;
	cm.gens = gens;
	memset(cm.ids + cm.cap, 0, (cap - cm.cap) * sizeof(*ids));
	memset(cm.gens + cm.cap, 0, (cap - cm.cap) * sizeof(*gens));
	cm.hint = cm.cap;
	cm.cap = cap;
	return 0;
}

static int handle_take(struct cm_id *id)
{
	for (;;) {
		for (uint32_t n = 0; n < cm.cap; n++) {
			uint32_t i = (cm.hint + n) % cm.cap;

			if (cm.ids[i])
				continue;
			cm.ids[i] = id;
			cm.hint = i + 1;
			cm.gens[i] = (uint16_t)((cm.gens[i] + 1) & 0xfff);
			id->handle = (uint32_t)cm.gens[i] << HANDLE_BITS | i;
			return 0;
		}
		if (table_grow())
			return ENOMEM;
	}
}

struct cm_id *cm_id_find(uint32_t handle)
{
	uint32_t i = handle & ((1u << HANDLE_BITS) - 1);

	return i < cm.cap && cm.ids[i] && cm.ids[i]->handle == handle ? cm.ids[i] : NULL;
}

static void unfile(struct cm_id *id)
{
	struct cm_id **pp;

	if (!id->filed)
		return;
	id->filed = false;
	for (pp = &cm.by_remote[id->remote % CM_TABLE]; *pp != id; pp = &(*pp)->next_remote)
		;
	*pp = id->next_remote;
	for (pp = &cm.by_qpn[id->remote_qpn % CM_TABLE]; *pp != id; pp = &(*pp)->next_qpn)
		;
	*pp = id->next_qpn;
}

void cm_id_file(struct cm_id *id, uint32_t remote, uint32_t qpn)
{
	unfile(id);
	id->remote = remote;
	id->remote_qpn = qpn;
	id->next_remote = cm.by_remote[remote % CM_TABLE];
	cm.by_remote[remote % CM_TABLE] = id;
	id->next_qpn = cm.by_qpn[qpn % CM_TABLE];
	cm.by_qpn[qpn % CM_TABLE] = id;
	id->filed = true;
}

/* ------------------------------------------------------------------ ids */

static void timer_fired(struct sv_timer *t)
{
	struct cm_id *id = sv_container(t, struct cm_id, timer);

	pthread_mutex_lock(&cm.lock);
	if (!id->gone) {
		switch (id->state) {
		case CM_REQ_SENT:
		case CM_REP_SENT:
			id->state = CM_CLOSED;
			cm_raise(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT, NULL, 0);
			break;
		case CM_DREQ_SENT:
			cm_raise(id, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT, NULL, 0);
			cm_timewait(id);
			break;
		case CM_CLOSED:
			cm_raise(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0, NULL, 0);
			break;
		default:
			break;
		}
	}
	pthread_mutex_unlock(&cm.lock);
}

struct cm_id *cm_id_new(struct rdma_event_channel *ch, void *context, enum rdma_port_space ps)
{
	struct cm_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->id.channel = ch;
	id->id.context = context;
	id->id.ps = ps;
	id->id.qp_type = IBV_QPT_RC;
	id->pid = getpid();
	id->timer.fn = timer_fired;
	pthread_cond_init(&id->cond, NULL);
	if (handle_take(id)) {
		free(id);
		errno = ENOMEM;
		return NULL;
	}
	return id;
}

void cm_id_free(struct cm_id *id)
{
	id->gone = true;
	cm.ids[id->handle & ((1u << HANDLE_BITS) - 1)] = NULL;
	unfile(id);
	sv_timer_cancel(&id->timer);
	cm_names_drop(id);
	if (id->peer)
		sv_peer_put(id->peer);
	id->peer = NULL;
	free(id->unanswered);
	id->unanswered = NULL;
	/* The thread may be about to run its timer. */
	sv_retire(id);
}

int cm_id_device(struct cm_id *id)
{
	struct sv_ctx *c;

	if (id->id.verbs)
		return 0;
	id->id.verbs = sv_ctx_open();
	if (!id->id.verbs)
		return errno;
	c = sv_container(id->id.verbs, struct sv_ctx, v.context);
	if (!c->cm_pd)
		c->cm_pd = ibv_alloc_pd(id->id.verbs);
	if (!c->cm_pd)
		return ENOMEM;
	id->id.pd = c->cm_pd;
	id->id.port_num = 1;
	return 0;
}

static int id_create(struct rdma_event_channel *ch, struct rdma_cm_id **out, void *context, enum rdma_port_space ps,
		     enum ibv_qp_type type)
{
	struct rdma_event_channel *own = NULL;
	struct cm_id *id;
	int ret = sv_start();

	if (ret)
		return cm_err(ret);
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_IB && ps != RDMA_PS_UDP && ps != RDMA_PS_IPOIB)
		return cm_err(EINVAL);
	if (type != IBV_QPT_RC)
		return cm_err(EOPNOTSUPP);
	if (!ch) {
		ch = own = rdma_create_event_channel();
		if (!ch)
			return -1;
	}
	pthread_mutex_lock(&cm.lock);
	id = cm_id_new(ch, context, ps);
	if (id) {
		id->sync = id->own_channel = own != NULL;
		*out = &id->id;
	}
	pthread_mutex_unlock(&cm.lock);
	if (!id && own)
		rdma_destroy_event_channel(own);
	return id ? 0 : -1;
}

SV_EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context,
			     enum rdma_port_space ps)
{
	return id_create(channel, id, context, ps, ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC);
}

/* ------------------------------------------------------------------ events */

static void event_push(struct cm_id *id, struct cm_event *ev)
{
	sv_evq_push(&chan_of(id->id.channel)->q, &ev->e);
}

static void fill_conn(struct cm_event *ev, const struct sv_msg *m, size_t priv)
{
	struct rdma_conn_param *c = &ev->ev.param.conn;

	/* Seen from this side the two read depths change places. */
	c->responder_resources = m->init_depth;
	c->initiator_depth = m->resp_res;
	c->flow_control = m->flow;
	c->retry_count = m->retry;
	c->rnr_retry_count = m->rnr;
	c->srq = m->srq;
	c->qp_num = m->qpn;
	/* The wire's field has a fixed size: what the sender left out arrives as zeros. */
	memcpy(ev->priv, m->priv, sv_min((size_t)m->priv_len, sv_min(priv, sizeof(m->priv))));
	c->private_data = priv ? ev->priv : NULL;
	c->private_data_len = (uint8_t)priv;
}

void cm_raise(struct cm_id *id, enum rdma_cm_event_type type, int status, const struct sv_msg *m, size_t priv)
{
	struct cm_event *ev = calloc(1, sizeof(*ev));

	if (!ev)
		return;
	ev->ev.id = &id->id;
	ev->ev.event = type;
	ev->ev.status = status;
	ev->owner = id;
	if (m)
		fill_conn(ev, m, priv);
	event_push(id, ev);
}

void cm_raise_request(struct cm_id *listener, struct cm_id *fresh, const struct sv_msg *m)
{
	struct cm_event *ev = calloc(1, sizeof(*ev));

	if (!ev)
		return;
	ev->ev.id = &fresh->id;
	ev->ev.listen_id = &listener->id;
	ev->ev.event = RDMA_CM_EVENT_CONNECT_REQUEST;
	ev->owner = listener;
	fill_conn(ev, m, CM_PRIV_REQ);
	listener->waiting++;
	event_push(listener, ev);
}

void sv_cm_removal(void)
{
	pthread_mutex_lock(&cm.lock);
	for (uint32_t i = 0; i < cm.cap; i++)
		if (cm.ids[i] && !cm.ids[i]->gone && cm.ids[i]->id.verbs)
			cm_raise(cm.ids[i], RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0);
	pthread_mutex_unlock(&cm.lock);
}

/* What librdmacm does for an id whose QP it manages, in the caller's thread. */
static void event_finish(struct cm_event *ev)
{
	struct cm_id *id = cm_of(ev->ev.id);

	switch (ev->ev.event) {
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
		if (!id->id.qp)
			return;
		if (cm_qp_connected(id)) {
			ev->ev.event = RDMA_CM_EVENT_CONNECT_ERROR;
			ev->ev.status = -errno;
			pthread_mutex_lock(&cm.lock);
			cm_send(id, SV_M_REJ, CM_REJ_CONSUMER, NULL);
			id->state = CM_CLOSED;
			pthread_mutex_unlock(&cm.lock);
			return;
		}
		pthread_mutex_lock(&cm.lock);
		if (id->state == CM_REP_RCVD) {
			id->state = CM_ESTABLISHED;
			cm_send(id, SV_M_RTU, 0, NULL);
		}
		pthread_mutex_unlock(&cm.lock);
		ev->ev.event = RDMA_CM_EVENT_ESTABLISHED;
		break;
	case RDMA_CM_EVENT_REJECTED:
		cm_qp_err(id);
		break;
	default:
		break;
	}
}

SV_EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct cm_channel *c = chan_of(channel);
	struct cm_event *ev;
	struct sv_event *e;

	if (!event || sv_load(sv_load_acq(&sv_proc.pid)) != (uint32_t)c->pid)
		return cm_err(EINVAL);
	e = sv_evq_get(&c->q);
	if (!e)
		return -1;
	ev = sv_container(e, struct cm_event, e);
	event_finish(ev);
	*event = &ev->ev;
	return 0;
}

SV_EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	struct cm_event *ev;

	if (!event)
		return cm_err(EINVAL);
	ev = sv_container(event, struct cm_event, ev);
	pthread_mutex_lock(&cm.lock);
	ev->owner->acked++;
	pthread_cond_broadcast(&ev->owner->cond);
	pthread_mutex_unlock(&cm.lock);
	free(ev);
	return 0;
}

int cm_complete(struct cm_id *id)
{
	struct rdma_cm_id *r = &id->id;
	int ret;

	if (!id->sync)
		return 0;
	if (r->event) {
		rdma_ack_cm_event(r->event);
		r->event = NULL;
	}
	ret = rdma_get_cm_event(r->channel, &r->event);
	if (ret)
		return ret;
	if (!r->event->status)
		return 0;
	if (r->event->event == RDMA_CM_EVENT_REJECTED)
		return cm_err(ECONNREFUSED);
	return cm_err(r->event->status < 0 ? -r->event->status : r->event->status);
}

/* ------------------------------------------------------------------ destruction and migration */

static bool event_of(struct sv_event *e, void *arg)
{
	return sv_container(e, struct cm_event, e)->owner == arg;
}

static void event_drop(struct sv_event *e);

static void request_drop(struct cm_id *id)
{
	sv_evq_purge(&chan_of(id->id.channel)->q, event_of, id, event_drop);
	cm_send(id, SV_M_REJ, CM_REJ_CONSUMER, NULL);
	cm_id_free(id);
}

/* cm.lock held. A request that nobody has got: its id was never the program's. */
static void event_drop(struct sv_event *e)
{
	struct cm_event *ev = sv_container(e, struct cm_event, e);

	if (ev->ev.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		request_drop(cm_of(ev->ev.id));
	free(ev);
}

SV_EXPORT int rdma_destroy_id(struct rdma_cm_id *rid)
{
	struct cm_id *id = cm_of(rid), **pp;
	struct rdma_event_channel *own = id->own_channel ? rid->channel : NULL;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	if (rid->event) {
		rdma_ack_cm_event(rid->event);
		rid->event = NULL;
	}
	pthread_mutex_lock(&cm.lock);
	for (pp = &cm.listeners; *pp; pp = &(*pp)->next_listener) {
		if (*pp == id) {
			*pp = id->next_listener;
			break;
		}
	}
	cm_names_drop(id);
	cm_disconnect_gone(id);
	id->state = CM_CLOSED;
	id->gone = true;
	sv_evq_purge(&chan_of(rid->channel)->q, event_of, id, event_drop);
	while (id->got != id->acked)
		pthread_cond_wait(&id->cond, &cm.lock);
	cm_id_free(id);
	pthread_mutex_unlock(&cm.lock);
	if (own)
		rdma_destroy_event_channel(own);
	return 0;
}

static struct sv_evq *migrate_to;

static void event_move(struct sv_event *e)
{
	sv_evq_push(migrate_to, e);
}

SV_EXPORT int rdma_migrate_id(struct rdma_cm_id *rid, struct rdma_event_channel *channel)
{
	struct cm_id *id = cm_of(rid);
	struct rdma_event_channel *own = id->own_channel ? rid->channel : NULL;
	bool sync = !channel;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	if (id->sync && !channel)
		return cm_err(EINVAL);
	if (!channel) {
		channel = rdma_create_event_channel();
		if (!channel)
			return -1;
	}
	pthread_mutex_lock(&cm.lock);
	/* Events of this id move in order; those that were got stay with who got them until acknowledged. */
	migrate_to = &chan_of(channel)->q;
	sv_evq_purge(&chan_of(rid->channel)->q, event_of, id, event_move);
	rid->channel = channel;
	id->sync = id->own_channel = sync;
	while (id->got != id->acked && !(rid->event && id->got == id->acked + 1))
		pthread_cond_wait(&id->cond, &cm.lock);
	pthread_mutex_unlock(&cm.lock);
	if (own) {
		if (rid->event) {
			rdma_ack_cm_event(rid->event);
			rid->event = NULL;
		}
		rdma_destroy_event_channel(own);
	}
	return 0;
}

SV_EXPORT const char *rdma_event_str(enum rdma_cm_event_type event)
{
	static const char *const n[] = {
	    "RDMA_CM_EVENT_ADDR_RESOLVED",  "RDMA_CM_EVENT_ADDR_ERROR",      "RDMA_CM_EVENT_ROUTE_RESOLVED",
	    "RDMA_CM_EVENT_ROUTE_ERROR",    "RDMA_CM_EVENT_CONNECT_REQUEST", "RDMA_CM_EVENT_CONNECT_RESPONSE",
	    "RDMA_CM_EVENT_CONNECT_ERROR",  "RDMA_CM_EVENT_UNREACHABLE",     "RDMA_CM_EVENT_REJECTED",
	    "RDMA_CM_EVENT_ESTABLISHED",    "RDMA_CM_EVENT_DISCONNECTED",    "RDMA_CM_EVENT_DEVICE_REMOVAL",
	    "RDMA_CM_EVENT_MULTICAST_JOIN", "RDMA_CM_EVENT_MULTICAST_ERROR", "RDMA_CM_EVENT_ADDR_CHANGE",
	    "RDMA_CM_EVENT_TIMEWAIT_EXIT",
	};

	return (size_t)event < sizeof(n) / sizeof(n[0]) ? n[event] : "UNKNOWN EVENT";
}

SV_EXPORT struct ibv_context **rdma_get_devices(int *num)
{
	struct ibv_context **list = calloc(2, sizeof(*list));

	if (num)
		*num = 0;
	if (!list)
		return NULL;
	list[0] = sv_ctx_open();
	if (!list[0]) {
		free(list);
		return NULL;
	}
	if (num)
		*num = 1;
	return list;
}

SV_EXPORT void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connecting: what the program asks for, and what peers say.
 */
#include "cm.h"

#define MS 1000000ull

int cm_send(struct cm_id *id, uint32_t type, uint32_t status, const struct rdma_conn_param *p)
{
	struct sv_msg m;

	if (!id->peer)
		return ENOTCONN;
	memset(&m, 0, sizeof(m));
	m.type = type;
	m.a = id->remote;
	m.b = id->handle;
	m.status = status;
	m.qpn = id->local_qpn;
	m.resp_res = id->resp_res;
	m.init_depth = id->init_depth;
	m.retry = id->retry;
	m.rnr = p ? p->rnr_retry_count & 7 : 7;
	m.ps = (uint8_t)(id->id.ps & 0xff);
	m.src = id->id.route.addr.src_storage;
	m.dst = id->id.route.addr.dst_storage;
	if (p) {
		m.flow = p->flow_control;
		m.srq = p->srq;
		if (p->private_data && p->private_data_len) {
			m.priv_len = p->private_data_len;
			memcpy(m.priv, p->private_data, sv_min((size_t)p->private_data_len, sizeof(m.priv)));
		}
	}
	if (type == SV_M_REQ || type == SV_M_REP || type == SV_M_DREQ) {
		if (!id->unanswered)
			id->unanswered = malloc(sizeof(m));
		if (id->unanswered)
			*id->unanswered = m;
	}
	return sv_peer_send(id->peer, &m, NULL, 0);
}

static int param_check(const struct rdma_cm_id *rid, const struct rdma_conn_param *p, size_t most)
{
	if (!p)
		return rid->qp ? 0 : EINVAL;
	if (p->responder_resources != RDMA_MAX_RESP_RES && p->responder_resources > CM_RD_ATOM)
		return EINVAL;
	if (p->initiator_depth != RDMA_MAX_INIT_DEPTH && p->initiator_depth > CM_RD_ATOM)
		return EINVAL;
	return p->private_data_len > most ? EINVAL : 0;
}

static void param_take(struct cm_id *id, const struct rdma_conn_param *p, bool connecting)
{
	uint8_t def = connecting ? CM_RD_ATOM : 0;

	id->local_qpn = id->id.qp ? id->id.qp->qp_num : (p ? p->qp_num : 0);
	if (!p && !connecting)
		return; /* as the request said */
	id->resp_res = p ? p->responder_resources : def;
	id->init_depth = p ? p->initiator_depth : def;
	if (id->resp_res == RDMA_MAX_RESP_RES)
		id->resp_res = CM_RD_ATOM;
	if (id->init_depth == RDMA_MAX_INIT_DEPTH)
		id->init_depth = CM_RD_ATOM;
	if (connecting)
		id->retry = p ? p->retry_count & 7 : 7;
}

/* ------------------------------------------------------------------ the QP */

SV_EXPORT int rdma_init_qp_attr(struct rdma_cm_id *rid, struct ibv_qp_attr *a, int *mask)
{
	struct cm_id *id = cm_of(rid);
	enum ibv_qp_state state = a->qp_state;
	bool connecting;
	int err = 0;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	memset(a, 0, sizeof(*a));
	a->qp_state = state;
	pthread_mutex_lock(&cm.lock);
	connecting = id->state >= CM_REQ_SENT && id->state < CM_CLOSED;
	switch (state) {
	case IBV_QPS_INIT:
		*mask = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		if (connecting) {
			a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
			if (id->resp_res)
				a->qp_access_flags |= IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		}
		a->port_num = 1;
		break;
	case IBV_QPS_RTR:
		*mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		a->ah_attr.is_global = 1;
		a->ah_attr.grh.dgid = rid->route.addr.addr.ibaddr.dgid;
		a->ah_attr.grh.hop_limit = 64;
		a->ah_attr.grh.traffic_class = id->tos;
		a->ah_attr.port_num = 1;
		a->path_mtu = IBV_MTU_4096;
		a->dest_qp_num = id->remote_qpn;
		a->rq_psn = id->remote_qpn & 0xffffff;
		a->max_dest_rd_atomic = id->resp_res;
		break;
	case IBV_QPS_RTS:
		*mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC;
		a->timeout = id->ack_timeout_set ? id->ack_timeout & 31 : CM_DEF_TIMEOUT;
		a->retry_cnt = id->retry;
		a->rnr_retry = id->rnr;
		a->sq_psn = id->local_qpn & 0xffffff;
		a->max_rd_atomic = id->init_depth;
		break;
	default:
		err = EINVAL;
		break;
	}
	if (!err && state != IBV_QPS_INIT && (!connecting || id->state == CM_REQ_SENT))
		err = EINVAL;
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}

static int qp_to(struct cm_id *id, enum ibv_qp_state state)
{
	struct ibv_qp_attr a;
	int mask, ret;

	a.qp_state = state;
	ret = rdma_init_qp_attr(&id->id, &a, &mask);
	if (ret)
		return ret;
	return cm_err(ibv_modify_qp(id->id.qp, &a, mask));
}

int cm_qp_connected(struct cm_id *id)
{
	/* INIT again: only now are the access rights known. */
	if (qp_to(id, IBV_QPS_INIT) || qp_to(id, IBV_QPS_RTR))
		return -1;
	return qp_to(id, IBV_QPS_RTS);
}

int cm_qp_err(struct cm_id *id)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};

	return id->id.qp ? ibv_modify_qp(id->id.qp, &a, IBV_QP_STATE) : 0;
}

static int own_cqs(struct rdma_cm_id *rid, struct ibv_qp_init_attr_ex *a)
{
	if (!a->recv_cq) {
		rid->recv_cq_channel = ibv_create_comp_channel(rid->verbs);
		if (!rid->recv_cq_channel)
			return errno;
		rid->recv_cq =
		    ibv_create_cq(rid->verbs, (int)sv_max(a->cap.max_recv_wr, 1u), rid, rid->recv_cq_channel, 0);
		if (!rid->recv_cq)
			return errno;
		a->recv_cq = rid->recv_cq;
	}
	if (!a->send_cq) {
		rid->send_cq_channel = ibv_create_comp_channel(rid->verbs);
		if (!rid->send_cq_channel)
			return errno;
		rid->send_cq =
		    ibv_create_cq(rid->verbs, (int)sv_max(a->cap.max_send_wr, 1u), rid, rid->send_cq_channel, 0);
		if (!rid->send_cq)
			return errno;
		a->send_cq = rid->send_cq;
	}
	return 0;
}

static void own_cqs_drop(struct rdma_cm_id *rid)
{
	if (rid->recv_cq) {
		ibv_destroy_cq(rid->recv_cq);
		ibv_destroy_comp_channel(rid->recv_cq_channel);
	}
	if (rid->send_cq) {
		ibv_destroy_cq(rid->send_cq);
		ibv_destroy_comp_channel(rid->send_cq_channel);
	}
	rid->recv_cq = rid->send_cq = NULL;
	rid->recv_cq_channel = rid->send_cq_channel = NULL;
}

SV_EXPORT int rdma_create_qp_ex(struct rdma_cm_id *rid, struct ibv_qp_init_attr_ex *a)
{
	struct cm_id *id = cm_of(rid);
	int err;

	if (!cm_ours(rid) || rid->qp || !rid->verbs)
		return cm_err(EINVAL);
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD)) {
		a->comp_mask |= IBV_QP_INIT_ATTR_PD;
		a->pd = rid->pd;
	} else if (a->pd->context != rid->verbs) {
		return cm_err(EINVAL);
	}
	err = own_cqs(rid, a);
	if (err)
		goto fail;
	rid->qp = sv_qp_create(rid->verbs, a);
	if (!rid->qp) {
		err = errno;
		goto fail;
	}
	if (qp_to(id, IBV_QPS_INIT)) {
		err = errno;
		ibv_destroy_qp(rid->qp);
		rid->qp = NULL;
		goto fail;
	}
	rid->pd = a->pd;
	return 0;
fail:
	own_cqs_drop(rid);
	return cm_err(err);
}

SV_EXPORT int rdma_create_qp(struct rdma_cm_id *rid, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex;
	int ret;

	memset(&ex, 0, sizeof(ex));
	memcpy(&ex, attr, sizeof(*attr));
	ex.comp_mask = IBV_QP_INIT_ATTR_PD;
	ex.pd = pd ? pd : rid->pd;
	ret = rdma_create_qp_ex(rid, &ex);
	if (!ret)
		memcpy(attr, &ex, sizeof(*attr));
	return ret;
}

SV_EXPORT void rdma_destroy_qp(struct rdma_cm_id *rid)
{
	if (!rid->qp)
		return;
	ibv_destroy_qp(rid->qp);
	rid->qp = NULL;
	own_cqs_drop(rid);
}

/* ------------------------------------------------------------------ asking */

static void find_listener(struct cm_id *id, bool recall)
{
	if (id->peer)
		sv_peer_put(id->peer);
	id->peer = cm_find_listener(&id->id.route.addr.dst_addr, id->id.ps, recall, &id->peer_recalled);
}

static void connect_send(struct cm_id *id, const struct rdma_conn_param *p)
{
	unsigned ms;
	int err;

	find_listener(id, true);
	if (sv_fault_unreachable(&ms)) {
		sv_timer_set(&id->timer, sv_now() + ms * MS);
		return;
	}
	err = id->peer ? cm_send(id, SV_M_REQ, 0, p) : 0;
	if (err && id->peer_recalled) {
		find_listener(id, false);
		err = id->peer ? cm_send(id, SV_M_REQ, 0, p) : 0;
	}
	if (!id->peer || err) {
		/* Nobody listens: the host's own CM answers for the port; and for a process that has just ended. */
		struct sv_msg m = {.type = SV_M_REJ};

		id->state = CM_CLOSED;
		cm_raise(id, RDMA_CM_EVENT_REJECTED, id->peer ? CM_REJ_CONSUMER : CM_REJ_NO_SERVICE, &m, CM_PRIV_REJ);
		return;
	}
	sv_timer_set(&id->timer, sv_now() + 64000 * MS);
}

/* The listener is not where it was last time. True: it has been asked where it is now. */
static bool ask_elsewhere(struct cm_id *id)
{
	if (!id->peer_recalled || id->state != CM_REQ_SENT || !id->unanswered)
		return false;
	find_listener(id, false);
	return id->peer && !sv_peer_send(id->peer, id->unanswered, NULL, 0);
}

SV_EXPORT int rdma_connect(struct rdma_cm_id *rid, struct rdma_conn_param *p)
{
	struct cm_id *id = cm_of(rid);
	int err;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	err = param_check(rid, p, CM_PRIV_REQ);
	if (err)
		return cm_err(err);
	sv_fault_request();
	pthread_mutex_lock(&cm.lock);
	if (id->state != CM_ROUTE) {
		err = EINVAL;
	} else {
		param_take(id, p, true);
		id->state = CM_REQ_SENT;
		connect_send(id, p);
	}
	pthread_mutex_unlock(&cm.lock);
	return err ? cm_err(err) : cm_complete(id);
}

SV_EXPORT int rdma_establish(struct rdma_cm_id *rid)
{
	struct cm_id *id = cm_of(rid);
	int err = EINVAL;

	if (!cm_ours(rid) || rid->qp)
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_REP_RCVD) {
		id->state = CM_ESTABLISHED;
		err = cm_send(id, SV_M_RTU, 0, NULL);
	}
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}

SV_EXPORT int rdma_accept(struct rdma_cm_id *rid, struct rdma_conn_param *p)
{
	struct cm_id *id = cm_of(rid);
	int err;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	err = param_check(rid, p, CM_PRIV_REP);
	if (err)
		return cm_err(err);
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_REQ_RCVD)
		param_take(id, p, false);
	else
		err = EINVAL;
	pthread_mutex_unlock(&cm.lock);
	if (err)
		return cm_err(err);
	if (rid->qp && cm_qp_connected(id))
		return -1;
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_REQ_RCVD) {
		id->state = CM_REP_SENT;
		sv_timer_set(&id->timer, sv_now() + 64000 * MS);
		err = cm_send(id, SV_M_REP, 0, p);
	} else {
		err = EINVAL;
	}
	pthread_mutex_unlock(&cm.lock);
	if (err) {
		cm_qp_err(id);
		return cm_err(err);
	}
	return cm_complete(id);
}

SV_EXPORT int rdma_reject(struct rdma_cm_id *rid, const void *priv, uint8_t len)
{
	struct rdma_conn_param p = {.private_data = priv, .private_data_len = len};
	struct cm_id *id = cm_of(rid);
	int err = EINVAL;

	if (!cm_ours(rid) || len > CM_PRIV_REJ)
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	if (id->state == CM_REQ_RCVD || id->state == CM_REP_RCVD || id->state == CM_REP_SENT) {
		id->state = CM_CLOSED;
		sv_timer_cancel(&id->timer);
		cm_send(id, SV_M_REJ, CM_REJ_CONSUMER, &p);
		err = 0;
	}
	pthread_mutex_unlock(&cm.lock);
	return cm_err(err);
}

SV_EXPORT int rdma_reject_ece(struct rdma_cm_id *id, const void *priv, uint8_t len)
{
	return rdma_reject(id, priv, len);
}

void cm_timewait(struct cm_id *id)
{
	id->state = CM_CLOSED;
	sv_timer_set(&id->timer, sv_now() + 100 * MS);
}

SV_EXPORT int rdma_disconnect(struct rdma_cm_id *rid)
{
	struct cm_id *id = cm_of(rid);
	bool wait = false;
	int err = 0;

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	if (cm_qp_err(id))
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	switch (id->state) {
	case CM_ESTABLISHED:
	case CM_REP_SENT:
	case CM_REP_RCVD:
		id->state = CM_DREQ_SENT;
		wait = true;
		sv_timer_set(&id->timer, sv_now() + 5000 * MS);
		cm_send(id, SV_M_DREQ, 0, NULL);
		break;
	case CM_DREQ_RCVD:
		cm_send(id, SV_M_DREP, 0, NULL);
		cm_timewait(id);
		break;
	case CM_DREQ_SENT:
	case CM_CLOSED:
		break;
	default:
		err = EINVAL;
		break;
	}
	pthread_mutex_unlock(&cm.lock);
	if (err)
		return cm_err(err);
	return wait ? cm_complete(id) : 0;
}

/* The id is being destroyed: the peer hears what its state calls for. */
void cm_disconnect_gone(struct cm_id *id)
{
	switch (id->state) {
	case CM_ESTABLISHED:
	case CM_REP_RCVD:
		cm_send(id, SV_M_DREQ, 0, NULL);
		break;
	case CM_DREQ_RCVD:
		cm_send(id, SV_M_DREP, 0, NULL);
		break;
	case CM_REQ_SENT:
	case CM_REP_SENT:
		cm_send(id, SV_M_REJ, CM_REJ_TIMEOUT, NULL);
		break;
	case CM_REQ_RCVD:
		cm_send(id, SV_M_REJ, CM_REJ_CONSUMER, NULL);
		break;
	default:
		break;
	}
}

SV_EXPORT int rdma_notify(struct rdma_cm_id *rid, enum ibv_event_type event)
{
	struct cm_id *id = cm_of(rid);

	if (!cm_ours(rid))
		return cm_err(EINVAL);
	pthread_mutex_lock(&cm.lock);
	if (event == IBV_EVENT_COMM_EST && id->state == CM_REP_SENT) {
		id->state = CM_ESTABLISHED;
		sv_timer_cancel(&id->timer);
		cm_raise(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
	}
	pthread_mutex_unlock(&cm.lock);
	return 0;
}

/* ------------------------------------------------------------------ what peers say; cm.lock held, the thread */

static void answer(struct sv_peer *p, const struct sv_msg *to, uint32_t type, uint32_t status)
{
	struct sv_msg m;

	memset(&m, 0, sizeof(m));
	m.type = type;
	m.a = to->b;
	m.status = status;
	sv_peer_send(p, &m, NULL, 0);
}

static struct cm_id *listener_for(const struct sv_msg *m)
{
	struct cm_id *l, *any = NULL;

	for (l = cm.listeners; l; l = l->next_listener) {
		struct sockaddr *sa = &l->id.route.addr.src_addr;

		if ((l->id.ps & 0xff) == m->ps && cm_addr_match(sa, (const struct sockaddr *)&m->dst, l->afonly))
			any = l;
	}
	return any;
}

/* The peer's QP is, for all we know, in another connection that has not ended or not aged yet. */
static bool stale(struct sv_peer *p, uint32_t qpn)
{
	for (struct cm_id *id = qpn ? cm_first_qpn(qpn) : NULL; id; id = id->next_qpn) {
		if (id->gone || id->peer != p || id->remote_qpn != qpn)
			continue;
		if ((id->state >= CM_REQ_RCVD && id->state < CM_CLOSED) ||
		    (id->state == CM_CLOSED && sv_timer_armed(&id->timer)))
			return true;
	}
	return false;
}

static void send_again(struct cm_id *id)
{
	if (id->unanswered && (id->state == CM_REQ_SENT || id->state == CM_REP_SENT || id->state == CM_DREQ_SENT))
		sv_peer_send(id->peer, id->unanswered, NULL, 0);
}

/* A request that is known already: what was answered is answered again. */
static bool repeated(struct sv_peer *p, const struct sv_msg *m)
{
	for (struct cm_id *id = cm_first_remote(m->b); id; id = id->next_remote) {
		if (id->gone || id->peer != p || id->remote != m->b || id->state < CM_REQ_RCVD)
			continue;
		send_again(id);
		return true;
	}
	return false;
}

static void got_req(struct sv_peer *p, const struct sv_msg *m)
{
	struct cm_id *l = listener_for(m), *id;

	if (!l) {
		answer(p, m, SV_M_REJ, CM_REJ_NO_SERVICE);
		return;
	}
	if (repeated(p, m))
		return;
	if (stale(p, m->qpn) || sv_fault_stale()) {
		answer(p, m, SV_M_REJ, CM_REJ_STALE);
		return;
	}
	if (l->waiting >= l->backlog) {
		answer(p, m, SV_M_REJ, CM_REJ_CONSUMER);
		return;
	}
	id = cm_id_new(l->id.channel, l->id.context, l->id.ps);
	if (!id || cm_id_device(id)) {
		answer(p, m, SV_M_REJ, CM_REJ_CONSUMER);
		if (id)
			cm_id_free(id);
		return;
	}
	id->state = CM_REQ_RCVD;
	id->peer = p;
	sv_peer_get(p);
	cm_id_file(id, m->b, m->qpn);
	id->resp_res = m->init_depth;
	id->init_depth = m->resp_res;
	id->retry = m->retry;
	id->rnr = m->rnr;
	id->tos = l->tos;
	id->ack_timeout = l->ack_timeout;
	id->ack_timeout_set = l->ack_timeout_set;
	id->id.route.addr.src_storage = m->dst;
	id->id.route.addr.dst_storage = m->src;
	cm_fill_path(id);
	cm_raise_request(l, id, m);
}

static void got_rep(struct cm_id *id, const struct sv_msg *m)
{
	if (id->state == CM_ESTABLISHED && id->remote == m->b)
		cm_send(id, SV_M_RTU, 0, NULL); /* it was lost */
	if (id->state != CM_REQ_SENT)
		return;
	sv_timer_cancel(&id->timer);
	id->state = CM_REP_RCVD;
	cm_id_file(id, m->b, m->qpn);
	id->init_depth = m->resp_res;
	id->resp_res = m->init_depth;
	id->rnr = m->rnr;
	cm_raise(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, m, CM_PRIV_REP);
}

static void got_rej(struct cm_id *id, const struct sv_msg *m)
{
	if (m->status == CM_REJ_NO_SERVICE && ask_elsewhere(id))
		return;
	switch (id->state) {
	case CM_REQ_SENT:
	case CM_REQ_RCVD:
	case CM_REP_SENT:
	case CM_REP_RCVD:
	case CM_ESTABLISHED: /* the acceptor gave up before our RTU reached it */
		sv_timer_cancel(&id->timer);
		id->state = CM_CLOSED;
		cm_raise(id, RDMA_CM_EVENT_REJECTED, (int)m->status, m, CM_PRIV_REJ);
		break;
	default:
		break;
	}
}

static void got_dreq(struct cm_id *id)
{
	switch (id->state) {
	case CM_REP_SENT:
	case CM_REP_RCVD:
	case CM_ESTABLISHED:
		sv_timer_cancel(&id->timer);
		id->state = CM_DREQ_RCVD;
		cm_raise(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
		break;
	case CM_DREQ_SENT: /* both at once */
		cm_send(id, SV_M_DREP, 0, NULL);
		cm_raise(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
		cm_timewait(id);
		break;
	default:
		cm_send(id, SV_M_DREP, 0, NULL);
		break;
	}
}

/* A connector that gives up before our answer reached it does not know our handle. */
static struct cm_id *by_remote(struct sv_peer *p, uint32_t remote)
{
	struct cm_id *id = cm_first_remote(remote);

	while (id && (id->peer != p || id->remote != remote || id->state != CM_REQ_RCVD))
		id = id->next_remote;
	return id;
}

void sv_cm_message(struct sv_peer *p, const struct sv_msg *m)
{
	struct cm_id *id;

	pthread_mutex_lock(&cm.lock);
	if (m->type == SV_M_REQ) {
		got_req(p, m);
		goto out;
	}
	id = m->a ? cm_id_find(m->a) : by_remote(p, m->b);
	if (!id || id->gone || id->peer != p) {
		if (m->type == SV_M_DREQ)
			answer(p, m, SV_M_DREP, 0);
		else if (m->type == SV_M_REP)
			answer(p, m, SV_M_REJ, CM_REJ_TIMEOUT);
		goto out;
	}
	switch (m->type) {
	case SV_M_REP:
		got_rep(id, m);
		break;
	case SV_M_RTU:
		if (id->state == CM_REP_SENT && !sv_fault_no_rtu()) {
			sv_timer_cancel(&id->timer);
			id->state = CM_ESTABLISHED;
			cm_raise(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0);
		}
		break;
	case SV_M_REJ:
		got_rej(id, m);
		break;
	case SV_M_DREQ:
		got_dreq(id);
		break;
	case SV_M_DREP:
		if (id->state == CM_DREQ_SENT) {
			cm_raise(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
			cm_timewait(id);
		}
		break;
	default:
		break;
	}
out:
	pthread_mutex_unlock(&cm.lock);
}

/* The peer's kernel would have said these things for a process that died. */
void sv_cm_peer_lost(struct sv_peer *p)
{
	struct sv_msg m = {.type = SV_M_REJ, .status = CM_REJ_CONSUMER};

	pthread_mutex_lock(&cm.lock);
	for (uint32_t i = 0; i < cm.cap; i++) {
		struct cm_id *id = cm.ids[i];

		if (!id || id->gone || id->peer != p)
			continue;
		if (id->state == CM_DREQ_SENT) {
			cm_raise(id, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0);
			cm_timewait(id);
		} else if (id->state == CM_ESTABLISHED || id->state == CM_REP_RCVD) {
			got_dreq(id);
		} else {
			got_rej(id, &m);
		}
	}
	pthread_mutex_unlock(&cm.lock);
}

void sv_cm_peer_back(struct sv_peer *p)
{
	pthread_mutex_lock(&cm.lock);
	for (uint32_t i = 0; i < cm.cap; i++)
		if (cm.ids[i] && !cm.ids[i]->gone && (!p || cm.ids[i]->peer == p))
			send_again(cm.ids[i]);
	pthread_mutex_unlock(&cm.lock);
}

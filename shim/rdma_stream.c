/* SPDX-License-Identifier: BSD-2-Clause */
/* A stream's completions, its readiness, and the calls of rdma.h that are neither sending nor ending. */
#include "rdma_stream.h"

#include "config.h"
#include "log.h"
#include "socket.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

/* Control messages a peer may send with no data beside them: a burst, and a rate. A native server's keepalive is one in
 * three seconds. */
#define FLOOD_BURST      1024
#define FLOOD_PER_SECOND 200
#define ALL_OVER         (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP)

pthread_mutex_t vkr_registry_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t vkr_registry_cond = PTHREAD_COND_INITIALIZER;
struct vkr_stream *vkr_registry;
unsigned vkr_epoch = 1;

static _Atomic uint32_t next_generation = 1;

static void stream_complete(struct vkr_endpoint *ep, struct ibv_wc *const *wc, int n);
static void stream_async(struct vkr_endpoint *ep, enum ibv_event_type type);

/* ------------------------------------------------------------------ life */

static void copy_addr(struct sockaddr_storage *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof(*to));
	if (from)
		memcpy(to, from,
		       from->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
}

struct vkr_stream *vkr_stream_new(enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
				  const char *rule)
{
	struct vkr_stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	vkr_pollable_init(&s->p);
	s->ep.generation = atomic_fetch_add(&next_generation, 1);
	s->ep.complete = stream_complete;
	s->ep.async = stream_async;
	s->task.run = vkr_stream_step;
	s->role = role;
	s->epoch = vkr_epoch;
	s->ring_first = VKR_RING_FIRST;
	s->ring_limit = VKR_RING_MAX;
	s->tx.bound = VKR_NO_BOUND;
	s->tx.limit = VKR_STAGE_MAX;
	s->flood_tokens = FLOOD_BURST;
	copy_addr(&s->local, local);
	copy_addr(&s->peer, peer);
	s->stats = vkr_stats_conn_new(role, local, peer, rule);
	pthread_mutex_lock(&vkr_registry_lock);
	DL_APPEND(vkr_registry, s);
	pthread_mutex_unlock(&vkr_registry_lock);
	return s;
}

void vkr_stream_free(struct vkr_stream *s)
{
	pthread_mutex_lock(&vkr_registry_lock);
	DL_DELETE(vkr_registry, s);
	pthread_cond_broadcast(&vkr_registry_cond);
	pthread_mutex_unlock(&vkr_registry_lock);
	/* Not before: whoever walks the registry (an exit's flush) may have queued it. */
	vkr_task_cancel(&s->task);
	vkr_timer_cancel(&s->timer);
	if (s->ticket)
		s->dismiss(s->ticket);
	if (s->stats) {
		vkr_ring_destroy(s, &s->rx[0]);
		vkr_ring_destroy(s, &s->rx[1]);
		vkr_stats_conn_free(s->stats);
	}
	pthread_mutex_destroy(&s->p.lock);
	free(s);
}

/* ------------------------------------------------------------------ readiness */

uint32_t vkr_stream_mask(const struct vkr_stream *s)
{
	uint32_t m = s->handed_over ? VKR_EDGE_STATE : 0;

	if (vkr_load(&s->state) != VKR_STREAM_OPEN)
		return m;
	if (s->error)
		m |= EPOLLERR;
	if (s->reset)
		return m | ALL_OVER;
	if (s->peer_fin || s->rd_shut)
		m |= EPOLLIN | EPOLLRDHUP | (s->wr_shut ? EPOLLHUP : 0);
	if (s->inq)
		m |= EPOLLIN;
	if (!s->nospace || s->wr_shut || s->peer_closed)
		m |= EPOLLOUT;
	return m;
}

void vkr_stream_break(struct vkr_stream *s, int error)
{
	if (s->broken)
		return;
	s->broken = true;
	s->tx.ready = false;
	vkr_task_queue(&s->task);
	if (s->reset)
		return;
	s->reset = true;
	/* After the peer's orderly end an error of the dying QP is no news. */
	if (!s->peer_closed)
		s->error = error;
	vkr_stream_update(s, EPOLLERR | ALL_OVER);
}

/* tcp_reset(): in CLOSE_WAIT, and only there, it is a broken pipe. */
void vkr_stream_reset(struct vkr_stream *s)
{
	if (vkr_keep_taken_back(s))
		return;
	vkr_stream_break(s, s->peer_fin && !s->wr_shut ? EPIPE : ECONNRESET);
}

void vkr_stream_violation(struct vkr_stream *s, const char *fmt, ...)
{
	char what[128], who[64];
	va_list ap;

	if (s->broken)
		return;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	vkr_address_text((struct sockaddr *)&s->peer, who, sizeof(who));
	vkr_warn("connection with %s ended: the peer broke the protocol: %s", who, what);
	vkr_stream_break(s, ECONNRESET);
}

void vkr_stream_opened(struct vkr_stream *s)
{
	pthread_mutex_lock(&s->p.lock);
	s->phase = VKR_PH_OPEN;
	s->tx.ready = true;
	vkr_stats_conn_addrs(s->stats, (struct sockaddr *)&s->local, (struct sockaddr *)&s->peer);
	s->stats->peer_kind = (uint8_t)s->peer_kind;
	vkr_stats_conn_open(s->stats, VKR_TRANSPORT_RDMA, NULL);
	vkr_tx_push(s);
	vkr_store_rel(&s->state, VKR_STREAM_OPEN);
	vkr_stream_update(s, VKR_EDGE_STATE | EPOLLOUT | (s->inq ? EPOLLIN : 0));
	pthread_mutex_unlock(&s->p.lock);
	vkr_alive_watch(s);
}

void vkr_stream_ended(struct vkr_stream *s, uint32_t *edge)
{
	s->peer_fin = true;
	/* The kernel wakes everybody, who waits for OUT too. After a reset the end is no news. */
	if (!s->reset)
		*edge |= ALL_OVER;
}

void vkr_stream_disconnected(struct vkr_stream *s)
{
	/* What the peer wrote before it left is in the CQ by now, behind the event (T9). */
	if (s->qp)
		vkr_endpoint_drain(&s->ep);
	pthread_mutex_lock(&s->p.lock);
	if (!s->peer_closed) {
		/* After the peer's end or a reset, told before, only what it changes is news. */
		uint32_t known = s->peer_fin || s->reset ? vkr_load(&s->p.ready) : 0;

		s->peer_closed = true;
		s->tx.ready = false;
		s->tx.control = 0;
		if (!s->reset) {
			s->peer_fin = true;
			/* Bytes on their way to a socket that is gone: TCP's peer would have answered with a reset. */
			if (s->tx.put != s->tx.sent && !s->wr_shut) {
				s->error = EPIPE;
				s->reset = true;
			}
		}
		vkr_stream_update(s, (ALL_OVER | (s->error ? EPOLLERR : 0)) & ~known);
	}
	pthread_mutex_unlock(&s->p.lock);
}

/* ------------------------------------------------------------------ completions */

/* Data on a connection of which an end is over. */
static VKR_COLD void on_late_data(struct vkr_stream *s, uint32_t n, uint32_t *edge)
{
	bool tells = s->features & VKR_FEAT_FIN;

	if (s->peer_fin) {
		vkr_stream_violation(s, "data after the end of its stream");
		return;
	}
	vkr_count(&s->stats->bytes_in, n);
	if (s->rd_shut && s->wr_shut && tells && !s->app_closed) {
		/* TCP in FIN_WAIT with its reading shut down: both ends learn, once, that these bytes have no reader.
		 */
		if (!s->reset) {
			s->tx.control |= VKR_CTL_RESET;
			s->reset = true;
			s->error = ECONNRESET;
			*edge |= EPOLLERR | ALL_OVER;
		}
		s->rxc.total += n;
		return;
	}
	s->inq += n;
	if (!s->app_closed)
		*edge |= EPOLLIN;
	else if (tells)
		s->tx.control |= VKR_CTL_RESET; /* nobody will read it; TCP answers so */
	vkr_rx_arrived(s, n);
}

static inline void on_data(struct vkr_stream *s, uint32_t n, uint32_t *edge)
{
	if (s->flood_tokens < FLOOD_BURST)
		s->flood_tokens++;
	if (vkr_unlikely(s->unusual || s->app_closed)) {
		on_late_data(s, n, edge);
		return;
	}
	vkr_count(&s->stats->bytes_in, n);
	s->inq += n;
	*edge |= EPOLLIN;
	vkr_rx_arrived(s, n);
}

/* With credits, another type than data; or an error. */
static VKR_COLD void on_other_immediate(struct vkr_stream *s, uint32_t imm_be, uint32_t *edge)
{
	enum vkr_imm type = VKR_IMM_DATA;
	uint32_t value = 0;
	int ret = s->credits ? vkr_wire_imm_decode(imm_be, &type, &value) : -ERANGE;

	if (ret == -EPROTO)
		vkr_stream_violation(s, "an immediate 0x%x of no kind", ntohl(imm_be));
	else if (ret || type == VKR_IMM_DATA)
		vkr_stream_violation(s, "an immediate 0x%x where %u bytes fit", ntohl(imm_be), vkr_rx_room(s));
	else
		vkr_credit_imm(s, type, value, edge);
}

_Static_assert(VKR_RING_MAX <= VKR_IMM_VALUE, "an immediate that fits in a ring with credits has type VKR_IMM_DATA");

static inline void on_immediate(struct vkr_stream *s, const struct ibv_wc *wc, uint32_t *edge)
{
	uint32_t n;

	vkr_count(&s->stats->immediates_in, 1);
	if (vkr_likely(!vkr_wire_immediate(wc->imm_data, vkr_rx_room(s), &n)))
		on_data(s, n, edge);
	else
		on_other_immediate(s, wc->imm_data, edge);
}

bool vkr_stream_flood(struct vkr_stream *s)
{
	int64_t now, earned;

	if (--s->flood_tokens > 0)
		return false;
	now = vkr_now_ns();
	earned = s->flood_ns ? (now - s->flood_ns) / (1000000000 / FLOOD_PER_SECOND) : FLOOD_BURST;
	s->flood_ns = now;
	s->flood_tokens = (int)vkr_min(earned, FLOOD_BURST);
	return s->flood_tokens <= 0;
}

/*
 * Opcode 0 is a question and an answer. A native client only asks, a native server only answers; between shims, who ask
 * both ways, a question has features != 0.
 */
static bool is_question(const struct vkr_stream *s, const struct vkr_message *m)
{
	return s->peer_kind == VKR_PEER_SHIM ? m->features != 0 : s->role == VKR_ROLE_ACCEPT;
}

/* Answers to what we did; all else a peer can send for ever. */
static bool is_solicited(const struct vkr_stream *s, const struct vkr_message *m)
{
	if (m->opcode == VKR_OP_REGISTER_XFER_MEMORY)
		return !s->tx.have_ring || s->tx.off == s->tx.len;
	return m->opcode == VKR_OP_GET_SERVER_FEATURE && s->tx.probing && !is_question(s, m);
}

static void on_feature(struct vkr_stream *s, const struct vkr_message *m)
{
	struct vkr_tx *tx = &s->tx;

	if (!is_question(s, m)) {
		if (tx->probing && m->select == tx->probe_token)
			vkr_tx_proven(s, tx->probe_mark);
		return;
	}
	if (tx->n_echoes == VKR_ECHOES) {
		vkr_stream_violation(s, "feature questions without waiting for answers");
		return;
	}
	tx->echoes[tx->n_echoes++] = m->select;
	tx->control |= VKR_CTL_ECHO;
}

static void on_message(struct vkr_stream *s, const struct vkr_message *m, uint32_t *edge)
{
	/* With credits these are immediates, and rings are offered. */
	bool shim = (s->features & VKR_FEAT_FIN) != 0 && !s->credits;

	switch (m->opcode) {
	case VKR_OP_GET_SERVER_FEATURE:
		on_feature(s, m);
		break;
	case VKR_OP_REGISTER_XFER_MEMORY:
	case VKR_OP_OFFER:
		if ((m->opcode == VKR_OP_OFFER) != s->credits) {
			vkr_stream_violation(s, "opcode 0x%x", m->opcode);
			break;
		}
		if (s->tx.borrowed) {
			vkr_stream_violation(s, "it offers a ring while one is on loan");
			break;
		}
		vkr_count(s->credits ? &s->stats->rings_in : &s->stats->refreshes_in, 1);
		vkr_tx_ring(s, m->address, m->length, m->rkey);
		break;
	case VKR_OP_LEND:
		if (!vkr_credit_lent(s, m->address, m->length, m->rkey))
			vkr_stream_violation(s, "it lends a ring that was not asked for");
		else
			vkr_count(&s->stats->rings_in, 1);
		break;
	case VKR_OP_FIN:
		if (!shim) {
			vkr_stream_violation(s, "opcode 0x%x", m->opcode);
			break;
		}
		vkr_stream_ended(s, edge);
		break;
	case VKR_OP_RESET:
		if (!shim)
			vkr_stream_violation(s, "opcode 0x%x", m->opcode);
		else
			vkr_stream_reset(s);
		break;
	default: /* keepalive, SetClientFeature: nothing to do */
		break;
	}
}

static VKR_COLD void on_control(struct vkr_stream *s, const struct ibv_wc *wc, uint32_t idx, uint32_t *edge)
{
	uint8_t copy[VKR_WIRE_SIZE];
	struct vkr_message m;
	int ret;

	vkr_count(&s->stats->sends_in, 1);
	/* The buffer is the device's to write: decode what cannot change meanwhile. */
	memcpy(copy, s->ctl + (size_t)idx * VKR_WIRE_SIZE, sizeof(copy));
	ret = vkr_wire_decode(copy, wc->byte_len, VKR_RING_BELIEVED, &m);
	if (ret == -EBADMSG)
		vkr_stream_violation(s, "a control message of %u bytes", wc->byte_len);
	else if (ret == -ERANGE)
		vkr_stream_violation(s, "a buffer of %u bytes", m.length);
	else if (ret)
		vkr_stream_violation(s, "opcode %u", m.opcode);
	else if (!is_solicited(s, &m) && vkr_stream_flood(s))
		vkr_stream_violation(s, "a flood of control messages");
	else
		on_message(s, &m, edge);
}

static VKR_COLD void on_failure(struct vkr_stream *s, const struct ibv_wc *wc)
{
	char who[64];

	if ((uint32_t)wc->wr_id & VKR_WR_MARKER && !((uint32_t)wc->wr_id & VKR_WR_RECV)) {
		s->marker_done = true;
		vkr_task_queue(&s->task);
		return;
	}
	if (s->phase >= VKR_PH_FLUSH || s->broken)
		return;
	if (wc->status == IBV_WC_WR_FLUSH_ERR) {
		/* The QP went to ERR under us. A DISCONNECTED says why, or nothing does within a moment. */
		if (!s->flushed) {
			s->flushed = true;
			vkr_task_queue(&s->task);
		}
		return;
	}
	vkr_address_text((struct sockaddr *)&s->peer, who, sizeof(who));
	vkr_info("connection with %s failed: %s", who, vkr_verbs.ibv_wc_status_str(wc->status));
	/* The second is how rxe fails to send while its interface is down. */
	s->lost = wc->status == IBV_WC_RETRY_EXC_ERR || wc->status == IBV_WC_LOC_QP_OP_ERR;
	vkr_stream_break(s, s->lost ? ETIMEDOUT : ECONNRESET);
}

/* A receive was taken, or a send is done. */
static inline void on_success(struct vkr_stream *s, const struct ibv_wc *wc, uint32_t *edge)
{
	uint32_t low = (uint32_t)wc->wr_id, idx = low & ~VKR_WR_RECV;

	s->heard++;
	if (!(low & VKR_WR_RECV)) {
		vkr_tx_completed(s, low & VKR_WR_SEQ);
		return;
	}
	if (vkr_unlikely(idx >= VKR_RECV_DEPTH || s->broken))
		return;
	s->repost[s->n_repost++] = (uint16_t)idx;
	if (vkr_likely(wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM))
		on_immediate(s, wc, edge);
	else
		on_control(s, wc, idx, edge);
}

/* With credits the peer is told of receives once they are posted again, not before. */
static void repost(struct vkr_stream *s)
{
	if (vkr_stream_post_receives(s, s->repost, s->n_repost))
		vkr_stream_break(s, ECONNRESET);
	s->rxc.now.messages += (uint32_t)s->n_repost;
	s->n_repost = 0;
}

/* Completions while the connection is made or ended: the next step may have come. */
static VKR_COLD void complete_other_phase(struct vkr_stream *s)
{
	if (s->phase == VKR_PH_DRAIN && !s->broken)
		vkr_tx_marker(s); /* what was just posted may be unsignaled again */
	if (s->phase == VKR_PH_ACCEPTED || (s->phase == VKR_PH_DRAIN && vkr_tx_drained(s)) ||
	    (s->phase == VKR_PH_PROOF && !s->tx.probing))
		vkr_task_queue(&s->task);
}

static void stream_complete(struct vkr_endpoint *ep, struct ibv_wc *const *wc, int n)
{
	struct vkr_stream *s = vkr_container_of(ep, struct vkr_stream, ep);
	bool nospace;
	uint32_t edge = 0;
	int i;

	pthread_mutex_lock(&s->p.lock);
	nospace = s->nospace;
	for (i = 0; i < n; i++) {
		if (vkr_likely(wc[i]->status == IBV_WC_SUCCESS))
			on_success(s, wc[i], &edge);
		else
			on_failure(s, wc[i]);
	}
	if (vkr_likely(s->phase < VKR_PH_FLUSH && !s->broken)) {
		/* Receives first: an echo or a refresh tells the peer that they are back. */
		if (s->n_repost >= (s->credits ? VKR_REPOST : 1))
			repost(s);
		if (s->credits)
			vkr_credit_due(s); /* what the peer asks for may be there already */
		if (s->tx.control || s->tx.put != s->tx.sent)
			vkr_tx_push(s);
	}
	if (vkr_unlikely(nospace && !s->nospace))
		edge |= EPOLLOUT;
	if (vkr_unlikely(s->phase != VKR_PH_OPEN))
		complete_other_phase(s);
	vkr_stream_update(s, edge);
	pthread_mutex_unlock(&s->p.lock);
}

static void stream_async(struct vkr_endpoint *ep, enum ibv_event_type type)
{
	struct vkr_stream *s = vkr_container_of(ep, struct vkr_stream, ep);

	if (type == IBV_EVENT_COMM_EST)
		return; /* what has come completes, and that is when the CM is told */
	if (type == IBV_EVENT_PORT_ERR) {
		vkr_alive_doubt();
		return;
	}
	pthread_mutex_lock(&s->p.lock);
	vkr_stream_break(s, type == IBV_EVENT_DEVICE_FATAL ? ETIMEDOUT : ECONNRESET);
	pthread_mutex_unlock(&s->p.lock);
}

/* ------------------------------------------------------------------ rdma.h */

struct vkr_pollable *vkr_stream_pollable(struct vkr_stream *s)
{
	return &s->p;
}

enum vkr_stream_state vkr_stream_state(struct vkr_stream *s)
{
	return (enum vkr_stream_state)vkr_load_acq(&s->state);
}

int vkr_stream_failure(struct vkr_stream *s, const char **reason)
{
	*reason = s->reason;
	return -s->fail_errno;
}

struct vkr_conn_stats *vkr_stream_stats(struct vkr_stream *s)
{
	return s->stats;
}

void vkr_stream_addrs(struct vkr_stream *s, struct sockaddr_storage *local, struct sockaddr_storage *peer)
{
	if (local)
		*local = s->local;
	if (peer)
		*peer = s->peer;
}

void vkr_stream_hand_over(struct vkr_stream *s)
{
	pthread_mutex_lock(&s->p.lock);
	s->handed_over = true;
	vkr_stream_update(s, VKR_EDGE_STATE);
	pthread_mutex_unlock(&s->p.lock);
}

size_t vkr_stream_inq(struct vkr_stream *s)
{
	size_t n;

	pthread_mutex_lock(&s->p.lock);
	n = s->inq;
	pthread_mutex_unlock(&s->p.lock);
	return n;
}

void vkr_stream_put_error(struct vkr_stream *s, int err)
{
	pthread_mutex_lock(&s->p.lock);
	s->error = err;
	vkr_pollable_set(&s->p, vkr_stream_mask(s), 0); /* no news */
	pthread_mutex_unlock(&s->p.lock);
}

int vkr_stream_take_error(struct vkr_stream *s)
{
	int err;

	pthread_mutex_lock(&s->p.lock);
	err = s->error;
	s->error = 0;
	if (err)
		vkr_stream_update(s, 0);
	pthread_mutex_unlock(&s->p.lock);
	return err;
}

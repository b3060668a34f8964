/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Queue pairs that outlive their connections (docs/decisions/0012). Between two shims with VKR_FEAT_KEEP a connection
 * that has ended in order is not taken down: the acceptor says that it keeps the queue pair, and until it has waited
 * for long the connector's next connection to the same address begins on it, by a message and without the other
 * process: as over TCP, where the kernel accepts while the program is busy.
 *
 * What such a connection needs at the acceptor (a descriptor, a place beside the backlog) is had before it is promised.
 * Between the two connections nothing is under way: all bytes were read, both ends told, the positions of both rings go
 * on from where they are.
 */
#include "rdma_cm.h"

#include "log.h"

#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

/* From when the connector knows of it, and from when the acceptor says so: what the former opens in time the latter
 * still has. Short, too, since a peer that has gone without a word is noticed no sooner than by its first data. */
#define CONNECTOR_NS (1000 * VKR_MS)
#define ACCEPTOR_NS  (3000 * VKR_MS)
/* A message there and its acknowledgement. */
#define TELL_NS (1 * VKR_MS)

/* Connectors that may be opened, the latest first, so that what is too many grows old. Progress thread. */
static struct vkr_stream *kept;

void vkr_keep_forked(void)
{
	kept = NULL;
}

/* Lock held. The connection has ended and has left nothing. */
static bool is_clean(const struct vkr_stream *s)
{
	const struct vkr_tx *tx = &s->tx;

	if (!(s->features & VKR_FEAT_KEEP) || !s->app_closed || !s->peer_fin || s->bound || s->dev->ending)
		return false;
	if (s->abort || s->end || s->flushed || s->broken || s->peer_closed || s->reset || s->handed_over || s->error)
		return false;
	if (!tx->ready || tx->put != tx->sent || tx->control || tx->waking || tx->borrowed || s->inq || s->rxc.wanted)
		return false;
	/* What has grown would be memory for nothing. */
	return !s->rxc.offered && s->rd == s->wr && s->rx[s->wr].len == s->ring_first;
}

/* Lock held. Its next connection shows from the beginning. */
static void renew(struct vkr_stream *s, const char *rule)
{
	struct vkr_conn_stats *stats =
	    vkr_stats_conn_new(s->role, (struct sockaddr *)&s->local, (struct sockaddr *)&s->peer, rule);

	vkr_store(&stats->mem_mr, vkr_load(&s->stats->mem_mr));
	vkr_store(&stats->mem_queue, vkr_load(&s->stats->mem_queue));
	vkr_stats_conn_free(s->stats);
	s->stats = stats;
	stats->peer_kind = (uint8_t)s->peer_kind;
	vkr_stats_conn_open(stats, VKR_TRANSPORT_RDMA, NULL);
	s->unusual = 0;
	s->app_closed = s->lingering = s->stall_counted = false;
	s->keepalive_ns = s->flushed_ns = 0;
	s->tx.limit = VKR_STAGE_MAX;
	s->granted_ns = 0;
	s->held = true;
	s->phase = VKR_PH_OPEN;
}

/* Lock held. */
static void retire(struct vkr_stream *s)
{
	vkr_tx_trim(s);
	s->lingering = false;
	s->phase = VKR_PH_KEPT;
}

/* ------------------------------------------------------------------ the acceptor */

static bool accept_begin(struct vkr_stream *s)
{
	struct vkr_listener *l = vkr_listener_find(s->home);
	const struct vkr_admission *admission;
	bool clean;

	if (!l || !vkr_listener_keeps(l))
		return false;
	admission = &l->admission;
	s->dismiss = admission->dismiss;
	s->ticket = admission->admit ? admission->admit(admission->arg) : NULL;
	pthread_mutex_lock(&s->p.lock);
	s->listener = l;
	clean = (s->ticket || !admission->admit) && is_clean(s);
	if (clean) {
		retire(s);
		s->granted_ns = vkr_now_ns();
		s->tx.control |= VKR_CTL_KEEP;
		vkr_tx_push(s);
	} else {
		vkr_listener_kept_leaves(s, false);
	}
	pthread_mutex_unlock(&s->p.lock);
	return clean;
}

/* Lock held. */
static void on_open(struct vkr_stream *s, bool at_end, uint32_t *edge)
{
	if (!at_end || !s->granted_ns || s->role != VKR_ROLE_ACCEPT) {
		vkr_stream_violation(s, "it opens a connection that was not kept");
		return;
	}
	if (s->phase != VKR_PH_KEPT) { /* our reset is on its way */
		vkr_stream_break(s, ECONNRESET);
		return;
	}
	renew(s, s->listener->rule);
	*edge |= EPOLLOUT;
	vkr_listener_kept_leaves(s, true);
	if (s->end) /* the process exits, and the step that asked has passed */
		vkr_task_queue(&s->task);
}

/* ------------------------------------------------------------------ the connector */

static bool connect_begin(struct vkr_stream *s)
{
	bool clean;

	pthread_mutex_lock(&s->p.lock);
	clean = is_clean(s);
	if (clean) {
		retire(s);
		DL_PREPEND2(kept, s, kept_prev, kept_next);
	}
	pthread_mutex_unlock(&s->p.lock);
	return clean;
}

/* Lock held. */
static void on_keep(struct vkr_stream *s, bool at_end)
{
	/* Our own end has been told, which the acceptor has answered by this. */
	if (!at_end || !s->peer_fin || !(s->app_closed || s->wr_shut) || s->granted_ns || s->role != VKR_ROLE_CONNECT) {
		vkr_stream_violation(s, "it keeps a connection that has not ended");
		return;
	}
	s->granted_ns = vkr_now_ns();
}

/* What the program still holds has ended in order long ago: no error of its own. */
bool vkr_keep_taken_back(struct vkr_stream *s)
{
	bool kept = s->granted_ns && s->phase != VKR_PH_KEPT;

	if (kept)
		s->granted_ns = 0;
	return kept;
}

static bool same_address(const struct sockaddr_storage *a, const struct sockaddr *b)
{
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;

	if (a->ss_family != b->sa_family)
		return false;
	if (a->ss_family == AF_INET)
		return a4->sin_port == b4->sin_port && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a6->sin6_port == b6->sin6_port && a6->sin6_scope_id == b6->sin6_scope_id &&
	       !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

/* False: it is to be ended, or has not been granted yet. */
static bool open_kept(struct vkr_stream *s, const char *rule)
{
	bool opened;

	/* Whoever polls just now may have the acceptor's reset in its hands. */
	vkr_endpoint_drain(&s->ep);
	pthread_mutex_lock(&s->p.lock);
	opened = s->granted_ns && vkr_now_ns() < s->granted_ns + CONNECTOR_NS && !s->end && is_clean(s);
	if (opened) {
		renew(s, rule);
		s->tx.control |= VKR_CTL_OPEN;
		vkr_tx_push(s);
		vkr_stream_update(s, VKR_EDGE_STATE | EPOLLOUT);
	}
	pthread_mutex_unlock(&s->p.lock);
	return opened;
}

struct vkr_stream *vkr_keep_take(const struct sockaddr *peer, const char *rule)
{
	struct vkr_stream *s, *found = NULL;

	DL_FOREACH2(kept, s, kept_next)
	{
		if (same_address(&s->peer, peer) && open_kept(s, rule)) {
			found = s;
			break;
		}
	}
	if (!found)
		return NULL;
	DL_DELETE2(kept, found, kept_prev, kept_next);
	vkr_timer_cancel(&found->timer);
	vkr_alive_watch(found);
	return found;
}

/* ------------------------------------------------------------------ both */

void vkr_keep_imm(struct vkr_stream *s, enum vkr_imm type, bool at_end, uint32_t *edge)
{
	if (!(s->features & VKR_FEAT_KEEP))
		vkr_stream_violation(s, "an immediate of type %d", type);
	else if (type == VKR_IMM_OPEN)
		on_open(s, at_end, edge);
	else
		on_keep(s, at_end);
}

bool vkr_keep_begin(struct vkr_stream *s)
{
	bool clean;

	pthread_mutex_lock(&s->p.lock);
	clean = is_clean(s);
	pthread_mutex_unlock(&s->p.lock);
	if (!clean || !(s->role == VKR_ROLE_ACCEPT ? accept_begin(s) : connect_begin(s)))
		return false;
	s->deadline = vkr_now_ns() + (s->role == VKR_ROLE_ACCEPT ? ACCEPTOR_NS : CONNECTOR_NS);
	vkr_stream_timer(s, s->deadline);
	/* From here on, since who opens it may be another thread. */
	if (s->role == VKR_ROLE_ACCEPT)
		vkr_alive_watch(s);
	return true;
}

/* Lock held. Whoever comes to open it finds it gone. */
static void leave(struct vkr_stream *s)
{
	s->phase = VKR_PH_DRAIN;
	if (s->role == VKR_ROLE_CONNECT) {
		DL_DELETE2(kept, s, kept_prev, kept_next);
		return;
	}
	vkr_listener_kept_leaves(s, false);
	s->tx.control |= VKR_CTL_RESET;
	vkr_tx_push(s);
}

static bool is_told(struct vkr_stream *s)
{
	bool told;

	pthread_mutex_lock(&s->p.lock);
	told = s->tx.posted == s->tx.completed;
	pthread_mutex_unlock(&s->p.lock);
	return told;
}

/*
 * Also when an open crosses the reset and breaks the connection: its sender hears of that by the reset alone.
 *
 * The connector is told through the queue pair itself: when that has completed, nobody who asks its own completion
 * queue opens a connection any more, whereas the CM's message is still on its way when the listener's close() returns.
 */
static void tell(struct vkr_stream *s)
{
	int64_t until = vkr_now_ns() + TELL_NS;

	while (!is_told(s) && vkr_now_ns() < until)
		vkr_endpoint_drain(&s->ep);
}

bool vkr_keep_goes_on(struct vkr_stream *s)
{
	bool over;

	/* It may have been opened in time, while this process was stopped. */
	vkr_endpoint_drain(&s->ep);
	pthread_mutex_lock(&s->p.lock);
	over = s->phase == VKR_PH_KEPT &&
	       (s->end || s->broken || s->peer_closed || s->flushed || s->reset || vkr_now_ns() >= s->deadline);
	pthread_mutex_unlock(&s->p.lock);
	return !over || !vkr_keep_leave(s);
}

bool vkr_keep_leave(struct vkr_stream *s)
{
	bool left, telling;

	pthread_mutex_lock(&s->p.lock);
	left = s->phase == VKR_PH_KEPT;
	telling = left && s->role == VKR_ROLE_ACCEPT && s->tx.ready;
	if (left)
		leave(s);
	pthread_mutex_unlock(&s->p.lock);
	if (telling)
		tell(s);
	return left;
}

static struct vkr_stream *next_to_go(void)
{
	struct vkr_stream *s, *found = NULL;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_registry, s)
		if (s->phase == VKR_PH_KEPT && (!found || s->deadline < found->deadline))
			found = s;
	pthread_mutex_unlock(&vkr_registry_lock);
	return found;
}

bool vkr_keep_yield(void)
{
	struct vkr_stream *s;

	while ((s = next_to_go())) {
		vkr_endpoint_drain(&s->ep);
		if (vkr_keep_leave(s)) { /* else it has just been opened */
			vkr_stream_teardown(s);
			return true;
		}
	}
	return false;
}

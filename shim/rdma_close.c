/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * How a stream ends. On the wire (T9): accepted bytes are written and their completions awaited; a native server is
 * then asked whether it has read them, a native client is given a moment to leave first; then the CM disconnects.
 * Objects: where sends are out, QP to ERR, a marker send, its flush; the CQ drained, the QP destroyed, the CQ drained
 * again, memory freed.
 * The progress thread takes all the steps.
 */
#include "rdma_stream.h"

#include "log.h"
#include "socket.h"

#include <string.h>
#include <sys/epoll.h>

/* A server that is busy with a script, say, answers after it. Who exits waits less (vkr_engine_flush()). */
#define PROOF_SERVER_NS (10000 * VKR_MS)
#define PROOF_CLIENT_NS (100 * VKR_MS)
/* TCP's FIN_WAIT2, shorter: how long a closed end stays to answer data with Reset when the peer does not close. */
#define LINGER_NS (1000 * VKR_MS)
/* After a flush completion: how long the CM may take to say that the peer disconnected. */
#define FLUSHED_GRACE_NS (500 * VKR_MS)
/* How long the reset of a discarding close may take to get out. */
#define RESET_NS        (200 * VKR_MS)
#define MARKER_RETRY_NS (1 * VKR_MS)
#define MARKER_LIMIT_NS (2000 * VKR_MS)

static void timer_run(struct vkr_timer *timer)
{
	struct vkr_stream *s = vkr_container_of(timer, struct vkr_stream, timer);

	vkr_stream_step(&s->task);
}

void vkr_stream_timer(struct vkr_stream *s, int64_t due)
{
	s->timer.run = timer_run;
	vkr_timer_set(&s->timer, due);
}

void vkr_stream_phase(struct vkr_stream *s, enum vkr_phase phase)
{
	pthread_mutex_lock(&s->p.lock);
	s->phase = phase;
	pthread_mutex_unlock(&s->p.lock);
}

/* ------------------------------------------------------------------ objects */

static void finish(struct vkr_stream *s)
{
	bool gone;

	vkr_timer_cancel(&s->timer);
	vkr_stream_verbs_destroy(s);
	pthread_mutex_lock(&s->p.lock);
	s->phase = VKR_PH_DEAD;
	if (vkr_load(&s->state) == VKR_STREAM_FAILED) {
		/* The socket keeps the stream until it is closed itself; vkrdma-stat shows its TCP connection only. */
		vkr_ring_destroy(s, &s->rx[0]);
		vkr_ring_destroy(s, &s->rx[1]);
		vkr_stats_conn_free(s->stats);
		s->stats = NULL;
	}
	gone = s->app_closed || !s->held;
	pthread_mutex_unlock(&s->p.lock);
	if (gone) {
		vkr_stream_free(s);
		return;
	}
	pthread_mutex_lock(&vkr_registry_lock);
	pthread_cond_broadcast(&vkr_registry_cond);
	pthread_mutex_unlock(&vkr_registry_lock);
}

static void marker_post(struct vkr_stream *s)
{
	struct ibv_send_wr wr, *bad;

	memset(&wr, 0, sizeof(wr));
	wr.wr_id = (uint64_t)s->ep.generation << 32 | VKR_WR_MARKER;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(s->qp, &wr, &bad))
		s->marker_done = true; /* nothing to wait for */
}

static bool marker_done(struct vkr_stream *s)
{
	bool done;

	pthread_mutex_lock(&s->p.lock);
	done = s->marker_done;
	pthread_mutex_unlock(&s->p.lock);
	return done;
}

/* The marker is flushed after everything before it, so then no completion of a send is to come. */
static void flush_step(struct vkr_stream *s)
{
	if (!marker_done(s)) {
		vkr_endpoint_drain(&s->ep);
		if (!marker_done(s)) {
			if (vkr_now_ns() < s->deadline) {
				vkr_stream_timer(s, vkr_now_ns() + MARKER_RETRY_NS);
				return;
			}
			vkr_warn("a queue pair did not flush in time");
		}
	}
	finish(s);
}

void vkr_stream_teardown(struct vkr_stream *s)
{
	struct ibv_qp_attr attr;

	vkr_keep_leave(s);
	vkr_timer_cancel(&s->timer);
	vkr_alive_forget(s);
	vkr_cm_forget(s);
	vkr_store(&s->stats->state, VKR_SLOT_CLOSING);
	vkr_stream_phase(s, VKR_PH_FLUSH);
	if (!s->qp_live) {
		finish(s);
		return;
	}
	pthread_mutex_lock(&s->p.lock);
	s->tx.ready = false;
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_ERR;
	s->marker_done = false;
	/* Every send has completed: there is none to be flushed. A failed queue shows no completion any more, a device
	 * that is going may not. */
	if (s->tx.posted == s->tx.completed || vkr_verbs.ibv_modify_qp(s->qp, &attr, IBV_QP_STATE) ||
	    s->ep.cq->failed || s->dev->ending)
		s->marker_done = true;
	else
		marker_post(s);
	pthread_mutex_unlock(&s->p.lock);
	s->deadline = vkr_now_ns() + MARKER_LIMIT_NS;
	flush_step(s);
}

/* ------------------------------------------------------------------ the wire */

static void disconnect(struct vkr_stream *s)
{
	if (s->id)
		vkr_verbs.rdma_disconnect(s->id);
	/* The application may still hold the stream (shutdown of both directions): for it this is the end. */
	pthread_mutex_lock(&s->p.lock);
	if (!s->app_closed && !s->reset && !s->peer_closed) {
		s->peer_fin = s->peer_closed = true;
		vkr_stream_update(s, EPOLLIN | EPOLLRDHUP | EPOLLHUP);
	}
	pthread_mutex_unlock(&s->p.lock);
	vkr_stream_teardown(s);
}

/* Lock held. */
static bool proof_done(const struct vkr_stream *s, bool lingering)
{
	if (s->abort || s->broken || s->peer_closed)
		return true;
	return lingering ? s->peer_fin || s->end || !s->app_closed : !s->tx.probing;
}

/* In order: the queue pair may serve another connection. */
static void end(struct vkr_stream *s)
{
	if (!vkr_keep_begin(s))
		disconnect(s);
}

/* A native peer loses what it has received and not read when we disconnect: find out, or give it time. */
static void proof_begin(struct vkr_stream *s)
{
	bool server = s->role == VKR_ROLE_CONNECT, wait = false;
	int64_t ns = server ? vkr_min(PROOF_SERVER_NS, s->drain_ns) : PROOF_CLIENT_NS;

	pthread_mutex_lock(&s->p.lock);
	if (s->peer_kind == VKR_PEER_NATIVE && !s->abort && !s->peer_closed && !s->broken) {
		wait = true;
		if (server) {
			s->tx.probing = false;
			s->tx.control |= VKR_CTL_PROBE;
			vkr_tx_push(s);
		} else {
			/* No question may be asked of a native client: `probing` stays until it leaves or time is up.
			 */
			s->tx.probing = true;
			s->tx.probe_mark = s->tx.msgs + 1;
		}
		s->phase = VKR_PH_PROOF;
	} else if (s->features & VKR_FEAT_FIN && !proof_done(s, true)) {
		wait = s->lingering = true;
		ns = LINGER_NS;
		s->phase = VKR_PH_PROOF;
	}
	pthread_mutex_unlock(&s->p.lock);
	if (!wait) {
		end(s);
		return;
	}
	s->deadline = vkr_now_ns() + ns;
	vkr_stream_timer(s, s->deadline);
}

static void drain_step(struct vkr_stream *s)
{
	bool drained, over;

	pthread_mutex_lock(&s->p.lock);
	vkr_tx_push(s);
	vkr_tx_marker(s);
	pthread_mutex_unlock(&s->p.lock);
	/* Often all is at the peer by now. */
	vkr_endpoint_drain(&s->ep);
	pthread_mutex_lock(&s->p.lock);
	drained = vkr_tx_drained(s);
	over = s->abort || s->broken || s->peer_closed;
	pthread_mutex_unlock(&s->p.lock);
	if (over) {
		disconnect(s);
		return;
	}
	if (!drained && vkr_now_ns() < s->deadline) {
		vkr_stream_timer(s, s->deadline);
		return;
	}
	if (drained)
		proof_begin(s);
	else
		disconnect(s);
}

static void drain_begin(struct vkr_stream *s)
{
	vkr_alive_forget(s);
	vkr_store(&s->stats->state, VKR_SLOT_CLOSING);
	s->deadline = vkr_now_ns() + s->drain_ns;
	vkr_stream_phase(s, VKR_PH_DRAIN);
	drain_step(s);
}

static void proof_step(struct vkr_stream *s)
{
	bool done;

	pthread_mutex_lock(&s->p.lock);
	done = proof_done(s, s->lingering);
	pthread_mutex_unlock(&s->p.lock);
	if (done)
		end(s);
	else if (vkr_now_ns() >= s->deadline)
		disconnect(s);
	else
		vkr_stream_timer(s, s->deadline);
}

static void kept_step(struct vkr_stream *s)
{
	if (!vkr_keep_goes_on(s))
		disconnect(s);
}

/* ------------------------------------------------------------------ the step */

static void open_step(struct vkr_stream *s)
{
	bool ending, over, flushed, lost;

	pthread_mutex_lock(&s->p.lock);
	ending = s->app_closed || s->end;
	over = s->broken || s->peer_closed || (ending && s->abort);
	flushed = s->flushed;
	lost = s->lost;
	pthread_mutex_unlock(&s->p.lock);
	if (lost)
		vkr_alive_lost(s);
	if (over) {
		disconnect(s);
		return;
	}
	if (flushed) {
		if (!s->flushed_ns) {
			s->flushed_ns = vkr_now_ns();
			vkr_stream_timer(s, s->flushed_ns + FLUSHED_GRACE_NS);
		} else if (vkr_now_ns() >= s->flushed_ns + FLUSHED_GRACE_NS) {
			pthread_mutex_lock(&s->p.lock);
			vkr_stream_break(s, ECONNRESET);
			pthread_mutex_unlock(&s->p.lock);
		}
		return;
	}
	if (ending)
		drain_begin(s);
	else
		vkr_alive_watch(s); /* the interval may have changed */
}

/* A connection that is not established yet. */
static void early_step(struct vkr_stream *s)
{
	bool closed, broken, heard;

	pthread_mutex_lock(&s->p.lock);
	closed = s->app_closed || s->end;
	broken = s->broken;
	heard = s->heard;
	pthread_mutex_unlock(&s->p.lock);
	if (closed || s->fail_errno) {
		/* Whoever looks at an attempt that was given up while it is still held sees that it is over. */
		vkr_cm_connect_failed(s, ECONNABORTED, "%s", "the program gave it up");
		vkr_stream_teardown(s);
	} else if (broken || vkr_now_ns() >= s->deadline) {
		vkr_cm_connect_failed(s, broken ? ECONNRESET : ETIMEDOUT,
				      broken ? "the connection broke at once" : NULL);
		vkr_stream_teardown(s);
	} else if (s->phase == VKR_PH_NEW) {
		vkr_cm_connect_begin(s);
	} else if (s->phase == VKR_PH_ACCEPTED && heard) {
		/* Data before the RTU, which may be lost: the CM learns from us. Not all devices tell (COMM_EST). */
		vkr_verbs.rdma_notify(s->id, IBV_EVENT_COMM_EST);
	}
}

static void dead_step(struct vkr_stream *s)
{
	bool closed;

	pthread_mutex_lock(&s->p.lock);
	closed = s->app_closed;
	pthread_mutex_unlock(&s->p.lock);
	if (closed)
		vkr_stream_free(s);
}

void vkr_stream_step(struct vkr_task *task)
{
	struct vkr_stream *s = vkr_container_of(task, struct vkr_stream, task);

	switch (vkr_load(&s->phase)) {
	case VKR_PH_NEW:
	case VKR_PH_ADDR:
	case VKR_PH_ROUTE:
	case VKR_PH_REQUEST:
	case VKR_PH_ACCEPTED:
		early_step(s);
		break;
	case VKR_PH_OPEN:
		open_step(s);
		break;
	case VKR_PH_DRAIN:
		drain_step(s);
		break;
	case VKR_PH_PROOF:
		proof_step(s);
		break;
	case VKR_PH_KEPT:
		kept_step(s);
		break;
	case VKR_PH_FLUSH:
		flush_step(s);
		break;
	case VKR_PH_DEAD:
		dead_step(s);
		break;
	}
}

/* ------------------------------------------------------------------ rdma.h */

/* TCP's state CLOSE: reset, or both directions have ended and the peer has our end. */
static bool is_over(const struct vkr_stream *s)
{
	if (s->reset)
		return true;
	return s->peer_fin && s->wr_shut && (s->peer_closed || vkr_tx_fin_done(s));
}

bool vkr_stream_over(struct vkr_stream *s)
{
	bool over;

	pthread_mutex_lock(&s->p.lock);
	over = is_over(s);
	pthread_mutex_unlock(&s->p.lock);
	return over;
}

int vkr_stream_shutdown(struct vkr_stream *s, int how)
{
	int cancel;
	bool wr = how == SHUT_WR || how == SHUT_RDWR, rd = how == SHUT_RD || how == SHUT_RDWR;
	int ret = 0;

	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&s->p.lock);
	if (vkr_load(&s->state) != VKR_STREAM_OPEN || is_over(s)) {
		ret = -ENOTCONN;
		if (vkr_load(&s->state) == VKR_STREAM_CONNECTING && how == SHUT_RDWR) {
			s->end = true; /* the attempt, or what may become of it this very moment */
			vkr_task_queue(&s->task);
		}
	} else {
		if (wr && !s->wr_shut) {
			s->wr_shut = true;
			if (s->features & VKR_FEAT_FIN && !s->peer_closed) {
				s->tx.control |= VKR_CTL_FIN;
				vkr_tx_push(s);
			} else if (rd && !s->peer_closed) {
				/* The native wire has no half-close, but both directions at once is a disconnect. */
				s->end = true;
				s->drain_ns = 60000 * VKR_MS;
				vkr_task_queue(&s->task);
			}
		}
		s->rd_shut |= rd;
	}
	/* The kernel wakes everybody who waits for anything, also by the call that fails. */
	vkr_stream_update(s, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	pthread_mutex_unlock(&s->p.lock);
	vkr_verbs_leave(cancel);
	return ret;
}

void vkr_stream_close(struct vkr_stream *s, int drain_ms)
{
	struct vkr_turn turn;
	bool shim, entered;
	int cancel;

	if (s->epoch != vkr_epoch)
		return; /* a forked child's copy of the parent's */
	cancel = vkr_verbs_enter();
	entered = vkr_progress_enter(&turn);
	pthread_mutex_lock(&s->p.lock);
	shim = (s->features & VKR_FEAT_FIN) != 0;
	/* Unread bytes, or unsent ones to be discarded: a reset, as TCP has it, unless all is over anyway. */
	if ((s->inq || drain_ms <= 0) && shim && s->tx.ready && !is_over(s)) {
		s->tx.control |= VKR_CTL_RESET;
		s->end = true; /* with it, whatever the peer says: nothing is kept */
	} else if (shim && !s->wr_shut && s->tx.ready) {
		/* The end is told at once; the connection ends when the peer closes too. */
		s->tx.control |= VKR_CTL_FIN;
	}
	s->drain_ns = drain_ms * VKR_MS;
	if (drain_ms <= 0) {
		s->tx.put = s->tx.sent;
		s->drain_ns = RESET_NS;
		s->abort = !shim;
	}
	vkr_tx_push(s);
	s->app_closed = true;
	vkr_task_queue(&s->task);
	pthread_mutex_unlock(&s->p.lock);
	if (entered)
		vkr_progress_leave(&turn);
	vkr_verbs_leave(cancel);
}

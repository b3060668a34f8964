/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * When an operation would not be comparable. Each reason is either one of concurrency (two threads that race for the
 * same bytes have no one result) or a difference that docs/semantics.md explains; README.md lists them.
 */
#include "worker.h"

#include <poll.h>

/* Of the pending calls: any that satisfies. */
static bool pending(struct world *w, bool (*is)(enum diff_kind kind), int what, int end)
{
	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;

		if (atomic_load(&w->tasks[i].state) != TASK_IDLE && is((enum diff_kind)job->op.kind) &&
		    (what < 0 || (job->what == what && job->end == end)))
			return true;
	}
	return false;
}

static bool is_consumer(enum diff_kind kind)
{
	return is_read(kind) || kind == DIFF_ACCEPT || kind == DIFF_DIAL || kind == DIFF_BIGSEND;
}

static bool is_any(enum diff_kind kind)
{
	return true;
}

static bool is_accept(enum diff_kind kind)
{
	return kind == DIFF_ACCEPT;
}

static bool is_sleep(enum diff_kind kind)
{
	return kind == DIFF_EPSLEEP;
}

/* The slot is to hold what a pending call makes. */
static bool promised(struct world *w, const struct slot *s)
{
	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;

		if (atomic_load(&w->tasks[i].state) != TASK_IDLE && &w->slots[job->op.a] == s &&
		    (job->op.kind == DIFF_ACCEPT || job->op.kind == DIFF_DIAL))
			return true;
	}
	return false;
}

/* The kernel's poll looks a number up again at each turn, and says NVAL; docs/semantics.md, "Signals and threads". */
static bool polled(struct world *w, int fd)
{
	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;

		if (atomic_load(&w->tasks[i].state) != TASK_IDLE && (job->fd == fd || job->fd2 == fd) &&
		    (job->op.kind == DIFF_WAITPOLL || job->op.kind == DIFF_WAITSELECT))
			return true;
	}
	return false;
}

static bool sets_polled(struct world *w)
{
	for (int i = DIFF_SOCKETS; i < DIFF_SLOTS; i++)
		if (w->slots[i].fd >= 0 && polled(w, w->slots[i].fd))
			return true;
	return false;
}

static bool is_bigsend(enum diff_kind kind)
{
	return kind == DIFF_BIGSEND;
}

bool call_any_stuffed(struct world *w)
{
	for (int i = 0; i < w->end_count; i++)
		if (w->ends[i].stuffed)
			return true;
	return false;
}

/* Over a network the answer to late bytes comes some time after them: between two messages, or behind both. */
static bool peer_gone(const struct slot *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0;
}

bool end_is_named(struct world *w, int end)
{
	for (int i = 0; i < DIFF_SOCKETS; i++)
		if (w->slots[i].what == SLOT_END && w->slots[i].end == end)
			return true;
	return false;
}

static bool is_over(const struct slot *s)
{
	struct pollfd p = {.fd = s->fd};

	return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

static const char *write_unfit(struct world *w, const struct diff_op *op, const struct slot *s, struct end *e)
{
	struct end *peer = peer_of(w, e);
	uint64_t there = peer ? peer->rx : 0;

	if (pending(w, is_bigsend, s->what, s->end))
		return "another writes";
	if (op->kind == DIFF_FILL && pending(w, is_any, -1, 0))
		return "others may act between two writes";
	if (op->kind == DIFF_BIGSEND || op->kind == DIFF_FILL)
		return e->stuffed || s->nonblock || !peer || peer->rd_shut ? "no" : NULL;
	if (op->kind == DIFF_SENDMMSG &&
	    (peer_gone(s) || (peer && (peer->rd_shut || !end_is_named(w, e->peer))) || pending(w, is_any, -1, 0)))
		return "others may act between two messages";
	if (e->stuffed && !is_over(s))
		return "how much fits is the transport's own";
	if (!e->stuffed && e->tx - there + (uint64_t)op->n > DIFF_OUTSTANDING)
		return "enough is under way";
	return NULL;
}

static const char *read_unfit(struct world *w, const struct diff_op *op, const struct slot *s, struct end *e)
{
	struct end *peer = peer_of(w, e);

	if (pending(w, is_read, s->what, s->end))
		return "another reads";
	if (op->thread && op->n < 2 && op->kind != DIFF_DRAIN && !s->nonblock)
		return "one that waits for no bytes ends at any wake-up";
	if (peer && peer->stuffed && op->kind != DIFF_DRAIN)
		return "only drain";
	return NULL;
}

/*
 * Two threads that would race for the same bytes, connection or event have no result that could be compared: there may
 * be any number of waiting calls, or of consuming ones on different sockets. A call of thread 0 must not sleep.
 */
const char *call_unfit(struct world *w, const struct diff_op *op)
{
	const struct slot *s = &w->slots[op->a], *b = &w->slots[op->b];
	struct end *e = end_of(w, s);
	bool sleeps = diff_calls[op->kind].sleeps;
	const char *why = NULL;

	if (op->thread && atomic_load(&w->tasks[op->thread].state) != TASK_IDLE)
		return "busy";
	if ((is_wait((enum diff_kind)op->kind) || op->kind == DIFF_EPWAIT || op->kind == DIFF_POLL ||
	     op->kind == DIFF_SELECT) &&
	    call_any_stuffed(w))
		return "OUT is the transport's own now";
	/* Whether a set is still ready when those who poll it look depends on who of the set's own waiters was there
	 * first. */
	if ((op->kind == DIFF_WAITPOLL || op->kind == DIFF_WAITSELECT) &&
	    (s->what == SLOT_SET || b->what == SLOT_SET) && pending(w, is_sleep, -1, 0))
		return "another waits";
	if (op->kind == DIFF_EPSLEEP && sets_polled(w))
		return "the set is polled";
	if (op->kind == DIFF_WAITPOLL && !(op->flags & EPOLLIN) && (s->what == SLOT_SET || b->what == SLOT_SET))
		return "the kernel wakes those who poll a set with IN only";
	/* A copy that gets a number under which its file is still registered in a set is EEXIST there. */
	if ((op->kind == DIFF_DUP || (op->kind == DIFF_DUP2 && s->fd < 0)) && pending(w, is_accept, -1, 0))
		return "the kernel has taken the next number";
	if ((op->kind == DIFF_PAIR || op->kind == DIFF_LISTEN || op->kind == DIFF_CONNECT || op->kind == DIFF_DIAL ||
	     op->kind == DIFF_ACCEPT || op->kind == DIFF_DUP || op->kind == DIFF_DUP2) &&
	    (promised(w, s) || (op->kind == DIFF_PAIR && promised(w, b))))
		return "slot in use";
	if (op->kind == DIFF_ACCEPT) {
		if (s->fd >= 0)
			return "slot in use";
		if (pending(w, is_accept, b->what, b->end))
			return "another accepts";
		sleeps = b->what == SLOT_LISTENER && !b->nonblock;
	} else if (is_read((enum diff_kind)op->kind)) {
		sleeps = s->fd >= 0 && !s->nonblock && !(op->flags & MSG_DONTWAIT);
	}
	if (sleeps && !op->thread)
		return "would sleep";
	if (sleeps && is_read((enum diff_kind)op->kind) && e && pending(w, is_consumer, SLOT_END, e->peer))
		return "the other end sleeps too";
	if (sleeps && is_consumer((enum diff_kind)op->kind) && pending(w, is_wait, -1, 0))
		return "others wait";
	if (is_wait((enum diff_kind)op->kind) && pending(w, is_consumer, -1, 0))
		return "others consume";
	if ((op->kind == DIFF_EPSLEEP && pending(w, is_sleep, -1, 0)) ||
	    (op->kind == DIFF_EPWAIT &&
	     (pending(w, is_sleep, s->what, s->end) || (w->nested && pending(w, is_sleep, -1, 0)))))
		return "another waits";
	if (op->kind == DIFF_SHUTDOWN && op->n != SHUT_RD && pending(w, is_sleep, -1, 0))
		return "TCP reports its end once more when it is acknowledged";
	if (op->kind == DIFF_SHUTDOWN && op->n != SHUT_WR && e && peer_of(w, e) && peer_of(w, e)->stuffed)
		return "only drain"; /* with its reading shut down an end that is empty for a moment says EOF */
	/* TCP lets a socket whose connection has ended be used for another: docs/semantics.md, "Making and closing". */
	if ((op->kind == DIFF_REBIND || op->kind == DIFF_RELISTEN || op->kind == DIFF_RECONNECT) && s->fd >= 0 &&
	    is_over(s))
		return "the connection has ended";
	if ((op->kind == DIFF_CLOSE || op->kind == DIFF_DUP2 || op->kind == DIFF_SHUTDOWN) &&
	    s->what == SLOT_LISTENER && pending(w, is_wait, -1, 0))
		return "who waits to be accepted is reset one after another";
	if ((op->kind == DIFF_CLOSE || op->kind == DIFF_DUP2) && s->fd >= 0 && polled(w, s->fd))
		return "it is polled";
	if ((op->kind == DIFF_CONNECT || op->kind == DIFF_DIAL || op->kind == DIFF_RECONNECT) &&
	    b->what != SLOT_LISTENER)
		return "no listener";
	if ((op->kind == DIFF_CONNECT || op->kind == DIFF_DIAL || op->kind == DIFF_LISTEN || op->kind == DIFF_SET ||
	     op->kind == DIFF_PAIR || op->kind == DIFF_DUP) &&
	    (s->fd >= 0 || (op->kind == DIFF_PAIR && (b->fd >= 0 || op->a == op->b))))
		return "slot in use";
	if (e && (is_write((enum diff_kind)op->kind) || op->kind == DIFF_FILL))
		why = write_unfit(w, op, s, e);
	else if (!e && (op->kind == DIFF_FILL || op->kind == DIFF_BIGSEND))
		why = "no";
	if (!why && e && (is_read((enum diff_kind)op->kind) || op->kind == DIFF_DRAIN))
		why = read_unfit(w, op, s, e);
	return why;
}

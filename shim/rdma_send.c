/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stream's sending half. Bytes go straight from the caller's memory where the device takes them inline and nothing is
 * queued; else through the staging ring. What cannot go (the peer's ring is full, too many messages are outstanding,
 * the send queue is full) waits there and leaves as one write when it can.
 */
#include "rdma_stream.h"

#include "log.h"
#include "socket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define CHAIN 16
/* Inline is worth splitting a send for only where it is large. */
#define INLINE_CHEAP (16u << 10)
#define GATHER_MAX   8192
#define CTL_SLOTS    16

/* Work requests that share one doorbell. */
struct chain {
	int n, n_sge;
	struct ibv_send_wr wr[CHAIN];
	struct ibv_sge sge[CHAIN + VKR_MAX_SGE];
	uint8_t ctl[CHAIN][VKR_WIRE_SIZE];
};

/* ------------------------------------------------------------------ accounting */

static uint32_t sq_free(const struct vkr_stream *s)
{
	return VKR_SEND_DEPTH - (s->tx.posted - s->tx.completed);
}

static uint32_t queued(const struct vkr_tx *tx)
{
	return tx->put - tx->sent;
}

/* Bytes that may be written to the peer now, in one piece. */
static uint32_t tx_room(const struct vkr_stream *s)
{
	const struct vkr_tx *tx = &s->tx;

	if (!tx->have_ring || sq_free(s) <= VKR_SEND_CONTROL || tx->msgs - tx->proven >= tx->bound)
		return 0;
	return tx->len - tx->off;
}

static uint32_t stage_space(const struct vkr_tx *tx)
{
	uint32_t used = tx->put - tx->freed;

	/* It can still grow while none of it is being sent. */
	if (tx->sent == tx->freed)
		return VKR_STAGE_MAX - used;
	return tx->cap - used;
}

static void space_check(struct vkr_stream *s)
{
	if (s->nospace && stage_space(&s->tx) >= VKR_STAGE_MAX / 4)
		s->nospace = false;
}

void vkr_tx_completed(struct vkr_stream *s, uint32_t seq)
{
	struct vkr_tx *tx = &s->tx;
	uint32_t n = ((seq - tx->completed) & VKR_WR_SEQ) + 1;

	if (n > tx->posted - tx->completed)
		return; /* cannot be; a provider's mistake must not become ours */
	while (n--) {
		uint32_t *staged = &tx->staged[tx->completed++ % VKR_SEND_DEPTH];

		tx->freed += *staged;
		*staged = 0;
	}
	space_check(s);
}

void vkr_tx_ring(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey)
{
	struct vkr_tx *tx = &s->tx;

	/* A new ring that answers the last byte of the old one: all up to it has been received and reposted. */
	if (tx->have_ring && tx->off == tx->len)
		vkr_tx_proven(s, tx->data_mark);
	tx->addr = addr;
	tx->len = len;
	tx->rkey = rkey;
	tx->off = 0;
	s->stall_counted = false;
	tx->have_ring = true;
}

void vkr_tx_proven(struct vkr_stream *s, uint32_t mark)
{
	struct vkr_tx *tx = &s->tx;

	if ((int32_t)(mark - tx->proven) > 0)
		tx->proven = mark;
	if (tx->probing && (int32_t)(tx->proven - tx->probe_mark) >= 0)
		tx->probing = false;
}

bool vkr_tx_drained(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	return tx->put == tx->sent && tx->posted == tx->completed && !tx->control;
}

/* ------------------------------------------------------------------ posting */

static void chain_post(struct vkr_stream *s, struct chain *c)
{
	struct ibv_send_wr *bad;
	int i, ret;

	if (!c->n)
		return;
	for (i = 0; i < c->n; i++)
		c->wr[i].next = i + 1 < c->n ? &c->wr[i + 1] : NULL;
	ret = ibv_post_send(s->qp, c->wr, &bad);
	c->n = c->n_sge = 0;
	if (ret) {
		vkr_info("a send could not be posted: error %d", ret > 0 ? ret : errno);
		vkr_stream_break(s, ECONNRESET);
	}
}

static bool chain_full(const struct chain *c)
{
	return c->n == CHAIN || c->n_sge > CHAIN;
}

static struct ibv_send_wr *chain_next(struct vkr_stream *s, struct chain *c, bool signaled)
{
	struct ibv_send_wr *wr = &c->wr[c->n++];
	struct vkr_tx *tx = &s->tx;

	memset(wr, 0, sizeof(*wr));
	wr->wr_id = (uint64_t)s->ep.generation << 32 | (tx->posted & VKR_WR_SEQ);
	wr->sg_list = &c->sge[c->n_sge];
	tx->posted++;
	if (++tx->unsignaled >= VKR_SEND_SIGNAL || signaled) {
		wr->send_flags |= IBV_SEND_SIGNALED;
		tx->unsignaled = 0;
	}
	return wr;
}

static void chain_sge(struct chain *c, struct ibv_send_wr *wr, const void *p, uint32_t n, uint32_t lkey)
{
	c->sge[c->n_sge++] = (struct ibv_sge){.addr = (uintptr_t)p, .length = n, .lkey = lkey};
	wr->num_sge++;
}

/* A data message of n bytes; the caller adds the SGEs. */
static struct ibv_send_wr *chain_data(struct vkr_stream *s, struct chain *c, uint32_t n, bool signaled)
{
	struct ibv_send_wr *wr = chain_next(s, c, signaled);
	struct vkr_tx *tx = &s->tx;

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->imm_data = htonl(n);
	wr->wr.rdma.remote_addr = tx->addr + tx->off;
	wr->wr.rdma.rkey = tx->rkey;
	tx->off += n;
	tx->data_mark = ++tx->msgs;
	vkr_count(&s->stats->immediates_out, 1);
	vkr_count(&s->stats->bytes_out, n);
	return wr;
}

/* Always signaled: the last data requests' completion becomes known with it, and a slot is free again. */
static void chain_control(struct vkr_stream *s, struct chain *c, const struct vkr_message *m)
{
	struct ibv_send_wr *wr = chain_next(s, c, true);
	uint8_t *body = c->ctl[c->n - 1];
	uint32_t lkey = 0;

	if (s->inline_max >= VKR_WIRE_SIZE) {
		wr->send_flags |= IBV_SEND_INLINE;
	} else {
		/* Not more than CTL_SLOTS are in flight: tx_control() looks before. */
		body = s->ctl + (size_t)(VKR_RECV_DEPTH + (s->tx.posted - 1) % CTL_SLOTS) * VKR_WIRE_SIZE;
		lkey = s->ctl_mr->lkey;
	}
	vkr_wire_encode(m, body);
	wr->opcode = IBV_WR_SEND;
	chain_sge(c, wr, body, VKR_WIRE_SIZE, lkey);
	s->tx.msgs++;
	vkr_count(&s->stats->sends_out, 1);
}

static void control_refresh(struct vkr_stream *s, struct vkr_message *m)
{
	const struct vkr_rx_ring *ring = &s->rx[s->wr];

	m->opcode = VKR_OP_REGISTER_XFER_MEMORY;
	m->address = (uintptr_t)ring->buf;
	m->length = ring->len;
	m->rkey = ring->mr->rkey;
	vkr_count(&s->stats->refreshes_out, 1);
}

static void control_probe(struct vkr_stream *s, struct vkr_message *m)
{
	struct vkr_tx *tx = &s->tx;

	tx->probing = true;
	tx->probe_mark = tx->msgs;
	m->opcode = VKR_OP_GET_SERVER_FEATURE;
	m->select = ++tx->probe_token;
	m->features = s->peer_kind == VKR_PEER_SHIM ? 1 : 0;
}

static void control_echo(struct vkr_tx *tx, struct vkr_message *m)
{
	m->opcode = VKR_OP_GET_SERVER_FEATURE;
	m->select = tx->echoes[0];
	memmove(tx->echoes, tx->echoes + 1, sizeof(tx->echoes[0]) * (size_t)--tx->n_echoes);
}

/* The next control message in order of urgency; the FIN goes behind the last byte. 0: none may go now. */
static unsigned control_next(const struct vkr_tx *tx)
{
	static const unsigned order[] = {VKR_CTL_REFRESH, VKR_CTL_ECHO, VKR_CTL_PROBE, VKR_CTL_RESET};
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(order); i++)
		if (tx->control & order[i])
			return order[i];
	return tx->control & VKR_CTL_FIN && tx->put == tx->sent ? VKR_CTL_FIN : 0;
}

static void tx_control(struct vkr_stream *s, struct chain *c)
{
	struct vkr_tx *tx = &s->tx;
	struct vkr_message m;
	unsigned next;

	while ((next = control_next(tx)) && sq_free(s) > 0) {
		if (s->inline_max < VKR_WIRE_SIZE && tx->posted - tx->completed >= CTL_SLOTS)
			return; /* a completion brings us back */
		if (chain_full(c))
			chain_post(s, c);
		memset(&m, 0, sizeof(m));
		if (next == VKR_CTL_REFRESH)
			control_refresh(s, &m);
		else if (next == VKR_CTL_PROBE)
			control_probe(s, &m);
		else if (next == VKR_CTL_ECHO)
			control_echo(tx, &m);
		else
			m.opcode = next == VKR_CTL_FIN ? VKR_OP_FIN : VKR_OP_RESET;
		if (next != VKR_CTL_ECHO || !tx->n_echoes)
			tx->control &= ~next;
		chain_control(s, c, &m);
	}
}

static void tx_staged(struct vkr_stream *s, struct chain *c)
{
	struct vkr_tx *tx = &s->tx;

	while (queued(tx)) {
		uint32_t at = tx->sent % (tx->cap ? tx->cap : 1), room = tx_room(s), n;
		struct ibv_send_wr *wr;
		bool inl, held;

		if (!room)
			return;
		n = vkr_min(queued(tx), vkr_min(room, vkr_min(VKR_WRITE_MAX, tx->cap - at)));
		if (!tx->mr)
			n = vkr_min(n, s->inline_max);
		inl = n <= s->inline_max;
		/* Posting copies inline data; and the chain is posted, under this lock, before the space is used again.
		 * Space is given back in order, though. */
		held = !inl || tx->sent != tx->freed;
		if (chain_full(c))
			chain_post(s, c);
		/* Staging is awaited by somebody, or will be: the last request of a batch that holds some says when. */
		wr = chain_data(s, c, n, held && (n == queued(tx) || tx->put - tx->freed > tx->cap / 2));
		chain_sge(c, wr, tx->buf + at, n, tx->mr ? tx->mr->lkey : 0);
		if (inl)
			wr->send_flags |= IBV_SEND_INLINE;
		tx->sent += n;
		if (held)
			tx->staged[(tx->posted - 1) % VKR_SEND_DEPTH] = n;
		else
			tx->freed += n;
	}
}

static void probe_check(struct vkr_tx *tx)
{
	if (tx->bound != VKR_NO_BOUND && !tx->probing && tx->msgs - tx->proven >= tx->bound / 2)
		tx->control |= VKR_CTL_PROBE;
}

void vkr_tx_push(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;
	struct chain c;

	if (!tx->ready || (!tx->control && !queued(tx)))
		return;
	c.n = c.n_sge = 0;
	tx_control(s, &c);
	tx_staged(s, &c);
	probe_check(tx);
	tx_control(s, &c);
	chain_post(s, &c);
	space_check(s);
}

void vkr_tx_marker(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;
	struct ibv_send_wr *wr;
	struct chain c;

	if (!tx->ready || !tx->unsignaled || queued(tx) || !sq_free(s))
		return;
	/* A zero-length write takes no receive at the peer. */
	c.n = c.n_sge = 0;
	wr = chain_next(s, &c, true);
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = tx->addr;
	wr->wr.rdma.rkey = tx->rkey;
	chain_post(s, &c);
}

void vkr_tx_probe(struct vkr_stream *s)
{
	struct ibv_send_wr *wr;
	struct chain c;

	if (!s->tx.ready || !sq_free(s))
		return;
	/* Signaled only where a count of what is unanswered has a meaning for the application. */
	c.n = c.n_sge = 0;
	wr = chain_next(s, &c, s->wr_shut);
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = s->tx.addr;
	wr->wr.rdma.rkey = s->tx.rkey;
	chain_post(s, &c);
}

/* ------------------------------------------------------------------ staging */

void vkr_tx_release(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	vkr_mr_deregister(tx->mr, &s->stats->mem_mr);
	tx->mr = NULL;
	vkr_arena_free(tx->buf, tx->cap);
	tx->buf = NULL;
	tx->cap = 0;
	tx->put = tx->sent = tx->freed = 0;
}

bool vkr_tx_trim(struct vkr_stream *s)
{
	if (s->tx.buf && s->tx.put == s->tx.freed)
		vkr_tx_release(s);
	return !s->tx.buf;
}

/* Staging of at least `want` bytes if it can be had; false if there is none at all. */
static bool stage_grow(struct vkr_stream *s, uint32_t want)
{
	struct vkr_tx *tx = &s->tx;
	uint32_t cap = vkr_max(tx->cap, VKR_STAGE_FIRST), n = queued(tx), at, head;
	struct ibv_mr *mr = NULL;
	uint8_t *buf;

	while (cap < want && cap < VKR_STAGE_MAX)
		cap *= 2;
	if (tx->cap >= cap || tx->sent != tx->freed)
		return tx->cap > 0;
	buf = vkr_arena_alloc(cap);
	/* Cheap inline takes everything: nothing to register. */
	if (buf && s->inline_max < VKR_WRITE_MAX) {
		mr = vkr_mr_register(s->pd, buf, cap, IBV_ACCESS_LOCAL_WRITE, &s->stats->mem_mr);
		if (!mr) {
			vkr_arena_free(buf, cap);
			buf = NULL;
		}
	}
	if (!buf)
		return tx->cap > 0;
	if (n) {
		at = tx->sent % tx->cap;
		head = vkr_min(n, tx->cap - at);
		memcpy(buf, tx->buf + at, head);
		memcpy(buf + head, tx->buf, n - head);
	}
	vkr_tx_release(s);
	tx->buf = buf;
	tx->cap = cap;
	tx->mr = mr;
	tx->put = n;
	vkr_trim_later();
	return true;
}

struct iov_cursor {
	const struct iovec *iov;
	const struct iovec *end;
	size_t off;
};

static void gather(struct iov_cursor *c, uint8_t *to, size_t n)
{
	while (n) {
		size_t part = vkr_min(c->iov->iov_len - c->off, n);

		if (part)
			memcpy(to, (const char *)c->iov->iov_base + c->off, part);
		to += part;
		n -= part;
		c->off += part;
		if (c->off == c->iov->iov_len) {
			c->iov++;
			c->off = 0;
		}
	}
}

static size_t tx_stage(struct vkr_stream *s, struct iov_cursor *c, size_t left)
{
	struct vkr_tx *tx = &s->tx;
	size_t done = 0;

	if (!stage_grow(s, (uint32_t)vkr_min((size_t)queued(tx) + left, (size_t)VKR_STAGE_MAX)))
		return 0;
	while (done < left && !s->broken) {
		uint32_t at = tx->put % tx->cap, space = tx->cap - (tx->put - tx->freed);
		size_t n = vkr_min(left - done, (size_t)vkr_min(space, tx->cap - at));

		if (n) {
			gather(c, tx->buf + at, n);
			tx->put += (uint32_t)n;
			done += n;
		}
		/* Full, or all is in: what goes out now may leave room at once. If it does not, a completion or the
		 * peer's message will, and finds nospace set. */
		if (n == space || done == left)
			vkr_tx_push(s);
		if (!n && tx->cap == tx->put - tx->freed)
			break;
	}
	return done;
}

/* ------------------------------------------------------------------ straight from the caller's memory */

/* SGEs over the next n bytes, as many as a request holds; the bytes they cover. */
static uint32_t direct_sges(struct vkr_stream *s, struct iov_cursor *c, uint32_t n, struct ibv_sge *sge, int *count)
{
	uint32_t done = 0;

	*count = 0;
	while (done < n && *count < s->max_sge) {
		size_t part = vkr_min(c->iov->iov_len - c->off, (size_t)(n - done));

		if (part) {
			sge[(*count)++] =
			    (struct ibv_sge){.addr = (uintptr_t)c->iov->iov_base + c->off, .length = (uint32_t)part};
			done += (uint32_t)part;
			c->off += part;
		}
		if (c->off == c->iov->iov_len) {
			c->iov++;
			c->off = 0;
		}
	}
	return done;
}

static size_t tx_direct(struct vkr_stream *s, struct iov_cursor *c, size_t left)
{
	struct ibv_sge sge[VKR_MAX_SGE];
	struct chain chain; /* not cleared: it is large, and what is used gets set */
	size_t done = 0;

	chain.n = chain.n_sge = 0;

	while (done < left) {
		uint32_t max = vkr_min(s->inline_max, VKR_WRITE_MAX), room = tx_room(s), n;
		struct ibv_send_wr *wr;
		int count;

		if (!room)
			break;
		n = direct_sges(s, c, (uint32_t)vkr_min(left - done, (size_t)vkr_min(room, max)), sge, &count);
		if (chain.n == CHAIN || chain.n_sge + count > (int)VKR_ARRAY_SIZE(chain.sge))
			chain_post(s, &chain);
		wr = chain_data(s, &chain, n, false);
		wr->send_flags |= IBV_SEND_INLINE;
		memcpy(&chain.sge[chain.n_sge], sge, sizeof(sge[0]) * (size_t)count);
		chain.n_sge += count;
		wr->num_sge = count;
		done += n;
	}
	chain_post(s, &chain);
	probe_check(&s->tx);
	if (s->tx.control)
		vkr_tx_push(s);
	return done;
}

/* ------------------------------------------------------------------ rdma.h */

/* True: go on; else *ret is what send returns. The order is tcp_sendmsg()'s. */
static bool send_check(struct vkr_stream *s, size_t total, ssize_t *ret)
{
	int err = s->error;

	if (vkr_load(&s->state) != VKR_STREAM_OPEN) {
		*ret = -EAGAIN;
	} else if (err) {
		s->error = 0;
		vkr_stream_update(s, 0);
		*ret = -err;
	} else if (s->wr_shut || s->reset) {
		*ret = -EPIPE;
	} else if (!total) {
		*ret = 0;
	} else if (s->peer_closed) {
		/* TCP would take these bytes and learn from the answer that nobody is there. */
		s->error = EPIPE;
		s->reset = true;
		vkr_stream_update(s, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
		*ret = (ssize_t)total;
	} else {
		return true;
	}
	return false;
}

static void cursor_skip(struct iov_cursor *c, size_t n)
{
	while (n) {
		size_t part = vkr_min(c->iov->iov_len - c->off, n);

		n -= part;
		c->off += part;
		if (c->off == c->iov->iov_len) {
			c->iov++;
			c->off = 0;
		}
	}
}

/* More iovecs than a request holds and few bytes: one message instead of many. */
static size_t tx_gathered(struct vkr_stream *s, struct iov_cursor *c, size_t total)
{
	uint8_t copy[GATHER_MAX];
	struct iovec one = {.iov_base = copy, .iov_len = total};
	struct iov_cursor flat = {.iov = &one, .end = &one + 1}, from = *c;
	size_t done;

	gather(&from, copy, total);
	done = tx_direct(s, &flat, total);
	cursor_skip(c, done);
	return done;
}

static size_t tx_first(struct vkr_stream *s, struct iov_cursor *c, size_t total)
{
	if (queued(&s->tx) || !s->tx.ready || !(total <= s->inline_max || s->inline_max >= INLINE_CHEAP))
		return 0;
	if (c->end - c->iov > s->max_sge && total <= GATHER_MAX)
		return tx_gathered(s, c, total);
	return tx_direct(s, c, total);
}

ssize_t vkr_stream_send(struct vkr_stream *s, const struct iovec *iov, int iovcnt)
{
	struct iov_cursor c = {.iov = iov, .end = iov + iovcnt};
	size_t total = 0, done = 0;
	ssize_t ret;
	int i;

	for (i = 0; i < iovcnt; i++)
		total += iov[i].iov_len;
	vkr_depth++;
	pthread_mutex_lock(&s->p.lock);
	if (send_check(s, total, &ret)) {
		done = tx_first(s, &c, total);
		if (done < total && !s->broken)
			done += tx_stage(s, &c, total - done);
		if (queued(&s->tx) && !s->stall_counted) {
			s->stall_counted = true;
			vkr_count(&s->stats->stalls, 1);
		}
		if (done < total)
			s->nospace = true;
		ret = done ? (ssize_t)done : s->tx.cap || s->broken ? -EAGAIN : -ENOMEM;
		vkr_stream_update(s, 0);
	}
	pthread_mutex_unlock(&s->p.lock);
	vkr_depth--;
	return ret;
}

size_t vkr_stream_outq(struct vkr_stream *s)
{
	size_t n;

	pthread_mutex_lock(&s->p.lock);
	n = s->tx.put - s->tx.freed;
	pthread_mutex_unlock(&s->p.lock);
	return n;
}

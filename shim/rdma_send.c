/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A stream's sending half. Bytes go straight from the caller's memory where the device takes them inline and nothing is
 * queued; else through the staging ring. What cannot go (the peer's ring is full, too many messages are outstanding,
 * the send queue is full) waits there and leaves as one write when it can.
 */
#include "rdma_chain.h"
#include "spin.h"

#include "iov.h"
#include "socket.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

/* Inline is worth splitting a send for only where it is large. */
#define INLINE_CHEAP (16u << 10)
#define GATHER_MAX   8192
/* What a partial send makes a program move costs it about as long as a poll for each so many bytes. */
#define PATIENCE_BYTES (1u << 20)

/* ------------------------------------------------------------------ accounting */

static uint32_t queued(const struct vkr_tx *tx)
{
	return tx->put - tx->sent;
}

static uint32_t ring_room(const struct vkr_stream *s)
{
	const struct vkr_tx *tx = &s->tx;

	return tx->msgs - tx->proven >= tx->bound ? 0
	       : s->credits                       ? tx->len - (tx->pos - tx->floor)
						  : tx->len - tx->off;
}

static VKR_COLD uint32_t room_look(struct vkr_stream *s)
{
	vkr_credit_look(s);
	return s->broken ? 0 : ring_room(s);
}

/* Bytes that may be written to the peer now in one message; with credits up to `want` of them may take a look. */
static inline uint32_t tx_room(struct vkr_stream *s, uint32_t want)
{
	struct vkr_tx *tx = &s->tx;
	uint32_t room;

	if (!tx->have_ring || vkr_sq_free(s) <= VKR_SEND_CONTROL || tx->control & (VKR_CTL_SWITCH | VKR_CTL_RETURN))
		return 0;
	room = ring_room(s);
	return vkr_likely(room >= want || !s->credits) ? room : room_look(s);
}

/* In the staging as large as it is. */
static uint32_t cap_space(const struct vkr_tx *tx)
{
	uint32_t used = tx->put - tx->freed, most = vkr_min(tx->limit, tx->cap);

	return used < most ? most - used : 0;
}

static uint32_t stage_space(const struct vkr_tx *tx)
{
	uint32_t used = tx->put - tx->freed;

	/* It can still grow while none of it is being sent. */
	if (tx->sent == tx->freed)
		return used < tx->limit ? tx->limit - used : 0;
	return cap_space(tx);
}

static void space_check(struct vkr_stream *s)
{
	if (s->nospace && stage_space(&s->tx) >= s->tx.limit / 4)
		s->nospace = false;
}

void vkr_stream_sndbuf(struct vkr_stream *s, uint32_t bytes)
{
	vkr_depth++;
	pthread_mutex_lock(&s->p.lock);
	s->tx.limit = vkr_min(bytes, VKR_STAGE_MAX);
	space_check(s);
	vkr_stream_update(s, 0);
	pthread_mutex_unlock(&s->p.lock);
	vkr_depth--;
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

	if (s->credits) {
		vkr_credit_ring(s, addr, len, rkey);
		return;
	}
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

bool vkr_tx_fin_done(const struct vkr_stream *s)
{
	const struct vkr_tx *tx = &s->tx;

	return !(tx->control & VKR_CTL_FIN) && (int32_t)(tx->completed - tx->fin_mark) >= 0;
}

/* ------------------------------------------------------------------ posting */

static void message_ring(struct vkr_message *m, const struct vkr_rx_ring *ring)
{
	m->address = (uintptr_t)ring->buf;
	m->length = ring->len;
	m->rkey = ring->mr->rkey;
}

static void message_probe(struct vkr_stream *s, struct vkr_message *m)
{
	struct vkr_tx *tx = &s->tx;

	tx->probing = true;
	tx->probe_mark = tx->msgs;
	m->opcode = VKR_OP_GET_SERVER_FEATURE;
	m->select = ++tx->probe_token;
	m->features = s->peer_kind == VKR_PEER_SHIM ? 1 : 0;
}

static void message_echo(struct vkr_tx *tx, struct vkr_message *m)
{
	m->opcode = VKR_OP_GET_SERVER_FEATURE;
	m->select = tx->echoes[0];
	memmove(tx->echoes, tx->echoes + 1, sizeof(tx->echoes[0]) * (size_t)--tx->n_echoes);
}

static void control_message(struct vkr_stream *s, struct vkr_chain *c, unsigned what)
{
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	switch (what) {
	case VKR_CTL_REFRESH:
		m.opcode = VKR_OP_REGISTER_XFER_MEMORY;
		message_ring(&m, &s->rx[s->wr]);
		vkr_count(&s->stats->refreshes_out, 1);
		break;
	case VKR_CTL_OFFER:
		m.opcode = VKR_OP_OFFER;
		message_ring(&m, &s->rx[1 - s->wr]);
		vkr_count(&s->stats->rings_out, 1);
		break;
	case VKR_CTL_LEND:
		m.opcode = VKR_OP_LEND;
		message_ring(&m, &s->rx[1 - s->wr]);
		vkr_count(&s->stats->rings_out, 1);
		break;
	case VKR_CTL_PROBE:
		message_probe(s, &m);
		break;
	case VKR_CTL_ECHO:
		message_echo(&s->tx, &m);
		break;
	default:
		m.opcode = what == VKR_CTL_FIN ? VKR_OP_FIN : VKR_OP_RESET;
	}
	vkr_chain_message(s, c, &m);
}

/* Not if credit has come meanwhile: then the bytes go instead. */
static void control_wake(struct vkr_stream *s, struct vkr_chain *c)
{
	struct vkr_tx *tx = &s->tx;
	bool full = tx->pos - tx->floor == tx->len;

	if (!full && tx->msgs - tx->proven < tx->bound)
		return;
	tx->waking = true;
	vkr_count(&s->stats->wakes_out, 1);
	vkr_chain_imm(s, c, full ? VKR_IMM_WAKE_BYTES : VKR_IMM_WAKE_MESSAGES, full ? tx->floor : tx->proven);
}

/* What is an immediate between two shims with credits. */
static void control_immediate(struct vkr_stream *s, struct vkr_chain *c, unsigned what)
{
	if (what == VKR_CTL_WAKE)
		control_wake(s, c);
	else if (what == VKR_CTL_SWITCH)
		vkr_chain_imm(s, c, VKR_IMM_SWITCH, s->tx.pos);
	else if (what == VKR_CTL_MUCH || what == VKR_CTL_RETURN)
		vkr_chain_imm(s, c, what == VKR_CTL_MUCH ? VKR_IMM_MUCH : VKR_IMM_RETURN, s->tx.pos);
	else if (what == VKR_CTL_FIN)
		vkr_chain_imm(s, c, VKR_IMM_FIN, s->tx.pos);
	else if (what == VKR_CTL_RESET)
		vkr_chain_imm(s, c, VKR_IMM_RESET, 0);
	else if (what == VKR_CTL_OPEN || what == VKR_CTL_KEEP)
		vkr_chain_imm(s, c, what == VKR_CTL_OPEN ? VKR_IMM_OPEN : VKR_IMM_KEEP, s->tx.pos);
	else
		vkr_chain_credit(s, c, what == VKR_CTL_GRANT);
}

/* The next thing to say in order of urgency; the FIN goes behind the last byte. 0: none may go now. */
static unsigned control_next(const struct vkr_tx *tx)
{
	unsigned first = tx->control & ~(unsigned)VKR_CTL_FIN;

	if (first) /* the bits are in order, but for the end of the stream */
		return first & -first;
	return tx->control & VKR_CTL_FIN && tx->put == tx->sent ? VKR_CTL_FIN : 0;
}

static bool is_immediate(const struct vkr_stream *s, unsigned what)
{
	return s->credits && !(what & (VKR_CTL_OFFER | VKR_CTL_LEND | VKR_CTL_PROBE | VKR_CTL_ECHO));
}

static void tx_control(struct vkr_stream *s, struct vkr_chain *c)
{
	struct vkr_tx *tx = &s->tx;
	unsigned next;

	while ((next = control_next(tx)) && vkr_sq_free(s) > 0) {
		vkr_chain_room(s, c, 1, 1);
		if (is_immediate(s, next)) {
			tx->control &= ~next;
			control_immediate(s, c, next);
		} else {
			if (s->inline_max < VKR_WIRE_SIZE && tx->posted - tx->completed >= VKR_CTL_SLOTS)
				return; /* a completion brings us back */
			control_message(s, c, next);
			if (next != VKR_CTL_ECHO || !tx->n_echoes)
				tx->control &= ~next;
		}
		if (next == VKR_CTL_FIN)
			tx->fin_mark = tx->posted;
	}
}

/* Once for a chain that carries data anyway. */
static void tx_ride(struct vkr_stream *s, struct vkr_chain *c)
{
	if (vkr_credit_rides(s) && vkr_sq_free(s) > VKR_SEND_CONTROL)
		vkr_chain_credit(s, c, false);
}

/* n bytes of staging from position `pos` on; at its end they are in two pieces. */
static void stage_sges(const struct vkr_tx *tx, struct vkr_chain *c, struct ibv_send_wr *wr, uint32_t pos, uint32_t n,
		       bool inl)
{
	uint32_t lkey = tx->mr ? tx->mr->lkey : 0, at = pos % tx->cap, head = vkr_min(n, tx->cap - at);

	vkr_chain_sge(c, wr, tx->buf + at, head, lkey);
	if (head < n)
		vkr_chain_sge(c, wr, tx->buf, n - head, lkey);
	if (inl)
		wr->send_flags |= IBV_SEND_INLINE;
}

/* The next n bytes of staging as one message. */
static void tx_message(struct vkr_stream *s, struct vkr_chain *c, uint32_t n)
{
	struct vkr_tx *tx = &s->tx;
	uint32_t part = vkr_min(n, tx->len - tx->off), pos = tx->sent;
	bool inl = n <= s->inline_max, held;

	/* Posting copies inline data; and the chain is posted, under this lock, before the space is used again.
	 * Space is given back in order, though. */
	held = !inl || tx->sent != tx->freed;
	vkr_chain_room(s, c, 2, 4);
	if (part < n) {
		stage_sges(tx, c, vkr_chain_write(s, c, part), pos, part, inl);
		pos += part;
		part = n - part;
	}
	/* Staging is awaited by somebody, or will be: the last request of a batch that holds some says when. */
	stage_sges(tx, c, vkr_chain_data(s, c, part, n, held && (n == queued(tx) || tx->put - tx->freed > tx->cap / 2)),
		   pos, part, inl);
	tx->sent += n;
	if (held)
		tx->staged[(tx->posted - 1) % VKR_SEND_DEPTH] = n;
	else
		tx->freed += n;
}

static void tx_staged(struct vkr_stream *s, struct vkr_chain *c)
{
	struct vkr_tx *tx = &s->tx;

	while (queued(tx)) {
		uint32_t n = vkr_min(queued(tx), VKR_WRITE_MAX), room = tx_room(s, n);

		if (!room)
			return;
		n = vkr_min(n, room);
		if (s->max_sge < 2)
			n = vkr_min(n, tx->cap - tx->sent % tx->cap);
		if (!tx->mr)
			n = vkr_min(n, s->inline_max);
		tx_message(s, c, n);
	}
}

/* What lacks is room at the peer, not in our own send queue. */
static bool peer_full(const struct vkr_tx *tx)
{
	return tx->have_ring && (tx->pos - tx->floor == tx->len || tx->msgs - tx->proven >= tx->bound);
}

/* What is queued waits for the peer, not for our own send queue: on the native wire its answer to a probe tells how
 * many receives it has posted, with credits it has to be asked when it has not told enough. */
static inline void tx_wait(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	if (!s->credits) {
		if (tx->bound != VKR_NO_BOUND && !tx->probing && tx->msgs - tx->proven >= tx->bound / 2)
			tx->control |= VKR_CTL_PROBE;
	} else if (queued(tx) && peer_full(tx)) {
		vkr_credit_sleep(s);
	}
}

void vkr_tx_push(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;
	struct vkr_chain c;

	if (!tx->ready || (!tx->control && !queued(tx)))
		return;
	vkr_chain_begin(&c);
	tx_control(s, &c);
	if (queued(tx))
		tx_ride(s, &c);
	tx_staged(s, &c);
	tx_wait(s);
	tx_control(s, &c);
	vkr_chain_post(s, &c);
	space_check(s);
}

/* A write of nothing: it takes no receive at the peer. */
static void tx_nothing(struct vkr_stream *s, bool signaled)
{
	struct ibv_send_wr *wr;
	struct vkr_chain c;

	vkr_chain_begin(&c);
	wr = vkr_chain_next(s, &c, signaled);
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr.rdma.remote_addr = s->tx.addr;
	wr->wr.rdma.rkey = s->tx.rkey;
	vkr_chain_post(s, &c);
}

void vkr_tx_marker(struct vkr_stream *s)
{
	if (s->tx.ready && s->tx.unsignaled && !queued(&s->tx) && vkr_sq_free(s))
		tx_nothing(s, true);
}

void vkr_tx_probe(struct vkr_stream *s)
{
	/* Signaled only where a count of what is unanswered has a meaning for the application. */
	if (s->tx.ready && vkr_sq_free(s))
		tx_nothing(s, s->wr_shut);
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
	if (s->tx.borrowed && s->tx.pos == s->tx.loan_mark) {
		vkr_credit_return(s);
		vkr_tx_push(s);
	}
	s->tx.loan_mark = s->tx.pos;
	return !s->tx.buf && !s->tx.borrowed;
}

/* NULL: it cannot be had. Cheap inline takes everything: nothing to register. */
static uint8_t *stage_memory(struct vkr_stream *s, uint32_t cap, struct ibv_mr **mr)
{
	uint8_t *buf = vkr_arena_alloc(cap);

	if (!buf || s->inline_max >= VKR_WRITE_MAX)
		return buf;
	*mr = vkr_mr_register(s->pd, buf, cap, IBV_ACCESS_LOCAL_WRITE, &s->stats->mem_mr);
	if (*mr)
		return buf;
	vkr_arena_free(buf, cap);
	return NULL;
}

/* Staging of at least `want` bytes, or of as much as can be had; false if there is none at all. */
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
	/* Memory that may be locked can be short: as long as anything moves, the connection lives. */
	while (!(buf = stage_memory(s, cap, &mr))) {
		cap /= 2;
		if (cap <= tx->cap || cap < VKR_STAGE_LEAST)
			return tx->cap > 0;
	}
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

static size_t tx_stage(struct vkr_stream *s, struct vkr_iov *c, size_t left)
{
	struct vkr_tx *tx = &s->tx;
	size_t done = 0;

	if (!stage_grow(s, (uint32_t)vkr_min((size_t)queued(tx) + left, (size_t)tx->limit)))
		return 0;
	while (done < left && !s->broken) {
		uint32_t at = tx->put % tx->cap, space = cap_space(tx);
		size_t n = vkr_min(left - done, (size_t)vkr_min(vkr_min(space, tx->cap - at), VKR_WRITE_MAX));

		if (n) {
			vkr_iov_gather(c, tx->buf + at, n);
			tx->put += (uint32_t)n;
			done += n;
		}
		/* Piece by piece, so that the first is on its way while the next is copied. What goes out now may leave
		 * room at once. If it does not, a completion or the peer's message will, and finds nospace set. */
		if (n == space || done == left || queued(tx) >= VKR_WRITE_MAX)
			vkr_tx_push(s);
		if (!n && !cap_space(tx))
			break;
	}
	return done;
}

/* ------------------------------------------------------------------ straight from the caller's memory */

/* SGEs over the next n bytes, as many as a request holds; the bytes they cover. */
static uint32_t direct_sges(struct vkr_stream *s, struct vkr_iov *c, uint32_t n, struct ibv_sge *sge, int *count)
{
	uint32_t done = 0;
	size_t part;
	void *at;

	*count = 0;
	while (done < n && *count < s->max_sge) {
		part = vkr_iov_piece(c, n - done, &at);
		sge[(*count)++] = (struct ibv_sge){.addr = (uintptr_t)at, .length = (uint32_t)part};
		done += (uint32_t)part;
	}
	return done;
}

static void direct_request(struct vkr_chain *c, struct ibv_send_wr *wr, int count)
{
	wr->send_flags |= IBV_SEND_INLINE;
	wr->num_sge = count;
	c->n_sge += count;
}

/* One message of up to n bytes; how many it took. The entries lie in the chain before their request is begun, since
 * only they tell how much it holds. */
static uint32_t direct_message(struct vkr_stream *s, struct vkr_chain *c, struct vkr_iov *cur, uint32_t n)
{
	uint32_t to_end = s->tx.len - s->tx.off, part, before = 0;
	int count;

	vkr_chain_room(s, c, 2, 2 * VKR_MAX_SGE);
	part = direct_sges(s, cur, vkr_min(n, to_end), &c->sge[c->n_sge], &count);
	if (vkr_unlikely(part == to_end && part < n)) {
		direct_request(c, vkr_chain_write(s, c, part), count);
		before = part;
		part = direct_sges(s, cur, n - before, &c->sge[c->n_sge], &count);
	}
	direct_request(c, vkr_chain_data(s, c, part, before + part, false), count);
	return before + part;
}

/* A ring is full and far more than it holds is to be written: the peer may have a larger one for a while. */
static void loan_ask(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	if (!(s->features & VKR_FEAT_LEND) || tx->borrowed || (int32_t)(tx->acked.bytes - tx->asked_at) < 0)
		return;
	tx->much = true;
	tx->asked_at = tx->pos;
	tx->control |= VKR_CTL_MUCH;
	vkr_tx_push(s);
}

/* The peer reads all the time where much is sent: its next credit is near. */
static uint32_t room_soon(struct vkr_stream *s, uint32_t want, size_t left)
{
	if (!s->credits || !peer_full(&s->tx) ||
	    !vkr_spin_word(s->word, vkr_wire_credit_encode(&s->tx.acked), (unsigned)(left / PATIENCE_BYTES)))
		return 0;
	return tx_room(s, want);
}

static size_t tx_direct(struct vkr_stream *s, struct vkr_iov *cur, size_t left, unsigned how)
{
	uint32_t max = vkr_min(s->inline_max, VKR_WRITE_MAX), chained = 0;
	/* Others want the lock too. */
	size_t done = 0, most = how & VKR_IO_EAGER ? vkr_min(left, (size_t)VKR_STAGE_MAX) : left;
	struct vkr_chain c;

	vkr_chain_begin(&c);
	tx_ride(s, &c);
	while (done < most && !s->broken) {
		uint32_t n = (uint32_t)vkr_min(most - done, (size_t)max), room = tx_room(s, n);

		if (!room && how & VKR_IO_EAGER) {
			vkr_chain_post(s, &c);
			chained = 0;
			if (left - done >= 2 * VKR_RING_MAX)
				loan_ask(s);
			room = room_soon(s, n, left - done);
		}
		if (!room)
			break;
		n = direct_message(s, &c, cur, vkr_min(n, room));
		done += n;
		chained += n;
		/* The first bytes of much are on their way while the next are copied. */
		if (chained >= VKR_WRITE_MAX) {
			vkr_chain_post(s, &c);
			chained = 0;
		}
	}
	vkr_chain_post(s, &c);
	tx_wait(s);
	if (s->tx.control)
		vkr_tx_push(s);
	return done;
}

/* ------------------------------------------------------------------ rdma.h */

/* True: go on; else *ret is what send returns. The order is tcp_sendmsg()'s. */
static bool send_check(struct vkr_stream *s, size_t total, unsigned how, ssize_t *ret)
{
	int err = s->error;

	if (vkr_load(&s->state) != VKR_STREAM_OPEN) {
		*ret = -EAGAIN;
	} else if (err) {
		if (!(how & VKR_IO_MORE)) {
			s->error = 0;
			vkr_stream_update(s, 0);
		}
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

/* More iovecs than a request holds and few bytes: one message instead of many. */
static size_t tx_gathered(struct vkr_stream *s, struct vkr_iov *c, size_t total)
{
	uint8_t copy[GATHER_MAX];
	struct iovec one = {.iov_base = copy, .iov_len = total};
	struct vkr_iov flat = {.iov = &one, .end = &one + 1}, from = *c;
	size_t done;

	vkr_iov_gather(&from, copy, total);
	done = tx_direct(s, &flat, total, 0);
	vkr_iov_skip(c, done);
	return done;
}

static size_t tx_first(struct vkr_stream *s, struct vkr_iov *c, size_t total, unsigned how)
{
	if (queued(&s->tx) || !s->tx.ready || !(total <= s->inline_max || s->inline_max >= INLINE_CHEAP))
		return 0;
	if (c->end - c->iov > s->max_sge && total <= GATHER_MAX)
		return tx_gathered(s, c, total);
	return tx_direct(s, c, total, how);
}

/* Most sends: a buffer that is one message in one piece. False: nothing was done. */
static VKR_INLINE bool tx_one(struct vkr_stream *s, const struct iovec *iov, size_t total)
{
	struct vkr_tx *tx = &s->tx;
	uint32_t n = (uint32_t)total;
	struct ibv_sge sge = {.addr = (uintptr_t)iov->iov_base, .length = n};
	struct ibv_send_wr wr, *bad;
	int ret;

	if (total > vkr_min(s->inline_max, VKR_WRITE_MAX) || queued(tx) || !tx->ready || tx->much ||
	    n > tx->len - tx->off || vkr_credit_rides(s) || tx_room(s, n) < n)
		return false;
	vkr_wr_begin(s, &wr, &sge, false);
	vkr_wr_data(s, &wr, n, n);
	wr.next = NULL;
	wr.num_sge = 1;
	wr.send_flags |= IBV_SEND_INLINE;
	ret = ibv_post_send(s->qp, &wr, &bad);
	if (vkr_unlikely(ret))
		vkr_chain_failed(s, ret);
	return true;
}

static __attribute__((noinline)) ssize_t tx_any(struct vkr_stream *s, const struct iovec *iov, int iovcnt, size_t total,
						unsigned how)
{
	struct vkr_iov c = {.iov = iov, .end = iov + iovcnt};
	size_t done;

	done = tx_first(s, &c, total, how);
	if (done < total && !(how & VKR_IO_EAGER)) {
		if (!s->broken)
			done += tx_stage(s, &c, total - done);
		if (done < total)
			s->nospace = true;
	}
	if (queued(&s->tx) && !s->stall_counted && !s->credits) {
		s->stall_counted = true;
		vkr_count(&s->stats->stalls, 1);
	}
	/* Also before what was written before the loan is too far behind to be told from what comes. */
	if (s->tx.much && (done == total || (s->tx.borrowed && s->tx.pos - s->tx.own.from > 1u << 30))) {
		s->tx.much = false;
		vkr_credit_return(s);
		vkr_tx_push(s);
	}
	vkr_stream_update(s, 0);
	return done ? (ssize_t)done : s->tx.cap || s->broken || how & VKR_IO_EAGER ? -EAGAIN : -ENOMEM;
}

static VKR_COLD void push_control(struct vkr_stream *s)
{
	vkr_tx_push(s);
	vkr_stream_update(s, 0);
}

ssize_t vkr_stream_send(struct vkr_stream *s, const struct iovec *iov, int iovcnt, size_t total, unsigned how)
{
	int cancel;
	ssize_t ret = (ssize_t)total;

	cancel = vkr_verbs_enter_post();
	pthread_mutex_lock(&s->p.lock);
	if ((vkr_stream_plain(s) && total) || send_check(s, total, how, &ret)) {
		if (vkr_likely(iovcnt == 1 && tx_one(s, iov, total))) {
			tx_wait(s);
			if (vkr_unlikely(s->tx.control))
				push_control(s);
		} else {
			ret = tx_any(s, iov, iovcnt, total, how);
		}
	}
	pthread_mutex_unlock(&s->p.lock);
	vkr_verbs_leave_post(cancel);
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

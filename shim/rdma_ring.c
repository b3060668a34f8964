/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The receiving half of a stream. On the native wire a ring is filled once from its beginning to its end, and then the
 * next one is registered with the peer. With credits a ring goes on and on, and is left only for one of another length,
 * which the peer begins with a word of its own. Either way at most two rings exist: the peer writes to `wr`, the
 * application reads `rd`, and in between they may be the same.
 */
#include "rdma_stream.h"

#include "config.h"
#include "iov.h"
#include "socket.h"

#include <string.h>

/* A ring that was used up so quickly is what limits the peer: the next one is larger. */
#define GROW_WITHIN_NS  (100 * VKR_MS)
#define SHRINK_AFTER_NS (10000 * VKR_MS)
#define TRIM_NS         (1000 * VKR_MS)
/* Each change takes a message there and back, and costs a native client a new send buffer. */
#define GROW_FACTOR 8
#define RX_PIECES   4

/* ------------------------------------------------------------------ rings of the native wire */

static uint32_t ring_next_len(const struct vkr_stream *s, uint32_t len)
{
	int64_t since = vkr_now_ns() - s->refreshed_ns;

	if (s->ring_first == s->ring_limit)
		return len;
	if (since < GROW_WITHIN_NS)
		return vkr_min(len * GROW_FACTOR, s->ring_limit);
	return since > SHRINK_AFTER_NS ? vkr_max(len / 2, s->ring_first) : len;
}

/* Ring i, empty and not the peer's, gets `len` bytes if they can be had, else stays as it is. */
static int ring_prepare(struct vkr_stream *s, uint8_t i, uint32_t len)
{
	struct vkr_rx_ring bigger, *ring = &s->rx[i];
	int ret;

	if (ring->len != len) {
		ret = vkr_ring_create(s, &bigger, len);
		if (ret && !ring->buf)
			return ret;
		if (!ret) {
			vkr_ring_destroy(s, ring);
			*ring = bigger;
		}
	}
	ring->received = ring->consumed = 0;
	if (i != s->rd)
		vkr_trim_later();
	return 0;
}

/* Offers ring i as the next one to write to. */
static void ring_refresh(struct vkr_stream *s, uint8_t i)
{
	if (ring_prepare(s, i, ring_next_len(s, s->rx[s->wr].len)))
		return;
	s->wr = i;
	s->refreshed_ns = vkr_now_ns();
	s->tx.control |= VKR_CTL_REFRESH;
}

/*
 * The peer has filled its ring and waits. With a second buffer it need not wait for the application (T8): everything it
 * wrote to the old one has been received, so what comes next can only be for the new one.
 */
void vkr_rx_filled(struct vkr_stream *s)
{
	if (s->rd == s->wr && !vkr_config.late_refresh)
		ring_refresh(s, 1 - s->wr);
}

/* The application has read ring rd to its end, and the peer has left it. */
static void ring_emptied(struct vkr_stream *s)
{
	uint8_t old = s->rd;

	if (!s->qp || s->broken) {
		/* Nothing will be written again; go on with what the other ring holds. */
		vkr_ring_destroy(s, &s->rx[old]);
		s->rd = s->wr;
		return;
	}
	if (s->rd == s->wr) {
		ring_refresh(s, old);
		vkr_tx_push(s);
		return;
	}
	s->rd = s->wr;
	s->rx[old].received = s->rx[old].consumed = 0;
	if (s->rx[s->wr].received == s->rx[s->wr].len) {
		ring_refresh(s, old);
		vkr_tx_push(s);
	}
}

/* ------------------------------------------------------------------ rings with credits */

static void ring_offer(struct vkr_stream *s, uint32_t len)
{
	if (ring_prepare(s, 1 - s->wr, len))
		return;
	s->rxc.offered = true;
	s->tx.control |= VKR_CTL_OFFER;
}

/* The peer has left ring rd, and all of it has been read. */
static void ring_left(struct vkr_stream *s)
{
	struct vkr_rx_ring *ring = &s->rx[s->rd];

	s->rd = s->wr;
	if (s->rx[s->wr].lent) {
		/* It comes back to this one, once it knows that it may. */
		ring->received = ring->consumed = 0;
		s->tx.control |= VKR_CTL_CREDIT;
		vkr_tx_push(s);
	} else {
		vkr_ring_destroy(s, ring);
	}
	if (s->rx[s->wr].len > s->ring_first)
		vkr_trim_later();
}

/* Rings on loan, of all streams. */
static _Atomic int lent;

void vkr_rx_loan_over(void)
{
	atomic_fetch_sub(&lent, 1);
}

void vkr_rx_forked(void)
{
	vkr_store(&lent, 0);
}

void vkr_rx_lend(struct vkr_stream *s)
{
	struct vkr_rx_ring *ring = &s->rx[1 - s->wr];

	if (!s->qp || s->broken || s->rxc.offered || s->rd != s->wr || s->rx[s->wr].lent || s->app_closed)
		return;
	if (atomic_fetch_add(&lent, 1) >= VKR_LENT_MOST || ring_prepare(s, 1 - s->wr, VKR_RING_LENT) ||
	    ring->len != VKR_RING_LENT) {
		atomic_fetch_sub(&lent, 1);
		return;
	}
	ring->lent = true;
	s->rxc.offered = true;
	s->tx.control |= VKR_CTL_LEND;
}

bool vkr_rx_returned(struct vkr_stream *s)
{
	if (s->rx[1 - s->wr].lent && s->rxc.offered) {
		s->rxc.offered = false;
		vkr_ring_destroy(s, &s->rx[1 - s->wr]);
		return true;
	}
	/* What it wrote to its own ring before must have been read. */
	if (!s->rx[s->wr].lent || s->rd != s->wr)
		return false;
	s->wr = 1 - s->wr;
	s->rxc.ring_start = s->rxc.now.bytes;
	vkr_credit_measure(s);
	if (s->rx[s->rd].received == s->rx[s->rd].consumed)
		ring_left(s);
	return true;
}

void vkr_rx_pressure(struct vkr_stream *s)
{
	struct vkr_rx_credit *r = &s->rxc;
	uint32_t len = s->rx[s->wr].len;
	int64_t now;

	if (r->offered || s->rd != s->wr || len >= s->ring_limit)
		return;
	now = vkr_now_ns();
	if (now - s->refreshed_ns > GROW_WITHIN_NS) {
		/* The first one for long: see how much is read until the next. */
		s->refreshed_ns = now;
		r->ring_start = r->now.bytes;
	} else if (r->now.bytes - r->ring_start >= len) {
		ring_offer(s, vkr_min(len * GROW_FACTOR, s->ring_limit));
	}
}

bool vkr_rx_switch(struct vkr_stream *s)
{
	struct vkr_rx_credit *r = &s->rxc;

	if (!r->offered)
		return false;
	r->offered = false;
	r->ring_start = r->now.bytes;
	s->refreshed_ns = vkr_now_ns();
	s->wr = 1 - s->wr;
	vkr_credit_measure(s);
	if (s->rx[s->rd].received == s->rx[s->rd].consumed)
		ring_left(s);
	return true;
}

static bool trim_credits(struct vkr_stream *s)
{
	struct vkr_rx_credit *r = &s->rxc;
	bool idle = r->total == r->trim_mark && !s->inq;

	r->trim_mark = r->total;
	if (s->rx[s->wr].len > s->ring_first && idle && !r->offered && s->rd == s->wr && !s->rx[s->wr].lent) {
		ring_offer(s, s->ring_first);
		vkr_tx_push(s);
		vkr_stream_update(s, 0);
	}
	return s->rx[s->wr].len <= s->ring_first && !r->offered && s->rd == s->wr;
}

bool vkr_rx_trim(struct vkr_stream *s, int64_t now)
{
	struct vkr_rx_ring *second = &s->rx[1 - s->wr];

	if (s->credits)
		return trim_credits(s);
	if (second->buf && s->rd == s->wr && now - s->refreshed_ns > TRIM_NS)
		vkr_ring_destroy(s, second);
	return !second->buf;
}

/* ------------------------------------------------------------------ bytes */

/* Up to n bytes of the ring from `pos` on, as far as they lie in one piece. */
static uint32_t ring_piece(const struct vkr_stream *s, const struct vkr_rx_ring *ring, uint32_t pos, uint32_t n,
			   uint8_t **at)
{
	uint32_t off = s->credits ? pos & (ring->len - 1) : pos;

	*at = ring->buf + off;
	return vkr_min(n, ring->len - off);
}

/* Where the unread bytes lie, in order; the number of pieces. */
static int rx_pieces(const struct vkr_stream *s, struct iovec iov[RX_PIECES])
{
	const struct vkr_rx_ring *ring = &s->rx[s->rd];
	int n = 0;

	for (;;) {
		uint32_t pos = ring->consumed, len;
		uint8_t *at;

		for (; pos != ring->received; pos += len) {
			len = ring_piece(s, ring, pos, ring->received - pos, &at);
			iov[n++] = (struct iovec){at, len};
		}
		if (ring == &s->rx[s->wr])
			return n;
		ring = &s->rx[s->wr];
	}
}

/* Taking bytes out calls the provider only when there is more to do than that. */
static VKR_COLD void with_provider(struct vkr_stream *s, void (*fn)(struct vkr_stream *s))
{
	int cancel = vkr_verbs_enter_post();

	fn(s);
	vkr_verbs_leave_post(cancel);
}

/* iov NULL: they have been copied already. */
static VKR_INLINE size_t rx_take(struct vkr_stream *s, const struct iovec *iov, size_t want)
{
	struct vkr_iov c = {.iov = iov};
	size_t done = 0;
	uint8_t *from;
	uint32_t n;
	void *to;

	/* Piece by piece, of the ring and of the buffers at once. */
	for (want = vkr_min(want, s->inq); done < want; done += n) {
		struct vkr_rx_ring *ring = &s->rx[s->rd];

		/* In parts, so that the peer goes on writing while the next one is copied. */
		n = (uint32_t)vkr_min(vkr_min(want - done, VKR_WRITE_MAX), (size_t)(ring->received - ring->consumed));
		n = ring_piece(s, ring, ring->consumed, n, &from);
		if (iov && n) {
			n = (uint32_t)vkr_iov_piece(&c, n, &to);
			memcpy(to, from, n);
		}
		ring->consumed += n;
		s->inq -= n;
		if (!s->credits) {
			if (ring->consumed == ring->len)
				with_provider(s, ring_emptied);
			continue;
		}
		s->rxc.now.bytes += n;
		if (vkr_unlikely(s->rd != s->wr) && ring->consumed == ring->received)
			with_provider(s, ring_left);
		if (vkr_credit_due(s))
			with_provider(s, vkr_tx_push);
	}
	return done;
}

static size_t rx_peek(struct vkr_stream *s, const struct iovec *iov, size_t want)
{
	struct iovec piece[RX_PIECES];
	struct vkr_iov c = {.iov = iov};
	int i, n = rx_pieces(s, piece);
	size_t done = 0;

	for (i = 0; i < n && done < want; i++) {
		size_t part = vkr_min(piece[i].iov_len, want - done);

		vkr_iov_scatter(&c, piece[i].iov_base, part);
		done += part;
	}
	return done;
}

/* ------------------------------------------------------------------ rdma.h */

/* What recv says when no byte is there; the order is tcp_recvmsg()'s: an orderly end hides a later error. */
static ssize_t rx_nothing(struct vkr_stream *s, unsigned how)
{
	int err = s->error;

	if (s->peer_fin)
		return 0;
	if (err) {
		if (!(how & VKR_IO_MORE)) {
			s->error = 0;
			vkr_stream_update(s, 0);
		}
		return -err;
	}
	if (s->rd_shut || s->reset)
		return 0;
	return -EAGAIN;
}

/* An end or an error is near, nothing is there, or the bytes stay. */
static __attribute__((noinline)) ssize_t recv_any(struct vkr_stream *s, const struct iovec *iov, size_t want,
						  unsigned how)
{
	ssize_t ret;

	if (vkr_load(&s->state) != VKR_STREAM_OPEN)
		return -EAGAIN;
	if (s->handed_over)
		return -EXDEV;
	if (!s->inq)
		return rx_nothing(s, how);
	if (!want)
		return 0;
	if (how & VKR_IO_PEEK)
		return (ssize_t)rx_peek(s, iov, want);
	ret = (ssize_t)rx_take(s, iov, want);
	vkr_stream_update(s, 0);
	return ret;
}

ssize_t vkr_stream_recv(struct vkr_stream *s, const struct iovec *iov, size_t want, unsigned how)
{
	ssize_t ret;

	pthread_mutex_lock(&s->p.lock);
	if (vkr_likely(vkr_stream_plain(s) && s->inq && want && !(how & VKR_IO_PEEK))) {
		ret = (ssize_t)rx_take(s, iov, want);
		vkr_stream_update(s, 0);
	} else {
		ret = recv_any(s, iov, want, how);
	}
	pthread_mutex_unlock(&s->p.lock);
	return ret;
}

ssize_t vkr_stream_forward(struct vkr_stream *s, ssize_t (*take)(void *arg, const struct iovec *iov, int n), void *arg)
{
	struct iovec iov[RX_PIECES];
	int cancel = vkr_verbs_enter_post();
	ssize_t ret;

	pthread_mutex_lock(&s->p.lock);
	if (!s->inq) {
		ret = rx_nothing(s, 0);
	} else {
		ret = take(arg, iov, rx_pieces(s, iov));
		if (ret > 0)
			rx_take(s, NULL, (size_t)ret);
		vkr_stream_update(s, 0);
	}
	pthread_mutex_unlock(&s->p.lock);
	vkr_verbs_leave_post(cancel);
	return ret;
}

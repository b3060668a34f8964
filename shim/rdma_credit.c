/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Credits between two shims (docs/wire.md). The reader writes its positions into a word of the writer's, by a plain
 * RDMA write that takes no receive and wakes nobody; the writer looks at the word when it has no room left. A writer
 * that still has none sends a wake request with the position it knows, and the reader answers with an immediate once it
 * is a quarter of the ring beyond that position. Since the answer depends on the position in the request, a word that
 * crosses the request on its way costs at most a needless answer.
 */
#include "rdma_stream.h"

#include <string.h>
#include <sys/epoll.h>

#define SMALL_RING (64u << 10)

/* ------------------------------------------------------------------ the writer */

void vkr_credit_look(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;
	struct vkr_credit sent = {.bytes = tx->pos, .messages = tx->msgs}, before = tx->acked;

	/* Loaded once: the peer may change it at any time. What is written to the ring later must not overtake it. */
	if (vkr_wire_credit_accept(vkr_load_acq(s->word), &sent, &tx->acked)) {
		vkr_stream_violation(s, "credit for what was not sent");
		return;
	}
	if (before.bytes == tx->acked.bytes && before.messages == tx->acked.messages)
		return;
	vkr_count(&s->stats->credits_in, 1);
	/* What the peer took out of an earlier ring makes no room in this one. */
	if ((int32_t)(tx->acked.bytes - tx->floor) > 0)
		tx->floor = tx->acked.bytes;
	tx->proven = tx->acked.messages;
}

void vkr_credit_ring(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey)
{
	struct vkr_tx *tx = &s->tx;

	if (tx->have_ring)
		tx->control |= VKR_CTL_SWITCH;
	tx->addr = addr;
	tx->len = len;
	tx->rkey = rkey;
	tx->off = 0;
	tx->floor = tx->pos;
	tx->have_ring = true;
}

bool vkr_credit_lent(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey)
{
	struct vkr_tx *tx = &s->tx;

	if (!(s->features & VKR_FEAT_LEND) || tx->borrowed)
		return false;
	/* Too late; nothing has been written to it. */
	if (!tx->much) {
		tx->control |= VKR_CTL_RETURN;
		return true;
	}
	tx->borrowed = true;
	tx->own.addr = tx->addr;
	tx->own.rkey = tx->rkey;
	tx->own.len = tx->len;
	tx->own.from = tx->pos;
	vkr_credit_ring(s, addr, len, rkey);
	vkr_trim_later();
	return true;
}

void vkr_credit_return(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	if (!tx->borrowed)
		return;
	vkr_credit_look(s);
	if (s->broken || (int32_t)(tx->acked.bytes - tx->own.from) < 0)
		return;
	tx->borrowed = false;
	tx->control |= VKR_CTL_RETURN;
	tx->addr = tx->own.addr;
	tx->rkey = tx->own.rkey;
	tx->len = tx->own.len;
	tx->off = 0;
	tx->floor = tx->pos;
}

void vkr_credit_sleep(struct vkr_stream *s)
{
	struct vkr_tx *tx = &s->tx;

	if (tx->waking || tx->control & VKR_CTL_WAKE)
		return;
	tx->control |= VKR_CTL_WAKE;
	vkr_count(&s->stats->stalls, 1);
}

/* ------------------------------------------------------------------ the reader */

/* The peer asks when it has nothing left; a quarter is worth an interrupt. */
static bool is_enough(const struct vkr_stream *s)
{
	const struct vkr_rx_credit *r = &s->rxc;

	if (r->wanted == VKR_IMM_WAKE_BYTES)
		return vkr_wire_imm_distance(r->now.bytes, r->wanted_from) >= (int32_t)(s->rx[s->wr].len / 4);
	return vkr_wire_imm_distance(r->now.messages, r->wanted_from) >= VKR_RECV_BOUND / 4;
}

void vkr_credit_measure(struct vkr_stream *s)
{
	struct vkr_rx_credit *r = &s->rxc;
	uint32_t len = s->rx[s->wr].len;

	/* A small ring is given back by halves, lest each second message brings a credit; of a large one a quarter is
	 * much, and keeps a stream in one direction going. */
	len = vkr_min(len, VKR_RING_MAX); /* a native ring may be longer, one on loan is */
	r->ride.bytes = len > SMALL_RING ? len / 8 : len / 2;
	r->force.bytes = len > SMALL_RING ? len / 4 : len / 4 * 3;
	r->ride.messages = VKR_RECV_BOUND / 4;
	r->force.messages = VKR_RECV_BOUND / 2;
}

void vkr_credit_tell(struct vkr_stream *s)
{
	struct vkr_rx_credit *r = &s->rxc;

	if (s->peer_fin)
		return; /* it writes no more */
	/* The peer of a program that does not read is to be held back, as by a kernel's buffers. */
	if (r->loan_wanted && r->now.bytes - r->loan_from >= s->rx[s->wr].len / 4) {
		r->loan_wanted = false;
		vkr_rx_lend(s);
	}
	if (r->wanted && is_enough(s)) {
		r->wanted = VKR_IMM_DATA;
		s->tx.control |= VKR_CTL_GRANT;
	} else if (vkr_credit_beyond(r, &r->force)) {
		s->tx.control |= VKR_CTL_CREDIT;
	}
}

/* ------------------------------------------------------------------ immediates */

static void on_wake(struct vkr_stream *s, enum vkr_imm type, uint32_t value)
{
	vkr_count(&s->stats->wakes_in, 1);
	/* An honest peer asks once for a quarter of a ring; each message of data makes up for one. */
	if (vkr_stream_flood(s)) {
		vkr_stream_violation(s, "a flood of wake requests");
		return;
	}
	s->rxc.wanted = type;
	s->rxc.wanted_from = value;
	if (type == VKR_IMM_WAKE_BYTES)
		vkr_rx_pressure(s);
}

static void on_much(struct vkr_stream *s)
{
	/* An honest peer asks again only when it has written something. */
	if (vkr_stream_flood(s))
		vkr_stream_violation(s, "a flood of requests for a larger ring");
	else
		s->rxc.loan_wanted = true;
	s->rxc.loan_from = s->rxc.now.bytes;
}

static void on_credit(struct vkr_stream *s)
{
	if (!s->tx.waking && vkr_stream_flood(s)) {
		vkr_stream_violation(s, "a flood of credits");
		return;
	}
	s->tx.waking = false;
	vkr_credit_look(s);
}

void vkr_credit_imm(struct vkr_stream *s, enum vkr_imm type, uint32_t value, uint32_t *edge)
{
	bool at_end = value == (s->rxc.total & VKR_IMM_VALUE);

	switch (type) {
	case VKR_IMM_CREDIT:
		on_credit(s);
		break;
	case VKR_IMM_WAKE_BYTES:
	case VKR_IMM_WAKE_MESSAGES:
		on_wake(s, type, value);
		break;
	case VKR_IMM_SWITCH:
		if (!at_end || !vkr_rx_switch(s))
			vkr_stream_violation(s, "it goes on in a ring that was not offered");
		break;
	case VKR_IMM_MUCH:
		if (!at_end || !(s->features & VKR_FEAT_LEND)) {
			vkr_stream_violation(s, "a request for a larger ring at a wrong place");
			break;
		}
		on_much(s);
		break;
	case VKR_IMM_RETURN:
		if (!at_end || !vkr_rx_returned(s))
			vkr_stream_violation(s, "it returns a ring that it has not borrowed");
		break;
	case VKR_IMM_FIN:
		if (!at_end || s->peer_fin) {
			vkr_stream_violation(s, "the end of its stream at a wrong place");
			break;
		}
		vkr_stream_ended(s, edge);
		break;
	case VKR_IMM_RESET:
		vkr_stream_reset(s);
		break;
	case VKR_IMM_KEEP:
	case VKR_IMM_OPEN:
		vkr_keep_imm(s, type, at_end, edge);
		break;
	case VKR_IMM_DATA:
		break;
	}
}

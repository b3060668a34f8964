/* SPDX-License-Identifier: BSD-2-Clause */
#include "wire.h"

#include <string.h>

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)(v >> 16));
	put16(p + 2, (uint16_t)v);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

static uint64_t get64(const uint8_t *p)
{
	return (uint64_t)get32(p) << 32 | get32(p + 4);
}

void vkr_wire_encode(const struct vkr_message *m, uint8_t out[VKR_WIRE_SIZE])
{
	memset(out, 0, VKR_WIRE_SIZE);
	put16(out, m->opcode);
	switch (m->opcode) {
	case VKR_OP_GET_SERVER_FEATURE:
	case VKR_OP_SET_CLIENT_FEATURE:
		put16(out + 2, m->select);
		put64(out + 24, m->features);
		break;
	case VKR_OP_REGISTER_XFER_MEMORY:
	case VKR_OP_OFFER:
	case VKR_OP_LEND:
		put64(out + 16, m->address);
		put32(out + 24, m->length);
		put32(out + 28, m->rkey);
		break;
	default:
		break;
	}
}

static int decode_memory(const uint8_t *in, uint32_t max_length, struct vkr_message *m)
{
	m->address = get64(in + 16);
	m->length = get32(in + 24);
	m->rkey = get32(in + 28);
	if (m->length == 0 || m->length > max_length)
		return -ERANGE;
	/* The last byte's address must exist; address + length itself may be 2^64. */
	if (m->address + (m->length - 1) < m->address)
		return -ERANGE;
	return 0;
}

int vkr_wire_decode(const void *in, size_t size, uint32_t max_length, struct vkr_message *m)
{
	const uint8_t *p = in;

	memset(m, 0, sizeof(*m));
	if (size != VKR_WIRE_SIZE)
		return -EBADMSG;
	m->opcode = get16(p);
	switch (m->opcode) {
	case VKR_OP_GET_SERVER_FEATURE:
	case VKR_OP_SET_CLIENT_FEATURE:
		m->select = get16(p + 2);
		m->features = get64(p + 24);
		return 0;
	case VKR_OP_REGISTER_XFER_MEMORY:
	case VKR_OP_OFFER:
	case VKR_OP_LEND:
		return decode_memory(p, max_length, m);
	case VKR_OP_KEEPALIVE:
	case VKR_OP_FIN:
	case VKR_OP_RESET:
		return 0;
	default:
		return -EPROTO;
	}
}

uint32_t vkr_wire_imm_encode(enum vkr_imm type, uint32_t value)
{
	uint32_t imm = (uint32_t)type << 28 | (value & VKR_IMM_VALUE), be;
	uint8_t raw[4];

	put32(raw, imm);
	memcpy(&be, raw, sizeof(be));
	return be;
}

int vkr_wire_imm_decode(uint32_t imm_be, enum vkr_imm *type, uint32_t *value)
{
	uint8_t raw[4];
	uint32_t imm, kind;

	memcpy(raw, &imm_be, sizeof(raw));
	imm = get32(raw);
	kind = imm >> 28;
	if (kind > VKR_IMM_RETURN)
		return -EPROTO;
	imm &= VKR_IMM_VALUE;
	if ((kind == VKR_IMM_DATA && !imm) || ((kind == VKR_IMM_CREDIT || kind == VKR_IMM_RESET) && imm))
		return -ERANGE;
	*type = (enum vkr_imm)kind;
	*value = imm;
	return 0;
}

int32_t vkr_wire_imm_distance(uint32_t ahead, uint32_t value)
{
	uint32_t d = (ahead - value) & VKR_IMM_VALUE;

	return d > VKR_IMM_VALUE / 2 ? (int32_t)d - (int32_t)VKR_IMM_VALUE - 1 : (int32_t)d;
}

uint64_t vkr_wire_credit_encode(const struct vkr_credit *c)
{
	uint8_t raw[VKR_CREDIT_SIZE];
	uint64_t word;

	put32(raw, c->bytes);
	put32(raw + 4, c->messages);
	memcpy(&word, raw, sizeof(word));
	return word;
}

int vkr_wire_credit_accept(uint64_t word, const struct vkr_credit *sent, struct vkr_credit *c)
{
	uint8_t raw[VKR_CREDIT_SIZE];
	uint32_t bytes, messages;

	memcpy(raw, &word, sizeof(raw));
	bytes = get32(raw);
	messages = get32(raw + 4);
	/* Differences, since the counts wrap: nothing is given back twice, and nothing that was not written. */
	if (bytes - c->bytes > sent->bytes - c->bytes || messages - c->messages > sent->messages - c->messages)
		return -ERANGE;
	c->bytes = bytes;
	c->messages = messages;
	return 0;
}

size_t vkr_wire_hello_encode(const struct vkr_hello *h, uint8_t out[VKR_HELLO_SIZE])
{
	size_t size = h->features & VKR_FEAT_CREDIT ? VKR_HELLO_SIZE : VKR_HELLO_V1_SIZE;

	memset(out, 0, VKR_HELLO_SIZE);
	put32(out, VKR_HELLO_MAGIC);
	out[4] = h->version;
	out[5] = (uint8_t)size;
	put16(out + 6, h->receives);
	put32(out + 8, h->features);
	put32(out + 12, h->ring_length);
	put64(out + 16, h->ring_address);
	put32(out + 24, h->ring_rkey);
	put32(out + 28, h->ring_max);
	if (size == VKR_HELLO_SIZE) {
		put64(out + 40, h->credit_address);
		put32(out + 48, h->credit_rkey);
	}
	return size;
}

static int hello_check(const struct vkr_hello *h, uint8_t header, size_t size)
{
	/* A later version keeps the meaning of the first bytes, so only 0 is wrong. */
	if (h->version < 1 || header < VKR_HELLO_V1_SIZE || header > size)
		return -EPROTO;
	if (h->receives == 0 || h->ring_length == 0 || h->ring_length > h->ring_max)
		return -EPROTO;
	if (h->ring_address + (h->ring_length - 1) < h->ring_address)
		return -EPROTO;
	if (h->features & VKR_FEAT_CREDIT &&
	    (header < VKR_HELLO_SIZE || !h->credit_address || h->credit_address % VKR_CREDIT_SIZE))
		return -EPROTO;
	return 0;
}

int vkr_wire_hello_decode(const void *in, size_t size, struct vkr_hello *h)
{
	const uint8_t *p = in;

	memset(h, 0, sizeof(*h));
	if (!in || size < 4 || get32(p) != VKR_HELLO_MAGIC)
		return -ENOMSG;
	if (size < VKR_HELLO_V1_SIZE)
		return -EPROTO;
	h->version = p[4];
	h->receives = get16(p + 6);
	h->features = get32(p + 8);
	h->ring_length = get32(p + 12);
	h->ring_address = get64(p + 16);
	h->ring_rkey = get32(p + 24);
	h->ring_max = get32(p + 28);
	if (h->features & VKR_FEAT_CREDIT && p[5] >= VKR_HELLO_SIZE && size >= VKR_HELLO_SIZE) {
		h->credit_address = get64(p + 40);
		h->credit_rkey = get32(p + 48);
	}
	return hello_check(h, p[5], size);
}

void vkr_wire_refusal_encode(const char *why, uint8_t out[VKR_REFUSAL_SIZE])
{
	memset(out, 0, VKR_REFUSAL_SIZE);
	put32(out, VKR_REFUSAL_MAGIC);
	memcpy(out + 4, why, vkr_min(strlen(why), (size_t)VKR_REFUSAL_SIZE - 4));
}

bool vkr_wire_refusal_decode(const void *in, size_t size, char *why, size_t room)
{
	const uint8_t *p = in;
	size_t i, n = vkr_min(size, (size_t)VKR_REFUSAL_SIZE);

	if (!in || n < 4 || get32(p) != VKR_REFUSAL_MAGIC || !room)
		return false;
	for (i = 4; i < n && p[i] && i - 3 < room; i++)
		why[i - 4] = p[i] >= ' ' && p[i] < 0x7f ? (char)p[i] : '?';
	why[i - 4] = '\0';
	return i > 4;
}

uint32_t vkr_wire_features(uint32_t ours, uint32_t theirs)
{
	uint32_t both = ours & theirs & VKR_FEAT_ALL;

	if (!(both & VKR_FEAT_FIN) || !(both & VKR_FEAT_RESIZE))
		both &= ~(uint32_t)VKR_FEAT_CREDIT;
	return both & VKR_FEAT_CREDIT ? both : both & ~(uint32_t)(VKR_FEAT_KEEP | VKR_FEAT_LEND);
}

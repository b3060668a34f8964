/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The Valkey-over-RDMA messages (valkey-doc, topics/RDMA) and libvkrdma's own additions. Pure functions: no verbs, no
 * sockets, no state.
 *
 * A control message is a SEND of exactly 32 bytes, big-endian:
 *
 *   opcode                  0       2        16           24        28
 *   0 GetServerFeature      opcode  select   .            features(u64 at 24)
 *                           (a question's features are 0 towards a native server and 1 between shims, where both
 *                           sides ask; an answer's are 0)
 *   1 SetClientFeature      opcode  select   .            features(u64 at 24)
 *   2 Keepalive             opcode
 *   3 RegisterXferMemory    opcode  .        address u64  length    rkey
 *   0x5600 Fin              opcode           only between two shims that negotiated VKR_FEAT_FIN: no more bytes follow
 *   0x5601 Reset            opcode           only between two shims: the sender closed with unread data
 *   0x5602 Offer            opcode  .        address u64  length    rkey: a new ring, only with VKR_FEAT_CREDIT
 *   0x5603 Lend             opcode  .        address u64  length    rkey: a ring for a while, only with VKR_FEAT_LEND
 *
 * Data is RDMA_WRITE_WITH_IMM, the immediate htonl(bytes); with VKR_FEAT_CREDIT the immediate has a type in its upper
 * four bits (enum vkr_imm) and docs/wire.md says how the ring, its credits and these types work together.
 *
 * The private data of a shim's CONNECT request (56 bytes there) and reply, big-endian, zero-padded by the CM:
 *
 *   0  u32 magic "VKR1"   4 u8 version   5 u8 header length (40 in version 1, 56 in version 2; more is accepted and
 *                                          ignored)
 *   6  u16 receives: bound on receive-consuming messages outstanding towards the sender of this header
 *   8  u32 features       12 u32 ring length    16 u64 ring address    24 u32 ring rkey
 *   28 u32 largest ring length the sender will ever advertise      32 u64 reserved, zero
 *   40 u64 credit word's address, 48 u32 its rkey, 52 u32 reserved, zero: from version 2 on, with VKR_FEAT_CREDIT
 *
 * The credit word: eight bytes, aligned, written as a whole: u32 bytes, u32 messages, both positions that only grow
 * (modulo 2^32): what the sender of the word has taken out of its ring, and how many receives it has posted again.
 */
#ifndef VKR_WIRE_H
#define VKR_WIRE_H

#include "base.h"

#include <arpa/inet.h>

#define VKR_WIRE_SIZE 32

enum vkr_opcode {
	VKR_OP_GET_SERVER_FEATURE = 0,
	VKR_OP_SET_CLIENT_FEATURE = 1,
	VKR_OP_KEEPALIVE = 2,
	VKR_OP_REGISTER_XFER_MEMORY = 3,
	VKR_OP_FIN = 0x5600,
	VKR_OP_RESET = 0x5601,
	VKR_OP_OFFER = 0x5602,
	VKR_OP_LEND = 0x5603,
};

struct vkr_message {
	uint16_t opcode;
	uint16_t select;   /* feature messages */
	uint64_t features; /* feature messages */
	uint64_t address;  /* RegisterXferMemory, Offer, Lend */
	uint32_t length, rkey;
};

/* Every unused byte is zero. */
void vkr_wire_encode(const struct vkr_message *m, uint8_t out[VKR_WIRE_SIZE]);

/* 0; -EBADMSG for a size other than 32; -EPROTO for an unknown opcode; -ERANGE for a ring (RegisterXferMemory, Offer,
 * Lend) of length 0, above max_length, or with an address range that wraps. */
int vkr_wire_decode(const void *in, size_t size, uint32_t max_length, struct vkr_message *m);

/* Bytes in the immediate of a data message; *bytes is valid only on 0. -ERANGE where it is zero or above room. */
static inline int vkr_wire_immediate(uint32_t imm_be, uint32_t room, uint32_t *bytes)
{
	uint32_t n = ntohl(imm_be);

	if (n - 1 >= room) /* 0 wraps */
		return -ERANGE;
	*bytes = n;
	return 0;
}

/* What an immediate says between two shims with VKR_FEAT_CREDIT. All but data are writes of nothing, or of the credit
 * word; each takes a receive. */
enum vkr_imm {
	VKR_IMM_DATA = 0,          /* value: bytes, at least 1 */
	VKR_IMM_CREDIT = 1,        /* the credit word has been written, as was asked for; value 0 */
	VKR_IMM_WAKE_BYTES = 2,    /* the writer sleeps for room; value: the position up to which it has credit */
	VKR_IMM_WAKE_MESSAGES = 3, /* it sleeps for receives; value: the messages that it knows to be reposted */
	VKR_IMM_SWITCH = 4, /* the ring offered or lent last is written from here on; value: bytes written before */
	VKR_IMM_FIN = 5,    /* no more bytes follow; value: bytes written */
	VKR_IMM_RESET = 6,  /* closed with unread data; value 0 */
	/* with VKR_FEAT_KEEP */
	VKR_IMM_KEEP = 7, /* the acceptor: both streams have ended, the queue pair stays; value: bytes written */
	VKR_IMM_OPEN = 8, /* the connector: a new connection begins on it; value: bytes written */
	/* with VKR_FEAT_LEND */
	VKR_IMM_MUCH = 9, /* the writer has far more than fits, and no room; value: bytes written */
	VKR_IMM_RETURN =
	    10, /* its own ring is written from here on, or what was lent is not wanted; value: bytes written */
};

/* Values are the low 28 bits of a count. */
#define VKR_IMM_VALUE 0x0fffffffu

/* In network order, as it stands in a work request or completion. */
uint32_t vkr_wire_imm_encode(enum vkr_imm type, uint32_t value);
/* 0; -EPROTO for an unknown type; -ERANGE for data of 0 bytes and for a value where there is none. */
int vkr_wire_imm_decode(uint32_t imm_be, enum vkr_imm *type, uint32_t *value);
/* How far the count `ahead` is beyond the value; negative where it is behind it. Within 2^27 of each other. */
int32_t vkr_wire_imm_distance(uint32_t ahead, uint32_t value);

#define VKR_CREDIT_SIZE 8

struct vkr_credit {
	uint32_t bytes, messages;
};

/* The word as it lies in memory. */
uint64_t vkr_wire_credit_encode(const struct vkr_credit *c);
/* Takes over a word that the peer wrote: 0; -ERANGE, *c unchanged, if either count is not between the one in *c and
 * what was `sent`. */
int vkr_wire_credit_accept(uint64_t word, const struct vkr_credit *sent, struct vkr_credit *c);

#define VKR_HELLO_MAGIC   0x564b5231u
#define VKR_HELLO_VERSION 2
#define VKR_HELLO_V1_SIZE 40
#define VKR_HELLO_SIZE    56

enum vkr_feature {
	VKR_FEAT_FIN = 1u << 0,    /* Fin and Reset messages */
	VKR_FEAT_RESIZE = 1u << 1, /* the ring's length may change at any RegisterXferMemory */
	VKR_FEAT_CREDIT = 1u << 2, /* a continuous ring with credits; only together with the two above */
	VKR_FEAT_KEEP = 1u << 3,   /* queue pairs outlive their connections; only with credits */
	VKR_FEAT_LEND = 1u << 4,   /* large rings on loan; only with credits */
};
#define VKR_FEAT_ALL (VKR_FEAT_FIN | VKR_FEAT_RESIZE | VKR_FEAT_CREDIT | VKR_FEAT_KEEP | VKR_FEAT_LEND)

struct vkr_hello {
	uint8_t version;
	uint16_t receives;
	uint32_t features;
	uint32_t ring_length, ring_rkey, ring_max;
	uint64_t ring_address;
	uint64_t credit_address; /* with VKR_FEAT_CREDIT */
	uint32_t credit_rkey;
};

/* The header's length: 56 with VKR_FEAT_CREDIT, 40 without. */
size_t vkr_wire_hello_encode(const struct vkr_hello *h, uint8_t out[VKR_HELLO_SIZE]);

/* 0: a shim spoke. -ENOMSG: unknown magic or nothing: a native peer. -EPROTO: magic right, contents wrong (the
 * connection is refused). Length is what the CM reported, padding included. */
int vkr_wire_hello_decode(const void *in, size_t size, struct vkr_hello *h);

/* Why a request is refused, in the private data of the CM's reject: magic, then text with zeros behind it. Natives
 * never look at it. */
#define VKR_REFUSAL_MAGIC 0x564b5230u
#define VKR_REFUSAL_SIZE  100

void vkr_wire_refusal_encode(const char *why, uint8_t out[VKR_REFUSAL_SIZE]);
/* True if there is a text: shortened to room, and anything but printable ASCII replaced. */
bool vkr_wire_refusal_decode(const void *in, size_t size, char *why, size_t room);
/* The features that two ends have in common, without those that need another one. Both ends come to the same. */
uint32_t vkr_wire_features(uint32_t ours, uint32_t theirs);

#endif

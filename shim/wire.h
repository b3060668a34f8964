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
 *
 * Data is RDMA_WRITE_WITH_IMM, the immediate htonl(bytes).
 *
 * The private data of a shim's CONNECT request (56 bytes there) and reply, big-endian, zero-padded by the CM:
 *
 *   0  u32 magic "VKR1"   4 u8 version   5 u8 header length (40 in version 1; more is accepted and ignored)
 *   6  u16 receives: bound on receive-consuming messages outstanding towards the sender of this header
 *   8  u32 features       12 u32 ring length    16 u64 ring address    24 u32 ring rkey
 *   28 u32 largest ring length the sender will ever advertise      32 u64 reserved, zero
 */
#ifndef VKR_WIRE_H
#define VKR_WIRE_H

#include "base.h"

#define VKR_WIRE_SIZE 32

enum vkr_opcode {
	VKR_OP_GET_SERVER_FEATURE = 0,
	VKR_OP_SET_CLIENT_FEATURE = 1,
	VKR_OP_KEEPALIVE = 2,
	VKR_OP_REGISTER_XFER_MEMORY = 3,
	VKR_OP_FIN = 0x5600,
	VKR_OP_RESET = 0x5601,
};

struct vkr_message {
	uint16_t opcode;
	uint16_t select;   /* feature messages */
	uint64_t features; /* feature messages */
	uint64_t address;  /* RegisterXferMemory */
	uint32_t length, rkey;
};

/* Every unused byte is zero. */
void vkr_wire_encode(const struct vkr_message *m, uint8_t out[VKR_WIRE_SIZE]);

/* 0; -EBADMSG for a size other than 32; -EPROTO for an unknown opcode; -ERANGE for a RegisterXferMemory of length 0,
 * above max_length, or with an address range that wraps. */
int vkr_wire_decode(const void *in, size_t size, uint32_t max_length, struct vkr_message *m);

/* Bytes in the immediate of a data message; *bytes is valid only on 0. -ERANGE where it is zero or above room. */
int vkr_wire_immediate(uint32_t imm_be, uint32_t room, uint32_t *bytes);

#define VKR_HELLO_MAGIC   0x564b5231u
#define VKR_HELLO_VERSION 1
#define VKR_HELLO_SIZE    40

enum vkr_feature {
	VKR_FEAT_FIN = 1u << 0,    /* Fin and Reset messages */
	VKR_FEAT_RESIZE = 1u << 1, /* the ring's length may change at any RegisterXferMemory */
};

struct vkr_hello {
	uint8_t version;
	uint16_t receives;
	uint32_t features;
	uint32_t ring_length, ring_rkey, ring_max;
	uint64_t ring_address;
};

void vkr_wire_hello_encode(const struct vkr_hello *h, uint8_t out[VKR_HELLO_SIZE]);

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

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What processes share: the process segment. Each process has one (a memfd); peers map it whole. The owner writes
 * everything but the words marked "peer", which only the one attached sender of that QP writes, and the bitmaps,
 * counters and flags changed by atomic read-modify-write. There is no lock in it, so a process may die anywhere.
 *
 * Publishing a descriptor: write payload and descriptor, release-store `prod`, set the QP's bit in the active map of
 * its receive CQ, and if that CQ is armed take the arming and raise its channel.
 */
#ifndef SV_SEGMENT_H
#define SV_SEGMENT_H

#include <stdatomic.h>
#include <stdint.h>

#define SV_SEG_MAGIC   0x76736731u
#define SV_SEG_VERSION 1u
#define SV_BLOCK_SHIFT 12 /* QP numbers are handed out in blocks of 4096; a block belongs to one process */
#define SV_BLOCK_QPS   (1u << SV_BLOCK_SHIFT)
#define SV_BLOCK_COUNT 4096u
#define SV_MAX_BLOCKS  16
#define SV_MAX_QP      (SV_MAX_BLOCKS * SV_BLOCK_QPS)
#define SV_MAX_CQ      65536u
#define SV_MAX_CHAN    65536u
#define SV_MAX_MR      131072u
#define SV_MAX_SRQ     4096u
#define SV_NONE        0xffffffffu
/* Sparse. A build for callgrind, which has little room for addresses, sets smaller ones; peers must agree. */
#ifndef SV_SEG_SIZE
#define SV_SEG_SIZE (32ull << 30)
#endif
#ifndef SV_DATA_SIZE
#define SV_DATA_SIZE (64ull << 30)
#endif
#define SV_BITS         4096u
#define SV_PAYLOAD_SIZE (256u << 10)
#define SV_PAYLOAD_STEP 64u

/* 4096 bits in two levels. A setter sets the leaf, then the top; a taker takes the top word, then the leaves. */
struct sv_bits {
	_Atomic uint64_t top;
	uint64_t pad[7];
	_Atomic uint64_t leaf[SV_BITS / 64];
};

enum sv_desc_op {
	SV_D_SEND = 1,  /* a piece of a SEND; SV_F_LAST ends it */
	SV_D_WRITE,     /* a piece of a write that the owner applies */
	SV_D_WRITE_IMM, /* the data is in place: consume a receive */
	SV_D_READ,      /* the owner reads addr/len and answers with SV_D_RESP */
	SV_D_ATOMIC,    /* payload: three words: opcode, compare or add, swap */
	SV_D_RESP,      /* a piece of the answer; SV_F_LAST ends it */
	SV_D_NAK,       /* the responder refused the requester's oldest request: status */
	SV_D_ERR,       /* the requester found that its request is invalid at the responder, which goes to ERR */
};

/* In place of a receive's length: its buffer may not be written. */
#define SV_LEN_BAD 0xfffffffeu

#define SV_F_LAST      1u
#define SV_F_IMM       2u
#define SV_F_SOLICITED 4u
#define SV_F_REFUSED   8u  /* SEND that the receive cannot take (status): the sender has completed it with an error */
#define SV_F_INV       16u /* imm holds an rkey to invalidate */

struct sv_desc {
	uint64_t addr;
	uint32_t rkey;
	uint32_t len; /* of this piece; of the whole for SV_D_WRITE_IMM, SV_D_READ */
	uint32_t pos; /* payload position, monotonic; offset = pos & (pay_size - 1) */
	uint32_t imm;
	uint8_t op;
	uint8_t flags;
	uint8_t status;
	uint8_t pad;
	uint32_t pad2;
};

struct sv_mr_ent {
	_Atomic uint32_t key; /* 0: free */
	uint32_t access;
	uint32_t pd;
	uint32_t tag;  /* owner only */
	uint64_t addr; /* as peers name it (iova) */
	uint64_t len;
	uint64_t va;        /* the owner's address of the first byte */
	uint64_t dir_start; /* [dir_start, dir_end), in iova terms, lies in the data memfd at dir_off */
	uint64_t dir_end;
	uint64_t dir_off;
	_Atomic uint32_t in_recv; /* owner only: a receive has named this key */
	uint32_t pad;
};

/* The word that a sender checks at every post: epoch in the high 24 bits, enum ibv_qp_state in the low 8. */
#define SV_STATE(word) ((word)&0xffu)
#define SV_EPOCH(word) ((word) >> 8)

struct sv_qp_ent {
	_Atomic uint32_t state;
	uint32_t qpn;
	_Atomic uint32_t dest_qpn;
	uint32_t pd;
	uint32_t recv_cq;
	uint32_t recv_slot;
	uint32_t send_cq;
	uint32_t srq;
	uint64_t ring_off; /* descriptors, then receive lengths, then payload */
	uint32_t slots;    /* power of two */
	uint32_t rq_size;  /* power of two; 0 with an SRQ */
	uint32_t pay_size; /* power of two */
	_Atomic uint32_t access;
	_Atomic uint32_t rnr_timer;
	uint32_t pad0;

	/* owner, often */
	_Alignas(64) _Atomic uint32_t cons;
	_Atomic uint32_t pay_cons;
	_Atomic uint32_t rq_posted; /* receives posted since RESET */

	/* peer */
	_Alignas(64) _Atomic uint32_t prod;
	_Atomic uint32_t busy;    /* odd: the sender is touching our memory */
	_Atomic uint32_t waiting; /* 1: the sender wants a kick when there is room or a receive */
	_Atomic uint32_t sent;    /* receive-consuming messages since the owner's RTR */
	_Atomic uint32_t pay_prod;
};

struct sv_cq_ent {
	_Atomic uint32_t armed; /* 0 no, 1 any, 2 solicited */
	uint32_t chan;
	uint32_t chan_slot;
	_Atomic uint32_t events; /* raised so far */
	uint32_t chan_gen;       /* channel numbers are reused: which use of it this is */
	uint32_t pad[3];
	struct sv_bits active;
};

struct sv_chan_ent {
	struct sv_bits pending; /* CQ slots of this channel with events to be got */
};

struct sv_srq_ent {
	_Atomic int64_t credits;
	_Atomic uint32_t waiting;
	uint32_t min_len;
};

struct sv_seg {
	uint32_t magic;
	uint32_t version;
	int32_t pid;
	_Atomic uint32_t nblocks;
	uint32_t blocks[SV_MAX_BLOCKS];
	_Alignas(64) _Atomic uint32_t kicked; /* 1: the kick eventfd has been written */
	_Atomic uint32_t raise;               /* 1: raise the channels that have pending bits */
	_Alignas(64) _Atomic uint64_t kick_top[SV_MAX_QP / 4096];
	_Atomic uint64_t kick[SV_MAX_QP / 64];
	struct sv_mr_ent mr[SV_MAX_MR];
	struct sv_qp_ent qp[SV_MAX_QP];
	struct sv_cq_ent cq[SV_MAX_CQ];
	struct sv_chan_ent chan[SV_MAX_CHAN];
	struct sv_srq_ent srq[SV_MAX_SRQ];
};

static inline void sv_bits_set(struct sv_bits *b, uint32_t bit)
{
	uint32_t word = (bit / 64) % 64;
	uint64_t mask = 1ull << (bit % 64);

	atomic_fetch_or(&b->leaf[word], mask);
	/* A taker clears the top word before it takes the leaf: a top bit seen set covers our leaf bit. */
	if (!(atomic_load(&b->top) & (1ull << word)))
		atomic_fetch_or(&b->top, 1ull << word);
}

#endif

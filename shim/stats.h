/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters in shared memory. Each process that has a flagged connection or listener owns one sealed memfd named
 * "vkrdma-stats", found by vkrdma-stat through /proc/PID/maps and opened through /proc/PID/fd. The layout below is the
 * contract between the library and vkrdma-stat; a change of it bumps VKR_STATS_VERSION. Writers: the owning process
 * only, plain relaxed stores (one writer a slot at a time, under the connection's lock). Readers tolerate tearing
 * between fields. A slot is free when state == VKR_SLOT_FREE; `generation` changes at each reuse.
 */
#ifndef VKR_STATS_H
#define VKR_STATS_H

#include "base.h"

#include <netinet/in.h>

#define VKR_STATS_MAGIC     0x31534b56u /* "VKS1" */
#define VKR_STATS_VERSION   2
#define VKR_STATS_CONNS     65536 /* sparse */
#define VKR_STATS_LISTENERS 256

enum vkr_slot_state { VKR_SLOT_FREE, VKR_SLOT_CONNECTING, VKR_SLOT_OPEN, VKR_SLOT_CLOSING };
enum vkr_transport { VKR_TRANSPORT_NONE, VKR_TRANSPORT_RDMA, VKR_TRANSPORT_TCP };
enum vkr_role { VKR_ROLE_CONNECT, VKR_ROLE_ACCEPT };
enum vkr_peer_kind { VKR_PEER_UNKNOWN, VKR_PEER_SHIM, VKR_PEER_NATIVE };

typedef _Atomic uint64_t vkr_counter;

/* Add by the only writer: a load and a store, no locked instruction. */
static inline void vkr_count(vkr_counter *c, uint64_t n)
{
	vkr_store(c, vkr_load(c) + n);
}

struct vkr_conn_stats { /* 512 bytes */
	_Atomic uint32_t state;
	uint32_t generation;
	uint8_t transport, role, peer_kind, pad0;
	int32_t fd;                      /* as the application sees it, -1 unknown */
	struct sockaddr_in6 local, peer; /* sin6_family AF_INET: v4 in mapped form */
	char rule[72];
	char reason[96];  /* why it is TCP; RDMA: empty, or that it is shared (pump.h) */
	int64_t since_ms; /* CLOCK_REALTIME */
	vkr_counter bytes_in, bytes_out, immediates_in, immediates_out, sends_in, sends_out;
	vkr_counter refreshes_in, refreshes_out; /* RegisterXferMemory received, sent */
	vkr_counter stalls;                      /* times a sender had bytes and no room at the peer */
	vkr_counter rings_in, rings_out;         /* with credits: new rings that the peer offered, and that we did */
	vkr_counter credits_in, credits_out;     /* looks that found new credit; times it was written */
	vkr_counter wakes_in, wakes_out;         /* requests for credit */
	vkr_counter mem_mr, mem_queue;           /* bytes now */
	uint8_t pad1[512 - 16 - 2 * sizeof(struct sockaddr_in6) - 72 - 96 - 8 - 17 * 8];
};

struct vkr_listener_stats { /* 256 bytes */
	_Atomic uint32_t state;
	int32_t fd;
	uint8_t transport, pad0[7];
	struct sockaddr_in6 local;
	char rule[72];
	char reason[96];
	vkr_counter accepted_rdma, accepted_tcp;
	uint8_t pad1[24];
};

struct vkr_totals { /* everything since start, closed connections included; live ones are added by the reader */
	vkr_counter conns_rdma, conns_tcp, failed;
	vkr_counter bytes_in, bytes_out, immediates_in, immediates_out, sends_in, sends_out;
	vkr_counter refreshes_in, refreshes_out, stalls;
	vkr_counter rings_in, rings_out, credits_in, credits_out, wakes_in, wakes_out;
};

struct vkr_stats_header { /* first page */
	uint32_t magic, version;
	uint32_t size_conn, size_listener, n_conns, n_listeners;
	int32_t pid;
	uint32_t provider; /* 0 verbs, 1 soft */
	int64_t start_ms;
	char program[64];
	char device[64];
	struct vkr_totals closed; /* under the stats lock */
	/* process-wide gauges and counters */
	vkr_counter qps, mrs, mr_bytes, cqs, library_fds;
	vkr_counter wakeups, cq_polls, cq_events; /* sleeps ended by a completion or notice; polls; events consumed */
	vkr_counter fallbacks;
	_Atomic uint32_t high_conn, high_listener; /* slots ever used: readers look no further */
};

struct vkr_stats_map {
	union {
		struct vkr_stats_header header;
		uint8_t page[4096];
	};
	struct vkr_listener_stats listeners[VKR_STATS_LISTENERS];
	struct vkr_conn_stats conns[VKR_STATS_CONNS];
};

_Static_assert(sizeof(struct vkr_conn_stats) == 512, "layout");
_Static_assert(sizeof(struct vkr_listener_stats) == 256, "layout");

/* The process's map; before vkr_stats_open() (or when it failed) a private static dummy, never NULL. */
extern VKR_LOCAL struct vkr_stats_header *vkr_stats;

void vkr_stats_open(void); /* idempotent, thread-safe; failure is logged once and harmless */

/* Take a slot; when none is left a shared overflow slot is returned (its numbers still reach the totals). Never NULL.
 */
struct vkr_conn_stats *vkr_stats_conn_new(enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
					  const char *rule);
void vkr_stats_conn_addrs(struct vkr_conn_stats *c, const struct sockaddr *local, const struct sockaddr *peer);
void vkr_stats_conn_open(struct vkr_conn_stats *c, enum vkr_transport t,
			 const char *reason); /* counts conns_rdma/tcp */
/* Adds its counters to `closed`; a slot that was never opened counts as failed. */
void vkr_stats_conn_free(struct vkr_conn_stats *c);
/* What the process has carried so far, as one line of level debug; nothing when it carried nothing. */
void vkr_stats_log(void);

struct vkr_listener_stats *vkr_stats_listener_new(const struct sockaddr *local, const char *rule);
void vkr_stats_listener_free(struct vkr_listener_stats *l);

/* fork's child: forget the parent's map (a new memfd is made when next needed). */
void vkr_stats_forked(void);

#endif

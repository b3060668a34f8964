/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two processes that speak through rdma.h alone, on softverbs. The server is forked before either starts an engine; it
 * accepts for ever and treats each stream as the stream's first 32 bytes ask. All waits follow the sleep protocol.
 */
#ifndef VKR_STREAM_PEER_H
#define VKR_STREAM_PEER_H

#include "rdma.h"

#include <netinet/in.h>

enum peer_job {
	PEER_ECHO,   /* returns what comes until EOF, then closes */
	PEER_SINK,   /* checks `total` bytes of pattern(seed), answers one byte, waits for EOF, closes */
	PEER_SOURCE, /* sends `total` bytes of pattern(seed) and closes */
	PEER_DUPLEX, /* both at once, then closes */
	PEER_STALL,  /* reads nothing until `total` ms have passed, then as SINK of `limit` bytes */
	PEER_UNREAD, /* waits until 1 byte is there, closes without reading it */
	PEER_DIE,    /* kills itself (the whole server) at once */
	PEER_HALF,   /* reads to EOF, then sends `total` bytes and closes */
};

struct peer_order {
	uint32_t job, seed;
	uint64_t total;
	uint32_t limit; /* most bytes a call, 0: any */
	uint32_t random;
	uint64_t spare;
};

_Static_assert(sizeof(struct peer_order) == 32, "sent as it is");

struct peer {
	pid_t pid;
	struct sockaddr_in addr;
	int ask, answer; /* pipes: gauges */
};

struct peer_gauges {
	uint64_t qps, mrs, mr_bytes;
};

/* Forks the server; returns when it listens. */
void peer_start(struct peer *p);
void peer_stop(struct peer *p);
void peer_gauges(struct peer *p, struct peer_gauges *g);
void peer_link(struct peer *p, bool up);
void peer_listens(struct peer *p, bool on); /* shut down, or again */
/* What the server agrees to on connections from now on: VKR_FEAT_*. */
void peer_features(struct peer *p, uint32_t features);

/* Both sides. ms bounds each wait; a wait that takes longer aborts the program with a message. */
void stream_engine(void);
/* VKR_FEAT_* that both sides begin with: all, or STREAM_FEATURES. */
uint32_t stream_features(void);
struct vkr_stream *stream_connect(const struct sockaddr_in *to, const struct peer_order *order);
/* 0, or -errno with the reason printed to *reason */
int stream_try(const struct sockaddr_in *to, int timeout_ms, struct vkr_stream **s, const char **reason);
void stream_wait(struct vkr_stream *s, uint32_t mask);
/* false: time is up */
bool pollable_wait(struct vkr_pollable *p, uint32_t mask, int ms);
/* As blocking send and recv: everything or an error. recv: bytes until n or EOF, or -errno. */
extern uint32_t stream_refused; /* eager sends that found no room, though nothing had completed */
extern bool stream_eager;       /* with VKR_IO_EAGER */
ssize_t stream_send_all(struct vkr_stream *s, const void *buf, size_t n);
ssize_t stream_recv_all(struct vkr_stream *s, void *buf, size_t n);
/* total bytes of pattern(seed), in pieces of 1..limit bytes and 1..4 iovecs; 0 or -errno */
int stream_send_pattern(struct vkr_stream *s, uint32_t seed, uint64_t total, uint32_t limit);
/* n single-byte sends from that place of the pattern on */
/* pattern(seed) from position `at` on */
void stream_fill(uint8_t *buf, uint32_t seed, uint64_t at, size_t n);
int stream_send_pattern_at(struct vkr_stream *s, uint32_t seed, uint64_t at, uint32_t n);
int stream_recv_pattern(struct vkr_stream *s, uint32_t seed, uint64_t total, uint32_t limit);
int stream_duplex(struct vkr_stream *s, uint32_t seed_out, uint32_t seed_in, uint64_t total, uint32_t limit);

#endif

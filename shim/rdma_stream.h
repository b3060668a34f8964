/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One byte stream on one RC QP: what rdma_stream.c (completions, readiness), rdma_ring.c (receiving), rdma_send.c
 * (sending), rdma_chain.c (work requests), rdma_credit.c (credits between two shims) and rdma_close.c (ending it)
 * share, and what connection management sees. `lock` is stream->p.lock.
 *
 * The objects of verbs and of the CM are made and destroyed on the progress thread; it alone changes `phase` (under the
 * lock), but for VKR_PH_KEPT, which whoever takes the peer's word for it changes to VKR_PH_OPEN. Application threads
 * post work requests and copy bytes under the lock.
 */
#ifndef VKR_RDMA_STREAM_H
#define VKR_RDMA_STREAM_H

#include "engine.h"
#include "wire.h"

#include <sys/epoll.h>

/* Receives posted, and what a shim may have outstanding towards us: the difference covers the peer's control messages,
 * which it does not hold back. 240 buffers of 32 bytes, 14 spare send slots and 64 bytes of credit words fill two
 * pages. With credits, which count them, receives are posted again several together; well under the bound.
 */
#define VKR_RECV_DEPTH   240
#define VKR_RECV_BOUND   200
#define VKR_REPOST       8
#define VKR_SEND_DEPTH   64
#define VKR_SEND_CONTROL 8  /* of these, kept for control messages */
#define VKR_SEND_SIGNAL  16 /* at least every so many are signaled */
#define VKR_CQ_RESERVE   (VKR_RECV_DEPTH + VKR_SEND_DEPTH + 8)
#define VKR_RING_FIRST   (32u << 10)
#define VKR_RING_MAX     (1u << 20)
/* On loan to a writer that has at least twice a ring left; so many at once in a process. */
#define VKR_RING_LENT     (8u << 20)
#define VKR_LENT_MOST     8
#define VKR_RING_BELIEVED (64u << 20) /* of a peer */
#define VKR_STAGE_LEAST   (4u << 10)
#define VKR_STAGE_FIRST   (16u << 10)
#define VKR_STAGE_MAX     (256u << 10)
#define VKR_WRITE_MAX     (64u << 10)
/* A native server posts 1024 receives: stay under it (T1). */
#define VKR_NATIVE_BOUND 960
#define VKR_NO_BOUND     UINT32_MAX
#define VKR_ECHOES       8
#define VKR_MAX_SGE      8
#define VKR_CTL_SLOTS    14
#define VKR_CTL_SIZE     ((VKR_RECV_DEPTH + VKR_CTL_SLOTS + 2) * VKR_WIRE_SIZE)

enum vkr_phase {
	VKR_PH_NEW,      /* connector: to be started */
	VKR_PH_ADDR,     /* address resolution */
	VKR_PH_ROUTE,    /* route resolution */
	VKR_PH_REQUEST,  /* connector: REQ sent */
	VKR_PH_ACCEPTED, /* acceptor: REP sent */
	VKR_PH_OPEN,
	VKR_PH_DRAIN, /* our end: accepted bytes go out, their completions are awaited */
	VKR_PH_PROOF, /* a native peer: waiting until it has read (T9) */
	VKR_PH_KEPT,  /* over, and waiting for the next connection (rdma_keep.c) */
	VKR_PH_FLUSH, /* QP in ERR, waiting for the marker */
	VKR_PH_DEAD,  /* no verbs object is left */
};

/* Control messages to be sent */
enum {
	VKR_CTL_REFRESH = 1u << 0,
	VKR_CTL_ECHO = 1u << 1,
	VKR_CTL_PROBE = 1u << 2,
	VKR_CTL_RESET = 1u << 3,
	VKR_CTL_FIN = 1u << 4, /* after the last byte */
	/* with credits */
	VKR_CTL_SWITCH = 1u << 5, /* before the next byte */
	VKR_CTL_GRANT = 1u << 6,  /* credit that the peer asked for */
	VKR_CTL_CREDIT = 1u << 7, /* credit that it may find when it looks */
	VKR_CTL_OFFER = 1u << 8,
	VKR_CTL_WAKE = 1u << 9,
	VKR_CTL_OPEN = 1u << 10,
	VKR_CTL_KEEP = 1u << 11,
	VKR_CTL_LEND = 1u << 12,
	VKR_CTL_MUCH = 1u << 13,
	VKR_CTL_RETURN = 1u << 14, /* before the next byte, and behind a switch */
};

/* received and consumed: offsets, or with credits positions that only grow, in a ring of a power of two. */
struct vkr_rx_ring {
	uint8_t *buf;
	uint32_t len, received, consumed;
	struct ibv_mr *mr;
	bool lent; /* the other one is the connection's own */
};

/* Receiving with credits: what the peer may know of us, and what it has asked. */
struct vkr_rx_credit {
	uint32_t total;                /* bytes that have arrived */
	struct vkr_credit now;         /* bytes taken out, receives posted again */
	struct vkr_credit returned;    /* as written to the peer last */
	enum vkr_imm wanted;           /* a wake request that waits for its answer; VKR_IMM_DATA: none */
	uint32_t wanted_from;          /* its value */
	uint32_t ring_start;           /* now.bytes when the present ring began */
	struct vkr_credit ride, force; /* not returned: so much is taken along with data, so much goes by itself */
	bool loan_wanted;              /* the peer has asked for a ring on loan, when now.bytes was loan_from */
	uint32_t loan_from;
	bool offered;       /* rx[1 - wr] has been offered and is not written yet */
	uint32_t trim_mark; /* `total` when the trimmer came by */
};

struct vkr_tx {
	bool ready; /* the QP sends */
	/* the peer's ring */
	bool have_ring;
	uint64_t addr;
	uint32_t rkey, len, off;
	/* with credits: positions in the stream, modulo 2^32. acked.messages is `proven`'s counterpart. */
	struct vkr_credit acked;
	uint32_t pos, floor; /* written; of that, up to there the present ring is free again */
	bool waking;         /* a wake request waits for its answer */
	/* its own ring, while it writes to one on loan; everything before `from` lies there */
	bool borrowed;
	struct {
		uint64_t addr;
		uint32_t rkey, len, from;
	} own;
	uint32_t asked_at;    /* `pos` with the last request for a loan; the next only when that has been read */
	bool much;            /* a large send has not come to its end */
	uint32_t loan_mark;   /* `pos` when the trimmer came by */
	uint64_t credit_addr; /* the peer's word */
	uint32_t credit_rkey;
	/* send queue: sequence numbers of work requests */
	uint32_t posted, completed, unsignaled;
	uint32_t staged[VKR_SEND_DEPTH]; /* bytes of staging that each holds */
	/* receive-consuming messages (T1): posted, known to be reposted by the peer, allowed between them */
	uint32_t msgs, proven, bound;
	uint32_t data_mark; /* msgs at the last data message */
	uint32_t fin_mark;  /* `posted` when the end had been told */
	bool probing;
	uint16_t probe_token;
	uint32_t probe_mark;
	unsigned control; /* VKR_CTL_* */
	uint16_t echoes[VKR_ECHOES];
	int n_echoes;
	/* staging ring: positions only grow; put >= sent >= freed */
	uint8_t *buf;
	uint32_t cap;
	uint32_t limit; /* bytes that may be in it: VKR_STAGE_MAX, or a smaller SO_SNDBUF */
	struct ibv_mr *mr;
	uint32_t put, sent, freed;
};

struct vkr_listener;

/* What the context of a CM id points to. */
struct vkr_cm_owner {
	enum { VKR_OWNER_STREAM, VKR_OWNER_LISTENER, VKR_OWNER_HELD, VKR_OWNER_GUEST, VKR_OWNER_DEVICE } kind;
};

struct vkr_stream {
	struct vkr_pollable p;
	struct vkr_cm_owner owner;
	struct vkr_endpoint ep;
	struct vkr_task task;
	struct vkr_timer timer;
	struct vkr_stream *prev, *next; /* registry */
	unsigned epoch;                 /* of the process that made it: a forked child must not touch it */

	_Atomic int state;             /* enum vkr_stream_state */
	_Atomic(enum vkr_phase) phase; /* the progress thread looks at it without the lock */
	enum vkr_role role;
	enum vkr_peer_kind peer_kind;
	uint32_t features; /* both sides have */
	bool credits;      /* VKR_FEAT_CREDIT among them */
	struct vkr_conn_stats *stats;
	struct sockaddr_storage local, peer;

	struct rdma_cm_id *id;
	struct vkr_device *dev;
	struct ibv_pd *pd;
	struct ibv_qp *qp;
	bool qp_live; /* reached RTR or beyond: has to be flushed before it is destroyed */
	uint8_t *ctl; /* receive buffers, then send slots, then the credit words */
	struct ibv_mr *ctl_mr, *word_mr;
	_Atomic uint64_t *word; /* the peer's to write: word[0]; word[1] is the source of what we write to it */
	uint32_t inline_max;
	int max_sge;

	/* dead peers (rdma_alive.c) */
	uint32_t heard; /* changes with every completion that shows the peer alive; lock */
	uint32_t heard_seen;
	int64_t heard_ns;     /* when the sweep saw a change, or probed */
	int64_t keepalive_ns; /* SO_KEEPALIVE: the idle time, or 0; lock */
	bool alive_watched;
	struct vkr_stream *alive_prev, *alive_next;

	/* receiving */
	struct vkr_rx_ring rx[2];
	uint8_t rd, wr; /* read from, written to by the peer */
	size_t inq;
	uint32_t ring_first, ring_limit; /* lengths; equal: constant (T2) */
	int64_t refreshed_ns;
	uint16_t repost[VKR_REPOST + VKR_POLL_BATCH]; /* receives that have been taken and wait to be posted again */
	int n_repost;
	int flood_tokens;
	int64_t flood_ns;

	struct vkr_rx_credit rxc;
	struct vkr_tx tx;

	/* endings and errors (lock) */
	int error; /* pending, positive */
	/* What most connections have none of most of the time; one look tells. */
	union {
		struct {
			bool peer_fin;    /* no more bytes will come: FIN, or disconnected */
			bool peer_closed; /* disconnected */
			bool reset;       /* both directions are over */
			bool rd_shut, wr_shut;
			bool handed_over; /* only vkr_stream_forward() takes bytes out */
			bool nospace;     /* a send came up short: OUT is off until there is room again */
			bool broken;      /* the QP is of no more use */
		};
		uint64_t unusual;
	};
	bool app_closed; /* the socket layer has let go */
	bool end;        /* disconnect once drained, though the application still holds it */
	bool abort;      /* without draining */
	bool lingering;  /* PROOF with a shim: FIN_WAIT2, data that still comes is answered with Reset */
	bool lost;       /* because the peer did not answer it */
	bool flushed;    /* a flush completion came; DISCONNECTED should follow */
	bool held;       /* by the socket layer, or waiting in a listener; else it is freed when it is dead */
	bool marker_done;
	bool stall_counted;
	int64_t drain_ns; /* how long unsent bytes may drain behind a close */
	int64_t deadline, flushed_ns;

	/* connecting */
	struct sockaddr_storage bind;
	bool bound;
	bool mapped; /* addresses are shown as v4-mapped ones */
	int timeout_ms, attempts;
	int fail_errno;
	char reason[128];

	/* kept (rdma_keep.c) */
	struct vkr_stream *kept_prev, *kept_next; /* connector: those that wait (progress thread) */
	int64_t granted_ns;                       /* when the acceptor kept it, as each end knows it, or 0; lock */
	uint32_t home;                            /* acceptor: the serial of its listener */

	/* accepting; kept: the listener that it waits for */
	_Atomic(struct vkr_listener *) listener;
	struct vkr_stream *wait_prev, *wait_next;
	void *ticket; /* until accept takes it */
	void (*dismiss)(void *ticket);
};

/* ---- rdma_stream.c */

/* Progress thread or connect_start: a stream with a stats slot, in the registry, nothing of verbs yet. NULL: memory. */
struct vkr_stream *vkr_stream_new(enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
				  const char *rule);
/* Progress thread: out of the registry, freed. No verbs object is left. */
void vkr_stream_free(struct vkr_stream *s);
/* Lock held: open, and no end or error to tell of. */
static inline bool vkr_stream_plain(const struct vkr_stream *s)
{
	return vkr_likely(!s->unusual && !s->error && vkr_load(&s->state) == VKR_STREAM_OPEN);
}
/* Lock held. The ready mask as tcp_poll() has it. */
uint32_t vkr_stream_mask(const struct vkr_stream *s);
/* Lock held. Recomputes the ready mask and fires `edge`. */
static inline void vkr_stream_update(struct vkr_stream *s, uint32_t edge)
{
	uint32_t before = vkr_load(&s->p.ready), m;

	m = vkr_stream_plain(s) ? EPOLLOUT | (s->inq ? EPOLLIN : 0) : vkr_stream_mask(s);
	/* What was not so before has happened just now, whoever brought it about: a thread that reads may find credit
	 * and thereby make room for one that waits to write. */
	edge |= m & ~before;
	if (edge)
		vkr_pollable_set(&s->p, m, edge & (m | VKR_EDGE_STATE));
	else if (m != before)
		vkr_store_rel(&s->p.ready, m);
}
/* Lock held. The peer has told the end of its stream. */
void vkr_stream_ended(struct vkr_stream *s, uint32_t *edge);
/* Lock held. The connection is of no more use: pending error (positive errno), all readiness, the end is queued. */
void vkr_stream_break(struct vkr_stream *s, int error);
/* Lock held. The peer has answered with a reset. */
void vkr_stream_reset(struct vkr_stream *s);
/* Lock held. T5: one WARN line, then vkr_stream_break(ECONNRESET). */
void vkr_stream_violation(struct vkr_stream *s, const char *fmt, ...) VKR_PRINTF(2, 3);
/* Lock held. One more message that nobody asked for: true if there are too many. */
bool vkr_stream_flood(struct vkr_stream *s);
/* Progress thread. State OPEN, watches fired. */
void vkr_stream_opened(struct vkr_stream *s);
/* Progress thread, after the event was handled. The peer has disconnected: deliver what has arrived, then EOF. */
void vkr_stream_disconnected(struct vkr_stream *s);

extern pthread_mutex_t vkr_registry_lock;
extern struct vkr_stream *vkr_registry;  /* every stream */
extern pthread_cond_t vkr_registry_cond; /* a stream has gone DEAD or was freed */
extern unsigned vkr_epoch;

/* ---- rdma_verbs.c: progress thread */

/* PD, CQ reservation, QP in INIT with receives posted, first ring; s->id is resolved. 0 or -errno, *what then says what
 * was short. */
int vkr_stream_verbs_create(struct vkr_stream *s, const char **what);
/* INIT to RTS with our RNR values. */
int vkr_stream_verbs_connect(struct vkr_stream *s);
/* Everything vkr_stream_verbs_create made and the CM id; the QP is flushed or never went live. Rings with unread bytes
 * keep their memory. */
void vkr_stream_verbs_destroy(struct vkr_stream *s);
/* A ring of len registered with the connection's PD. Any thread, lock held (or nobody else has the stream). */
int vkr_ring_create(struct vkr_stream *s, struct vkr_rx_ring *ring, uint32_t len);
void vkr_ring_destroy(struct vkr_stream *s, struct vkr_rx_ring *ring);
/* Lock held. Posts n receives whose buffers are idx[]. */
int vkr_stream_post_receives(struct vkr_stream *s, const uint16_t *idx, int n);

/* wr_id: generation << 32 | kind and number */
#define VKR_WR_RECV   0x80000000u
#define VKR_WR_MARKER 0x40000000u
#define VKR_WR_SEQ    0x3fffffffu

/* ---- rdma_ring.c: lock held */

/* Without credits: the peer has filled ring wr. */
void vkr_rx_filled(struct vkr_stream *s);

static inline uint32_t vkr_rx_room(const struct vkr_stream *s)
{
	const struct vkr_rx_ring *ring = &s->rx[s->wr];

	return ring->len - ring->received + (s->credits ? ring->consumed : 0);
}

/* n bytes have arrived in ring wr, no more than vkr_rx_room(). */
static inline void vkr_rx_arrived(struct vkr_stream *s, uint32_t n)
{
	struct vkr_rx_ring *ring = &s->rx[s->wr];

	ring->received += n;
	s->rxc.total += n;
	if (!s->credits && ring->received == ring->len && !s->app_closed)
		vkr_rx_filled(s);
}

/* With credits. The peer waits for room: a larger ring, if the application keeps up with this one. */
void vkr_rx_pressure(struct vkr_stream *s);
/* With credits. The peer has much and no room: a ring on loan, if there is one. */
void vkr_rx_lend(struct vkr_stream *s);
/* A ring on loan was destroyed. */
void vkr_rx_loan_over(void);
void vkr_rx_forked(void);
/* With credits. The peer goes back to its own ring, or does not want the one on loan. False: it has none. */
bool vkr_rx_returned(struct vkr_stream *s);
/* With credits. The peer writes to the ring that was offered. False: none was. */
bool vkr_rx_switch(struct vkr_stream *s);
/* Gives back what an idle connection does not need; true if it has no more than that. */
bool vkr_rx_trim(struct vkr_stream *s, int64_t now);

/* ---- rdma_credit.c: lock held, both ends have VKR_FEAT_CREDIT */

/* Looks at the credit word. A word that cannot be ends the connection. */
void vkr_credit_look(struct vkr_stream *s);
/* A ring to write to from the next byte on. */
void vkr_credit_ring(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey);
/* A ring that the peer lends. False: it cannot be. */
bool vkr_credit_lent(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey);
/* Gives it back, if there is one and the peer has read all that came before it. */
void vkr_credit_return(struct vkr_stream *s);
/* The peer's ring is rx[wr] from now on: what is worth telling depends on its length. */
void vkr_credit_measure(struct vkr_stream *s);
/* The peer has asked, or much has become free: what to say goes into control, if anything. */
void vkr_credit_tell(struct vkr_stream *s);

static inline bool vkr_credit_beyond(const struct vkr_rx_credit *r, const struct vkr_credit *limit)
{
	return r->now.bytes - r->returned.bytes >= limit->bytes ||
	       r->now.messages - r->returned.messages >= limit->messages;
}

/* Bytes were taken out or receives posted again: is it time to tell the peer? True: control has something for it. */
static inline bool vkr_credit_due(struct vkr_stream *s)
{
	if (vkr_likely(!s->rxc.wanted && !vkr_credit_beyond(&s->rxc, &s->rxc.force)))
		return false;
	vkr_credit_tell(s);
	return s->tx.control & (VKR_CTL_GRANT | VKR_CTL_CREDIT | VKR_CTL_LEND);
}

/* The peer will not ask, but what goes out next can take credit along. */
static inline bool vkr_credit_rides(const struct vkr_stream *s)
{
	return s->credits && vkr_credit_beyond(&s->rxc, &s->rxc.ride) && !s->peer_fin;
}

/* An immediate other than data. */
void vkr_credit_imm(struct vkr_stream *s, enum vkr_imm type, uint32_t value, uint32_t *edge);
/* Queued bytes cannot go for want of credit: asks for it. */
void vkr_credit_sleep(struct vkr_stream *s);

/* ---- rdma_send.c: lock held */

void vkr_tx_push(struct vkr_stream *s);
void vkr_tx_completed(struct vkr_stream *s, uint32_t seq);
void vkr_tx_ring(struct vkr_stream *s, uint64_t addr, uint32_t len, uint32_t rkey);
void vkr_tx_proven(struct vkr_stream *s, uint32_t mark);
/* Every accepted byte is known to be at the peer. */
bool vkr_tx_drained(struct vkr_stream *s);
/* The end of the stream was told, and the peer has it. */
bool vkr_tx_fin_done(const struct vkr_stream *s);
/* Once all is posted: makes the last requests' completion known where they were posted unsignaled. */
void vkr_tx_marker(struct vkr_stream *s);
void vkr_tx_release(struct vkr_stream *s); /* staging back to the pool, whatever it holds */
bool vkr_tx_trim(struct vkr_stream *s);    /* the same if it is empty; false if it is kept */

static inline uint32_t vkr_sq_free(const struct vkr_stream *s)
{
	return VKR_SEND_DEPTH - (s->tx.posted - s->tx.completed);
}

/* ---- rdma_close.c: progress thread, lock not held */

/* Looks at phase and flags and takes the next step; the stream may be freed. Run by the task. */
void vkr_stream_step(struct vkr_task *task);
/* Ends it now: QP to ERR, flush, destroy. */
void vkr_stream_teardown(struct vkr_stream *s);
void vkr_stream_phase(struct vkr_stream *s, enum vkr_phase phase);
/* Runs the step at that time. */
void vkr_stream_timer(struct vkr_stream *s, int64_t due);

/* A write of nothing, for rdma_alive.c. */
void vkr_tx_probe(struct vkr_stream *s);

/* ---- rdma_alive.c: progress thread, lock not held */

/* An open stream: watched from now on, if it is to be; again when its interval changed. */
void vkr_alive_watch(struct vkr_stream *s);
void vkr_alive_forget(struct vkr_stream *s);
/* The stream's peer did not answer its queue pair: how are the others of that host? */
void vkr_alive_lost(const struct vkr_stream *dead);
/* A port has gone down: all are asked, if it is not back in a moment. */
void vkr_alive_doubt(void);
void vkr_alive_forked(void);

/* ---- rdma_trim.c */

/* Any thread. A stream has taken memory that it can give back when it is idle: staging, a second ring. */
void vkr_trim_later(void);
void vkr_trim_forked(void);

/* ---- rdma_keep.c: progress thread, lock not held unless said otherwise */

/* Both directions have ended and the application has let go. True: it waits for another connection; the caller has
 * nothing more to end. */
bool vkr_keep_begin(struct vkr_stream *s);
/* Does it still wait? Else it is to be ended. */
bool vkr_keep_goes_on(struct vkr_stream *s);
/* Nobody opens it any more, and the peer knows. False: it was not kept, or has been opened. */
bool vkr_keep_leave(struct vkr_stream *s);
/* The device has no room for another connection: the kept queue pair that is the next to grow old is torn down, of
 * either role. False: there is none. */
bool vkr_keep_yield(void);
/* Lock held, any thread: what the peer says of it. */
void vkr_keep_imm(struct vkr_stream *s, enum vkr_imm type, bool at_end, uint32_t *edge);
/* Lock held, any thread: a reset has come. True: all it says is that the acceptor keeps the queue pair no longer. */
bool vkr_keep_taken_back(struct vkr_stream *s);
/* A connection to this address that was opened on a kept queue pair, or NULL. */
struct vkr_stream *vkr_keep_take(const struct sockaddr *peer, const char *rule);
void vkr_keep_forked(void);

/* rdma_listen.c. The listener with this serial, or NULL. */
struct vkr_listener *vkr_listener_find(uint32_t serial);
/* Counts one more kept stream, if there may be one. */
bool vkr_listener_keeps(struct vkr_listener *l);
/* Lock of the stream held, any thread: a kept stream leaves; `opened`: it waits to be accepted. */
void vkr_listener_kept_leaves(struct vkr_stream *s, bool opened);

/* ---- rdma_cm.c: progress thread, lock not held; called from vkr_stream_step */

void vkr_cm_connect_begin(struct vkr_stream *s); /* phase NEW */
/* The attempt is over: state FAILED with the reason. The caller tears down. */
void vkr_cm_connect_failed(struct vkr_stream *s, int err, const char *fmt, ...) VKR_PRINTF(3, 4);
/* The stream is ending before or while it waits to be accepted. */
void vkr_cm_forget(struct vkr_stream *s);

/* rdma_device.c: has an eye on the device of a connection with this local address. Idempotent. */
void vkr_cm_device_watch(struct vkr_device *dev, const struct sockaddr *local);

#endif

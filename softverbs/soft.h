/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * softverbs' private structures. Lock order:
 *
 *   cm_lock -> sv_pd.lock -> sv_cq.outer -> sv_qp.lock -> sv_srq.lock -> sv_cq.inner -> sv_proc.lock -> event queues
 *
 * sv_cq.outer serialises whoever turns descriptors of the CQ's QPs into completions (ibv_poll_cq, the thread);
 * sv_cq.inner guards the ring of completions. sv_proc.lock guards the tables (peers, QP, CQ and channel numbers).
 * Functions return 0 or an errno value (positive, as verbs do) unless they say otherwise.
 */
#ifndef SV_SOFT_H
#define SV_SOFT_H

#include "segment.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define sv_container(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define sv_min(a, b)                  ((a) < (b) ? (a) : (b))
#define sv_max(a, b)                  ((a) > (b) ? (a) : (b))
#define sv_likely(x)                  __builtin_expect(!!(x), 1)
#define sv_unlikely(x)                __builtin_expect(!!(x), 0)
#define SV_EXPORT                     __attribute__((visibility("default")))

#define sv_load(p)         atomic_load_explicit((p), memory_order_relaxed)
#define sv_load_acq(p)     atomic_load_explicit((p), memory_order_acquire)
#define sv_store(p, v)     atomic_store_explicit((p), (v), memory_order_relaxed)
#define sv_store_rel(p, v) atomic_store_explicit((p), (v), memory_order_release)

#define SV_MAX_SGE    32
#define SV_MAX_WR     16384
#define SV_MAX_CQE    65536
#define SV_MAX_INLINE (256u << 10)
#define SV_MAX_MSG    (1u << 31)

/* ------------------------------------------------------------------ locks of the data path */

/* A mutex of this process: 0 free, 1 held, 2 held and somebody may be asleep. */
struct sv_lock {
	_Atomic uint32_t v;
};

void sv_lock_wait(struct sv_lock *l);
void sv_lock_wake(struct sv_lock *l);

static inline void sv_lock_init(struct sv_lock *l)
{
	atomic_init(&l->v, 0);
}

static inline void sv_lock(struct sv_lock *l)
{
	uint32_t free = 0;

	if (sv_unlikely(
		!atomic_compare_exchange_strong_explicit(&l->v, &free, 1, memory_order_acquire, memory_order_relaxed)))
		sv_lock_wait(l);
}

static inline void sv_unlock(struct sv_lock *l)
{
	if (sv_unlikely(atomic_exchange_explicit(&l->v, 0, memory_order_release) == 2))
		sv_lock_wake(l);
}

/* ------------------------------------------------------------------ queues of events behind a descriptor */

struct sv_event {
	struct sv_event *next;
};

/* The descriptor is readable while the queue is not empty. */
struct sv_evq {
	pthread_mutex_t lock;
	struct sv_event *head, **tail;
	void (*taken)(struct sv_event *e); /* called under the lock as one is taken; may be NULL */
	int fd;
	bool raised; /* false: the descriptor's counter is zero */
	bool quiet;  /* what the loop in the caller's thread pushes does not make it readable: its thread asks */
};

/* The number is kept in q->fd, and in *user where the program sees it. */
int sv_evq_init(struct sv_evq *q, _Atomic int *user);
void sv_evq_fini(struct sv_evq *q);
void sv_evq_push(struct sv_evq *q, struct sv_event *e);
/* Blocks unless the descriptor has O_NONBLOCK. NULL with errno (EAGAIN, EINTR). `fd` is what the user holds. */
struct sv_event *sv_evq_get(struct sv_evq *q);
bool sv_evq_pending(struct sv_evq *q);
/* Takes out every event for which match() holds and gives it to drop(). */
void sv_evq_purge(struct sv_evq *q, bool (*match)(struct sv_event *, void *), void *arg,
		  void (*drop)(struct sv_event *));

/* ------------------------------------------------------------------ objects */

struct sv_ctx {
	struct sv_evq async;
	pid_t pid;                   /* the process that made it */
	_Atomic bool gone;           /* the device was removed: nothing but destroying works */
	struct ibv_pd *cm_pd;        /* rdma_cm's own; its lock */
	struct sv_ctx *next, **prev; /* all contexts; sv_proc.lock */
	_Atomic int users;
	struct verbs_context v; /* last: grows down */
};

struct sv_qp;

struct sv_pd {
	struct ibv_pd pd;
	_Atomic int users;
	pthread_mutex_t lock;
	struct sv_qp *qps;
};

struct sv_range;

struct sv_mr {
	struct ibv_mr mr;
	uint32_t idx;
	int access;
	struct sv_range *range; /* swapped or arena memory that it uses, or NULL */
};

struct sv_chan {
	struct ibv_comp_channel ch;
	uint32_t idx, gen;
	pthread_mutex_t lock;
	struct sv_cq **cqs; /* by slot */
	uint32_t ncqs;
};

struct sv_cqe {
	struct ibv_wc wc;
	struct sv_qp *qp;
	uint32_t sq_seq;
	bool send;
};

struct sv_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct sv_cq_ent *ent;
	uint32_t idx;
	struct sv_chan *chan;
	uint32_t chan_slot;
	struct sv_lock outer, inner;
	struct sv_cqe *ring;
	uint32_t size;
	_Atomic uint32_t head, tail; /* monotonic */
	struct sv_qp **members;      /* by slot */
	uint32_t nmembers;
	_Atomic(struct sv_qp *) stalled; /* QPs with blocked sends that complete here; inner */
	_Atomic int users;
	_Atomic int overrun;
	_Atomic uint32_t events_got; /* delivered by ibv_get_cq_event */
	_Atomic uint32_t async_got;
	_Atomic uint32_t idle; /* polls in a row that found nothing; a racy count is good enough */
	struct ibv_wc cur;     /* ex.c: the completion at hand */
	pthread_mutex_t ex_lock;
};

struct sv_rwqe {
	uint64_t wr_id;
	uint32_t nsge;
	uint32_t len;
	struct ibv_sge sge[];
};

/* A queue of receives: a QP's own or an SRQ's. */
struct sv_rq {
	char *wqe;
	uint32_t stride, size, max_sge;
	uint32_t head, tail; /* monotonic: posted, taken */
};

struct sv_srq {
	struct ibv_srq srq;
	struct sv_srq_ent *ent;
	uint32_t idx;
	struct sv_lock lock;
	struct sv_rq rq;
	uint32_t limit;
	_Atomic int users;
	_Atomic uint32_t async_got;
};

/* A send work request being carried out. On the fast path it lives on the poster's stack and sg is the user's. */
struct sv_swr {
	struct sv_swr *next;
	uint64_t wr_id;
	uint32_t op, flags, imm, rkey;
	uint64_t raddr, cmp, swap;
	struct ibv_sge *sg;
	uint32_t nsge;
	uint32_t seq;
	uint64_t len, done;
	bool checked; /* local keys are good */
	bool started; /* a receive has been taken for it */
	bool told;    /* the immediate is in the ring */
	bool asked;   /* READ or atomic: the request is in the ring; write: pieces of it are, up to `until` */
	uint32_t until;
	bool is_inline;
	uint64_t late; /* carried out, but it completes only then (fault.c); 0: as usual */
};

enum sv_exec { SV_X_DONE, SV_X_RNR, SV_X_ROOM, SV_X_AWAY, SV_X_REPLY, SV_X_LATE, SV_X_FAIL };

struct sv_peer;

struct sv_qp {
	struct ibv_qp_ex ex; /* begins with struct ibv_qp */
	struct sv_qp *next_blocked;
	struct sv_qp *pd_next, **pd_prev;
	uint32_t idx;
	struct sv_qp_ent *ent;
	struct sv_ctx *ctx;
	struct sv_cq *scq, *rcq;
	uint32_t rslot;
	struct sv_srq *srq;
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr;
	bool sig_all;
	struct sv_lock lock;
	_Atomic int refs; /* the table's one, and the thread's */
	enum ibv_qp_state state;

	/* send side */
	uint32_t sq_seq;           /* next */
	_Atomic uint32_t sq_freed; /* slots below are free */
	struct sv_swr *pend, **pend_tail;
	enum sv_exec blocked;
	_Atomic bool on_blocked;
	struct sv_qp *stall_next;
	bool on_stalled; /* in scq->stalled */
	uint64_t deadline;
	uint64_t recheck;
	uint32_t rnr_left;
	uint8_t fail_status;

	/* the attached peer QP */
	_Atomic(struct sv_peer *) peer;
	struct sv_seg *rseg;
	struct sv_qp_ent *rent;
	uint32_t repoch; /* 0: not synchronised */
	struct sv_desc *rdesc;
	uint32_t *rlens;
	char *rpay;
	uint32_t rmask, rpay_size, rrq_size;
	struct sv_cq_ent *rcq_ent;
	uint32_t rcq_slot;
	bool r_split; /* its CQs differ: answers need a kick */
	bool r_rtr;   /* it has heard nothing yet */
	uint32_t bseq;
	uint32_t prod, sent, pay_prod, pay_next, pay_base;
	uint32_t last_ring_write; /* prod after the last SV_D_WRITE */
	bool has_ring_write;
	uint32_t bell; /* prod at the last doorbell */
	bool bell_solicited, bell_kick;

	/* receive side */
	struct sv_desc *desc;
	uint32_t *lens;
	char *pay;
	uint32_t cons;
	struct sv_rq rq;
	uint64_t rx_done; /* bytes of the current SEND that are in its receive */
	bool rx_open;
	struct sv_rwqe *rx_wqe; /* SRQ: the receive in use, a copy */
	uint32_t rx_taken;      /* messages that consumed a receive since RTR */
	bool credits_fixed;     /* SRQ: what a dead peer took and did not use is given back */
	bool est_told;
	_Atomic uint32_t async_got;

	/* answers that did not fit */
	struct sv_answer *answers, **answers_tail;

	struct sv_builder *builder; /* ex.c: extended posting */
};

/* A READ or atomic that the ring asked for, being answered. */
struct sv_answer {
	struct sv_answer *next;
	uint64_t va, len, done;
	bool atomic;
	uint64_t old;
};

/* ------------------------------------------------------------------ the process */

struct sv_proc {
	pthread_mutex_t lock;
	_Atomic bool ready;
	struct sv_seg *seg;
	char *data;
	int seg_fd, data_fd, kick_fd, ep_fd;
	/* The process that started all this. In a page that every kind of fork wipes, handlers or not. */
	_Atomic(_Atomic uint32_t *) pid;
	struct sv_qp **qps; /* [SV_MAX_QP] */
	struct sv_cq **cqs;
	struct sv_chan **chans;
	uint32_t qp_hint, cq_hint, chan_hint, mr_hint, srq_hint;
	uint32_t last_qp, last_cq; /* the youngest, for faults on request */
	uint8_t *qp_used;          /* QP numbers in use or quarantined */
	struct sv_peer *peers;
	struct sv_ctx *ctxs;
	bool fork_init;
	_Atomic int link_down; /* enum sv_link */
};

extern struct sv_proc sv_proc;

/* Starts the segment and the thread; errno value. Idempotent. */
int sv_start(void);
bool sv_started(void); /* by this very process */
/* True if the calling process made the object: a forked child must not touch what its parent shares. */
static inline bool sv_ours(const struct ibv_context *c)
{
	return sv_likely(sv_load(sv_load_acq(&sv_proc.pid)) ==
			 (uint32_t)sv_container(c, struct sv_ctx, v.context)->pid);
}
/* And its device is there. */
static inline bool sv_usable(const struct ibv_context *c)
{
	return sv_ours(c) && sv_likely(!sv_load(&sv_container(c, struct sv_ctx, v.context)->gone));
}
uint64_t sv_now(void); /* ns, monotonic */

/* What a device does to the program's memory. It knows no thread, and threads know of it by completions alone, perhaps
 * by way of another process: ThreadSanitizer is told to look away. */
#if defined(__SANITIZE_THREAD__)
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);
static inline void sv_dma(void *to, const void *from, size_t n)
{
	AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
	AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
	memcpy(to, from, n);
	AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
	AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
static inline void sv_dma(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}
#endif

/* ------------------------------------------------------------------ fds.c */

struct sv_source;
int sv_fd_new(int fd); /* takes it over, through the move hook; returns the number it has now */
void sv_fd_close(int fd);
/* Makes an eventfd readable; false: it is gone, or its counter is at its limit. No cancellation point: locks, the
 * caller's too, are held. */
bool sv_fd_raise(int fd);
/* Another word (four at most) that holds fd + bias and follows when late hooks move it. */
void sv_fd_slot(int fd, _Atomic int *slot, int bias);
void sv_fd_source(int fd, struct sv_source *src);
void sv_fd_user(int fd); /* the program knows the number: a forked child keeps it */
void sv_fd_fork_child(void);
extern pthread_mutex_t sv_fd_batch; /* outermost: held by the thread while it handles what has arrived */

/* ------------------------------------------------------------------ thread.c */

int sv_thread_start(void);
void sv_kick(struct sv_seg *seg, int kick_fd, uint32_t qp_idx);
static inline void sv_kick_self(uint32_t qp_idx)
{
	sv_kick(sv_proc.seg, sv_proc.kick_fd, qp_idx);
}
void sv_thread_wake(void);
/* QPs that the loop keeps and need not: it drops them now, or as soon as it comes round. */
void sv_loop_let_go(void);
/* The loop in a thread of the caller's (softverbs.h), and whether this is that thread. */
bool sv_loop_self(void);
void sv_loop_reset(void); /* fork's child */
void sv_loop_own(void);
void sv_loop_lend(int on);
int sv_loop_fd(void);
uint64_t sv_loop_due(void);
void sv_loop_run(void);
/* A descriptor the thread waits for. */
struct sv_source {
	void (*ready)(struct sv_source *s, uint32_t events);
	int fd;
	uint32_t events; /* waited for */
};
/* Frees p when the thread has left the batch of events that may still name it. */
void sv_retire(void *p);
int sv_source_add(struct sv_source *s, uint32_t events);
void sv_source_mod(struct sv_source *s, uint32_t events);
void sv_source_del(struct sv_source *s);
void sv_source_readd(struct sv_source *s);
/* Called by the thread when `due` has passed, without locks; re-arming from within is allowed. */
struct sv_timer {
	struct sv_timer *next;
	uint64_t due;
	bool armed;
	void (*fn)(struct sv_timer *t);
};
void sv_timer_set(struct sv_timer *t, uint64_t due);
void sv_timer_cancel(struct sv_timer *t);
bool sv_timer_armed(struct sv_timer *t);

/* ------------------------------------------------------------------ peer.c */

enum sv_msg_type {
	SV_M_HELLO = 1,
	SV_M_CHAN,
	SV_M_REQ,
	SV_M_REP,
	SV_M_RTU,
	SV_M_REJ,
	SV_M_DREQ,
	SV_M_DREP,
	SV_M_LINK, /* a: the sender's link is down */
};

struct sv_msg {
	uint32_t type;
	uint32_t a, b; /* CHAN: index; CM: receiver's id, sender's id */
	uint32_t qpn;
	uint32_t status;
	uint8_t resp_res, init_depth, flow, retry, rnr, srq, priv_len, ps;
	uint8_t priv[224];
	struct sockaddr_storage src, dst;
};

struct sv_sock;

#define SV_AWAY_DEAD  1
#define SV_AWAY_OURS  2 /* our link is down */
#define SV_AWAY_THEIR 4 /* its link is down */

struct sv_peer {
	struct sv_peer *next;
	pid_t pid;
	int refs;
	_Atomic int dead;
	_Atomic int away;    /* SV_AWAY_*: nothing reaches it */
	struct sv_sock *out; /* what we send on */
	struct sv_sock *socks;
	_Atomic(struct sv_seg *) seg; /* NULL until its HELLO */
	char *data;
	_Atomic int kick_fd;
	_Atomic int *chan_fd; /* [SV_MAX_CHAN], mapped on first use */
	uint32_t *chan_gen;
	uint8_t *chan_sent;
	int pid_fd;
};

/* A connection to whoever listens on an abstract name. NULL and errno. The reference is the caller's. */
struct sv_peer *sv_peer_connect(const char *name, size_t len);
struct sv_peer *sv_peer_by_qpn(uint32_t qpn);
struct sv_peer *sv_peer_by_pid(pid_t pid); /* one that is known; else NULL */
void sv_peer_get(struct sv_peer *p);
void sv_peer_put(struct sv_peer *p);
/* fd < 0: none. The message is queued when the socket is full. */
int sv_peer_send(struct sv_peer *p, const struct sv_msg *m, const int *fds, int nfds);
/* Our link: not up, no write and no message of the CM passes, either way. */
enum sv_link { SV_LINK_UP, SV_LINK_CUT, SV_LINK_DOWN /* and a send fails at once */ };
void sv_link_set(enum sv_link link);
void sv_peer_tell_chan(struct sv_peer *p, struct sv_cq *cq);
int sv_name_listen(const char *name, size_t len, struct sv_source *s, int backlog);
size_t sv_name_block(char *buf, size_t size, uint32_t block);
void sv_listen_ready(struct sv_source *s, uint32_t events); /* accepts */

/* ------------------------------------------------------------------ mr.c */

/* Own memory, by lkey. True if [addr, addr+len) may be used that way; `va` is the address to use. */
bool sv_lkey_ok(uint32_t lkey, uint64_t addr, uint64_t len, int access, uint32_t pd, char **va);
/* A peer's (or our own) entry, copied and checked. */
bool sv_rkey_get(struct sv_seg *seg, uint32_t rkey, uint64_t addr, uint64_t len, uint32_t access, uint32_t pd,
		 struct sv_mr_ent *out);
void *sv_arena_alloc(size_t len);
void sv_arena_free(void *p, size_t len);
struct ibv_mr *sv_mr_reg(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access);
int sv_mr_dereg(struct ibv_mr *mr);
/* Waits until no peer that passed its checks before this call is inside memory through this QP, or any QP of the PD. */
bool sv_quiesce_qp(struct sv_qp *qp);                /* false: the peer is stopped inside */
void sv_quiesce_pd(struct sv_pd *pd, uint32_t lkey); /* lkey: receives that name it are spoiled; 0: none do */
void sv_mr_reset(void);                              /* fork's child */
void sv_ring_reset(void);
void sv_srq_reset(void);

/* ------------------------------------------------------------------ verbs.c, cq.c, qp.c */

struct ibv_context *sv_ctx_open(void); /* shared by rdma_cm, opened once */
void sv_async_raise(struct sv_ctx *ctx, enum ibv_event_type type, void *element);
/* Forgets events of this element that nobody has got, then waits for those got to be acknowledged. */
void sv_async_forget(struct sv_ctx *ctx, void *element);
void sv_ctx_ops(struct verbs_context *v);
void sv_ctx_reset(void);
void sv_ctx_each(enum ibv_event_type type); /* raises it on every context */
void sv_ctx_gone(bool dead);                /* the device of every context goes; dead: and its verbs with it */
size_t sv_gid_table(struct ibv_gid_entry *out, size_t max);

struct sv_sink {
	struct ibv_wc *wc;
	int room, used;
};
/* inner not held */
void sv_cq_push(struct sv_cq *cq, const struct ibv_wc *wc, struct sv_qp *qp, uint32_t seq, bool send, bool solicited,
		struct sv_sink *sink);
/* An event is due if the CQ is armed. peer NULL: our own CQ. */
void sv_cq_fire(struct sv_peer *peer, struct sv_seg *seg, struct sv_cq_ent *ent, bool solicited);
int sv_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int sv_cq_notify(struct ibv_cq *cq, int solicited);
struct ibv_cq *sv_cq_create(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *ch, int vec);
struct ibv_cq_ex *sv_cq_create_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *attr);
int sv_cq_join(struct sv_cq *cq, struct sv_qp *qp, uint32_t *slot);
void sv_cq_leave(struct sv_cq *cq, struct sv_qp *qp, uint32_t slot); /* outer held by the caller */
void sv_cq_purge(struct sv_cq *cq, struct sv_qp *qp);
void sv_cq_overrun(struct sv_cq *cq);
void sv_cq_stall(struct sv_qp *qp); /* qp->lock held: in or out of scq->stalled, as qp->pend says */
void sv_chan_raise_pending(void);

struct ibv_qp *sv_qp_create(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr);
struct sv_qp *sv_qp_get(uint32_t idx); /* a reference, or NULL */
void sv_qp_put(struct sv_qp *qp);
void sv_qp_set_err(struct sv_qp *qp); /* lock held */
void sv_qp_peer_lost(struct sv_peer *p);
void sv_qp_peer_found(struct sv_peer *p);

/* ------------------------------------------------------------------ post.c, poll.c */

int sv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int sv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int sv_qp_ex_init(struct sv_qp *qp, uint64_t ops);
void sv_qp_ex_fini(struct sv_qp *qp);
void sv_send_progress(struct sv_qp *qp); /* lock held: retries blocked work requests, rings bells */
void sv_send_done(struct sv_qp *qp, struct sv_swr *w, enum ibv_wc_status status);
void sv_send_flush(struct sv_qp *qp);
/* Lock held. Between begin (true) and end we may touch the peer's memory. */
bool sv_remote_begin(struct sv_qp *qp);
bool sv_remote_attach(struct sv_qp *qp); /* sets rseg and rent once the peer process is known */
void sv_remote_end(struct sv_qp *qp);
/* Tells the peer what has been published since the last bell. */
void sv_doorbell(struct sv_qp *qp);
/* Inside begin/end. False: no room for a descriptor with len bytes. Else place them at sv_payload_at() and put it. */
bool sv_room(struct sv_qp *qp, uint32_t len);
char *sv_payload_at(struct sv_qp *qp);
void sv_put_desc(struct sv_qp *qp, const struct sv_desc *d);

int sv_rq_init(struct sv_rq *rq, uint32_t size, uint32_t sge);
void sv_rq_fini(struct sv_rq *rq);
void sv_kick_waiting(struct sv_qp *qp); /* lock held: the sender may go on */
void sv_recv_spoil(struct sv_qp *qp, uint32_t lkey);
int sv_rq_put(struct sv_rq *rq, const struct ibv_recv_wr *wr, uint32_t *len);
/* rcq->outer and qp->lock held */
void sv_drain(struct sv_qp *qp, struct sv_sink *sink);
void sv_answer_progress(struct sv_qp *qp);
void sv_sg_scatter(struct ibv_sge *sg, uint32_t n, uint64_t off, const char *from, uint64_t len);
void sv_sg_gather(struct ibv_sge *sg, uint32_t n, uint64_t off, char *to, uint64_t len);
/* The thread: drains, answers, retries. */
void sv_qp_service(struct sv_qp *qp);

/* ------------------------------------------------------------------ cm */

int sv_cm_pending(struct rdma_event_channel *channel);
void sv_cm_message(struct sv_peer *p, const struct sv_msg *m);
void sv_cm_peer_lost(struct sv_peer *p);
void sv_cm_peer_back(struct sv_peer *p); /* the link to it is up again; NULL: ours is */
void sv_cm_reset(void);
void sv_cm_removal(void); /* DEVICE_REMOVAL on every id that has a device */

/* ------------------------------------------------------------------ fault.c */

enum sv_fault {
	SV_FAULT_CREATE_QP,
	SV_FAULT_CREATE_CQ,
	SV_FAULT_REG_MR,
	SV_FAULT_POST,
	SV_FAULT_CQ,
	SV_FAULT_CANCEL,
	SV_FAULTS
};
extern _Atomic bool sv_faults; /* any are asked for */
long sv_qp_count(void);        /* this process's */
bool sv_fault_count(enum sv_fault f);
/* True if the call must fail. */
static inline bool sv_fault_hit(enum sv_fault f)
{
	return sv_unlikely(sv_load(&sv_faults)) && sv_fault_count(f);
}
bool sv_fault_no_device(void);
bool sv_fault_cancels(void);  /* posts are cancellation points */
bool sv_fault_memlock(void);  /* RLIMIT_MEMLOCK counts */
bool sv_fault_loopback(void); /* no device stands behind its addresses */
void sv_fault_start(void);
bool sv_fault_unreachable(unsigned *ms);
void sv_fault_request(void);  /* before a connection request leaves */
bool sv_fault_stale(void);    /* this request is refused as stale */
bool sv_fault_no_rtu(void);   /* RTUs get lost */
uint64_t sv_fault_late(void); /* sv_now() before which a request has not completed, or 0 */
int sv_fault_now(const char *word);

#endif

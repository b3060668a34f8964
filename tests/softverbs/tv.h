/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Support for the tests of the verbs and rdma_cm behaviour. Nothing here knows softverbs: the same executables run on
 * real rdma-core with a device.
 *
 * A test is one or two roles. Roles never run in the cmocka process: each runs in a fresh child (or, for a pair, both
 * in two processes and then both as two threads of one process, which share everything but their objects). A role that
 * fails prints where and why and ends its process with status 1; every process is bounded by alarm().
 *
 * Environment:
 *   TV_REQUIRE=1   no device is a failure (without it the test is skipped)
 *   TV_STRICT=1    also checks what IB or our design demands but real providers do not all do (queue full only after
 *                  a polled completion, EINVAL for a post in RESET, ...)
 *   TV_ADDR4/6     addresses that a device stands behind; 127.0.0.1 and ::1 unless set
 *   TV_GID         GID index; the first non-zero one unless set
 *   TV_SCALE       how many times longer than usual everything may take (an emulated processor)
 *   TV_ONLY        run only the tests that match this pattern (test_str*)
 */
#ifndef TV_H
#define TV_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <unistd.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

/* ---------------------------------------------------------------- checks */

_Noreturn void tv_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void tv_skip(const char *why);

#define CHECK(cond)                                                                                                    \
	do {                                                                                                           \
		if (!(cond))                                                                                           \
			tv_fail(__FILE__, __LINE__, "%s (errno %d %s)", #cond, errno, strerror(errno));                \
	} while (0)

#define CHECK_OP(a, op, b)                                                                                             \
	do {                                                                                                           \
		long long tv_a = (long long)(a), tv_b = (long long)(b);                                                \
		if (!(tv_a op tv_b))                                                                                   \
			tv_fail(__FILE__, __LINE__, "%s %s %s: %lld, %lld (errno %d)", #a, #op, #b, tv_a, tv_b,        \
				errno);                                                                                \
	} while (0)
#define CHECK_EQ(a, b)     CHECK_OP(a, ==, b)
#define CHECK_NE(a, b)     CHECK_OP(a, !=, b)
#define CHECK_MEM(a, b, n) tv_check_mem(__FILE__, __LINE__, (a), (b), (n))

/* rdma_* calls: -1 and errno is e */
#define CHECK_FAILS(call, e)                                                                                           \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK_EQ((call), -1);                                                                                  \
		CHECK_EQ(errno, (e));                                                                                  \
	} while (0)

void tv_check_mem(const char *file, int line, const void *a, const void *b, size_t n);
bool tv_strict(void);

/* ---------------------------------------------------------------- roles */

struct tv_side {
	int ctl;      /* stream socket to the other role */
	bool threads; /* both roles are threads of one process */
	void *arg;
};
typedef void (*tv_role)(struct tv_side *s);

/* For the cmocka tests. Limits in seconds, multiplied under sanitizers; each run gets the whole limit. */
void tv_solo(tv_role role, unsigned seconds);
void tv_procs(tv_role a, tv_role b, unsigned seconds);
void tv_pair(tv_role a, tv_role b, unsigned seconds); /* processes, then threads */

/* Building blocks of tests that manage processes themselves. tv_wait: 0, or what went wrong, printed. */
pid_t tv_spawn(tv_role role, int ctl, int close_fd, void *arg, unsigned seconds);
int tv_wait(pid_t pid);
void tv_socketpair(int sv[2]);

/* The control channel. EOF of the other side is a failure, unless tv_ctl_try: false then. */
void tv_put(int ctl, const void *p, size_t n);
void tv_get(int ctl, void *p, size_t n);
bool tv_ctl_try(int ctl, void *p, size_t n);
void tv_sync(struct tv_side *s); /* returns once both sides have called it */

uint64_t tv_ms(void);    /* monotonic milliseconds */
void tv_relax(void);     /* between two looks at something: a short sleep, which a busy machine rewards */
unsigned tv_scale(void); /* 1, or more under sanitizers */
void tv_fill(void *p, size_t n, uint32_t seed);
void tv_check_fill(const char *file, int line, const void *p, size_t n, uint32_t seed);
#define CHECK_FILL(p, n, seed) tv_check_fill(__FILE__, __LINE__, (p), (n), (seed))
int tv_fd_count(void);
long tv_rss_kib(void);
bool tv_readable(int fd, int ms);
void tv_nonblock(int fd);

/* ---------------------------------------------------------------- verbs */

struct tv_dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
};

void tv_dev_open(struct tv_dev *d);
void tv_dev_close(struct tv_dev *d);

struct tv_opt {
	struct ibv_qp_cap cap;
	int cqe;
	int sig_all;
	uint8_t rnr_retry;
	uint8_t min_rnr_timer;
	uint8_t rd_atomic;
	unsigned qp_access;
	unsigned mr_access;
	size_t len;
	struct ibv_srq *srq;
	struct ibv_cq *scq, *rcq; /* the caller's; NULL: made and owned by the end */
	void *buf;                /* the caller's memory of len bytes; NULL: page-aligned, made by the end */
	size_t first_recv; /* tv_cm_*: a receive of this length, wr_id 77, is posted before the connection is made */
	bool channel;      /* both CQs on a completion channel */
	bool no_rnr_timer; /* leave min_rnr_timer as the CM set it */
};
extern const struct tv_opt tv_defaults;

struct tv_wire {
	uint32_t qpn, psn, rkey, lid;
	uint64_t addr;
	union ibv_gid gid;
};

/* One QP with its queues and one registered buffer. */
struct tv_end {
	struct tv_dev *dev;
	struct tv_opt opt;
	struct ibv_comp_channel *chan;
	struct ibv_cq *scq, *rcq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *buf;
	size_t len;
	struct ibv_qp_cap cap; /* as granted */
	struct tv_wire peer;
	struct rdma_cm_id *id; /* NULL: made by ibv_create_qp */
};

/* In INIT when it returns, so that receives can be posted. */
void tv_end_open(struct tv_end *e, struct tv_dev *d, const struct tv_opt *opt);
void tv_end_close(struct tv_end *e);
void tv_end_wire(struct tv_end *e, struct tv_wire *w);
void tv_end_rtr(struct tv_end *e);
void tv_end_rts(struct tv_end *e);
void tv_end_join(struct tv_end *a, struct tv_end *b);  /* two ends of this process, to RTS */
void tv_end_meet(struct tv_end *e, struct tv_side *s); /* with the other role's end, to RTS, both ready */
void tv_end_err(struct tv_end *e);
enum ibv_qp_state tv_end_state(struct tv_end *e);
void tv_end_wait_state(struct tv_end *e, enum ibv_qp_state want);

/* Fills wr for e's buffer at off, the peer's at the same off: signaled, imm_data = htonl(id). */
void tv_wr(struct tv_end *e, struct ibv_send_wr *wr, struct ibv_sge *sge, enum ibv_wr_opcode op, size_t off, size_t len,
	   uint64_t id);
int tv_post_wr(struct tv_end *e, struct ibv_send_wr *wr);
void tv_post(struct tv_end *e, enum ibv_wr_opcode op, size_t off, size_t len, uint64_t id);
void tv_post_flags(struct tv_end *e, enum ibv_wr_opcode op, size_t off, size_t len, uint64_t id, unsigned flags);
int tv_try_recv(struct tv_end *e, size_t off, size_t len, uint64_t id);
void tv_recv(struct tv_end *e, size_t off, size_t len, uint64_t id);

bool tv_poll(struct ibv_cq *cq, struct ibv_wc *wc, int ms);
void tv_none(struct ibv_cq *cq, int ms); /* nothing may complete in ms */
/* The next completion, which must have this id and status; bounded by 10 s. */
struct ibv_wc tv_want_at(const char *file, int line, struct ibv_cq *cq, uint64_t id, enum ibv_wc_status status);
#define tv_want(cq, id, status) tv_want_at(__FILE__, __LINE__, (cq), (id), (status))
#define tv_ok(cq, id)           tv_want((cq), (id), IBV_WC_SUCCESS)

/* ---------------------------------------------------------------- rdma_cm */

const char *tv_addr4(void);
const char *tv_addr6(void);
socklen_t tv_sockaddr(struct sockaddr_storage *ss, const char *ip, uint16_t port);

struct rdma_event_channel *tv_channel(void);
/* The next event of the channel within 10 s, of this type; the caller acknowledges. */
struct rdma_cm_event *tv_event_at(const char *file, int line, struct rdma_event_channel *ch,
				  enum rdma_cm_event_type type);
#define tv_event(ch, type)  tv_event_at(__FILE__, __LINE__, (ch), (type))
#define tv_expect(ch, type) tv_ack(tv_event((ch), (type)))
void tv_ack(struct rdma_cm_event *ev);
struct rdma_cm_event *tv_any_event(struct rdma_event_channel *ch, int ms); /* NULL: none came */

struct rdma_cm_id *tv_listen(struct rdma_event_channel *ch, const char *ip, uint16_t *port, int backlog);
struct rdma_cm_id *tv_resolve(struct rdma_event_channel *ch, const char *ip, uint16_t port);
void tv_param(struct rdma_conn_param *p);
/* PD, CQs, buffer and rdma_create_qp on a bound id. Closed by tv_end_close, which destroys the QP, not the id. */
void tv_end_open_cm(struct tv_end *e, struct tv_dev *d, struct rdma_cm_id *id, const struct tv_opt *opt);
/* Whole connections between two roles: established when they return, addresses and keys exchanged by private data. */
void tv_cm_client(struct tv_end *e, struct rdma_event_channel *ch, uint16_t port, const struct tv_opt *opt);
void tv_cm_server(struct tv_end *e, struct rdma_event_channel *ch, const struct tv_opt *opt);
/* Disconnect from this side: QP flushed, DISCONNECTED taken, id destroyed. */
void tv_cm_end(struct tv_end *e, struct rdma_event_channel *ch);

#endif

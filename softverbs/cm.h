/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connection management, between its files. cm.lock guards every id, the listeners and the table of handles; it is the
 * outermost lock.
 */
#ifndef SV_CM_H
#define SV_CM_H

#include "soft.h"

#define CM_PRIV_REQ       56
#define CM_PRIV_REP       196
#define CM_PRIV_REJ       148
#define CM_REJ_TIMEOUT    4
#define CM_REJ_NO_SERVICE 8
#define CM_REJ_STALE      10
#define CM_REJ_CONSUMER   28
#define CM_DEF_TIMEOUT    14 /* 67 ms, as a verbs exponent */
#define CM_RD_ATOM        16
#define CM_TABLE          4096

enum cm_state {
	CM_IDLE,
	CM_BOUND,
	CM_LISTEN,
	CM_ADDR,
	CM_ROUTE,
	CM_REQ_SENT,
	CM_REQ_RCVD,
	CM_REP_SENT,
	CM_REP_RCVD,
	CM_ESTABLISHED,
	CM_DREQ_SENT,
	CM_DREQ_RCVD,
	CM_CLOSED,
};

struct cm_channel {
	struct rdma_event_channel ch;
	struct sv_evq q;
	pid_t pid;
};

/* A name that is held: bound, and with `listens` accepting. At most two an id (a dual-stack wildcard). */
struct cm_name {
	void *retire; /* sv_retire() overwrites the first word */
	struct sv_source src;
};

struct cm_id {
	struct rdma_cm_id id;
	uint32_t handle;
	enum cm_state state;
	bool gone; /* destroyed: only a late timer still sees it */
	bool sync;
	bool own_channel;
	pid_t pid;

	bool afonly, reuseaddr;
	bool shared; /* the port is held with others (REUSEADDR) */
	uint8_t tos, ack_timeout;
	bool ack_timeout_set;
	struct cm_name *names[2];
	struct cm_id *next_listener;
	int backlog;
	_Atomic int waiting; /* requests that the program has not got yet */

	struct sv_peer *peer;
	bool peer_recalled;                   /* where a listener was last time: it may have gone */
	uint32_t remote;                      /* the peer's handle */
	uint32_t remote_qpn;                  /* its QP */
	struct cm_id *next_remote, *next_qpn; /* in the tables below, while `remote` is known */
	bool filed;
	uint32_t local_qpn;
	uint8_t resp_res, init_depth, retry, rnr;
	struct sv_timer timer;     /* REQ or DREQ unanswered; TIMEWAIT */
	struct sv_msg *unanswered; /* our last REQ, REP or DREQ: sent again when a link is back */

	void *ep;             /* a passive endpoint's QP attributes */
	_Atomic uint32_t got; /* events, counted as they leave the queue */
	uint32_t acked;
	pthread_cond_t cond; /* with cm.lock */
	struct ibv_sa_path_rec path;
};

struct cm_event {
	struct sv_event e;
	struct rdma_cm_event ev;
	struct cm_id *owner; /* whose count it is in */
	uint8_t priv[224];
};

struct cm_global {
	pthread_mutex_t lock;
	struct cm_id **ids; /* by index */
	uint32_t cap, hint;
	uint16_t *gens;
	struct cm_id *listeners;
	struct cm_id *by_remote[CM_TABLE], *by_qpn[CM_TABLE];
};

extern struct cm_global cm;

#define cm_of(p) sv_container((p), struct cm_id, id)

/* errno and -1, as the exported functions do. */
static inline int cm_err(int err)
{
	if (!err)
		return 0;
	errno = err;
	return -1;
}

/* cm_id.c; cm.lock held unless said otherwise */
struct cm_id *cm_id_new(struct rdma_event_channel *ch, void *context, enum rdma_port_space ps);
struct cm_id *cm_id_find(uint32_t handle);
void cm_id_free(struct cm_id *id);
/* The peer's handle and QP are known from here on, until the id is freed. */
void cm_id_file(struct cm_id *id, uint32_t remote, uint32_t qpn);
static inline struct cm_id *cm_first_remote(uint32_t remote)
{
	return cm.by_remote[remote % CM_TABLE];
}
static inline struct cm_id *cm_first_qpn(uint32_t qpn)
{
	return cm.by_qpn[qpn % CM_TABLE];
}
int cm_id_device(struct cm_id *id); /* fills verbs, pd, port */
void cm_raise(struct cm_id *id, enum rdma_cm_event_type type, int status, const struct sv_msg *m, size_t priv);
void cm_raise_request(struct cm_id *listener, struct cm_id *fresh, const struct sv_msg *m);
bool cm_ours(const struct rdma_cm_id *id);
int cm_complete(struct cm_id *id); /* no lock: a synchronous id waits for its event */

/* cm_addr.c */
int cm_listen_names(struct cm_id *id);
void cm_names_drop(struct cm_id *id);
/* recall: where it was last time will do, told by *recalled. A reference, or NULL. */
struct sv_peer *cm_find_listener(const struct sockaddr *dst, enum rdma_port_space ps, bool recall, bool *recalled);
void cm_fill_path(struct cm_id *id);
bool cm_addr_match(const struct sockaddr *listening, const struct sockaddr *dst, bool afonly);

/* cm_conn.c */
int cm_send(struct cm_id *id, uint32_t type, uint32_t status, const struct rdma_conn_param *p);
int cm_qp_err(struct cm_id *id);
int cm_qp_connected(struct cm_id *id); /* no lock: INIT, RTR, RTS */
void cm_disconnect_gone(struct cm_id *id);
void cm_timewait(struct cm_id *id);

#endif

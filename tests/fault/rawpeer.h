/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One side of a Valkey-over-RDMA connection on plain libibverbs and librdmacm, without any of the shim's code: the
 * polite part that a hostile peer needs before it can misbehave. Set-up failures end the program with status 2; what
 * the other side does to the connection is recorded in the struct.
 */
#ifndef RAWPEER_H
#define RAWPEER_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

#define RP_RING  (1u << 20)
#define RP_TX    (4u << 20)
#define RP_CTL   64 /* bytes a receive buffer */
#define RP_RECVS 1024
#define RP_SENDS 1024

struct rawpeer {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *ring_mr, *tx_mr, *ctl_mr;
	uint8_t *ring, *tx, *ctl;

	/* What the other side advertised last. */
	uint64_t addr;
	uint32_t length, rkey, offset;
	unsigned registers; /* RegisterXferMemory received */
	uint8_t hello[56];  /* private data of the other side, if any */

	uint64_t bytes_in; /* by its immediates */
	uint32_t ring_used;
	bool polite;       /* answer a full ring with RegisterXferMemory */
	unsigned messages; /* SENDs received */
	unsigned in_flight;
	unsigned done; /* send completions without error */
	bool established, refused;
	int refused_status;
	bool dead;         /* DISCONNECTED, or the QP failed */
	bool no_receives;  /* never post any */
	bool no_rnr_retry; /* rp_accept allows the other side none, as native servers do */
	enum ibv_wc_status why;
};

/* Called at each step by name; a case may end the process there. */
extern void (*rp_step)(const char *step);

/* private_data may be NULL. Return when ESTABLISHED, or refused, or dead, or after ms. */
void rp_connect(struct rawpeer *p, const char *host, const char *port, const void *private_data, uint8_t len, int ms);
void rp_listen(struct rawpeer *p, const char *host, const char *port);
/* Waits for a request (for ever) and prepares the QP; rp_accept answers it and waits for ESTABLISHED. */
void rp_request_wait(struct rawpeer *p);
void rp_accept(struct rawpeer *p, const void *private_data, uint8_t len, int ms);

/* Handles completions and CM events for up to ms, returns early when the connection has died. */
void rp_pump(struct rawpeer *p, int ms);
/* Pumps until *what >= n. False: not within ms, or dead. */
bool rp_wait(struct rawpeer *p, const unsigned *what, unsigned n, int ms);
bool rp_wait_bytes(struct rawpeer *p, uint64_t n, int ms);

/* Posts; where the send queue is full it pumps first. False: dead, or no room within 5 s. */
bool rp_send(struct rawpeer *p, const void *msg, uint32_t len);
bool rp_message(struct rawpeer *p, uint16_t opcode, uint64_t address, uint32_t length, uint32_t rkey);
bool rp_register(struct rawpeer *p); /* the real ring */
/* From tx memory: length bytes at tx + from. */
bool rp_post(struct rawpeer *p, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey, uint32_t from, uint32_t len,
	     uint32_t imm);
/* Proper data: split at the end of the ring, waits for its refresh. */
bool rp_data(struct rawpeer *p, const void *buf, uint32_t len);

void rp_post_recv(struct rawpeer *p, unsigned slot);

#endif

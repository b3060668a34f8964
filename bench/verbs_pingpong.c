/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The yardstick: RDMA_WRITE_WITH_IMM there and back on raw verbs, the same operation that carries the shim's bytes,
 * with nothing around it. No flow control is needed: one message is under way at a time.
 *
 *   verbs_pingpong server HOST PORT
 *   verbs_pingpong client HOST PORT SIZE SECONDS|ROUNDSr event|poll [copy]
 *
 * event: sleeps on the completion channel after arming and a last look; poll: ibv_poll_cq in a loop. copy: the payload
 * is copied out of the ring and into the transmit buffer each way, as any program with its own buffers must.
 */
#include "bench.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#define DEPTH 64

struct hello {
	uint64_t addr;
	uint32_t rkey, size;
	char mode[8];
	uint32_t copy;
};

static struct rdma_event_channel *cm;
static struct rdma_cm_id *id;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *ring_mr, *tx_mr;
static char *ring, *tx, *user;
static struct hello mine, peer;
static unsigned unacked, sends;

static struct rdma_cm_id *event(enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;
	struct rdma_cm_id *from;

	if (rdma_get_cm_event(cm, &ev))
		bench_fail("rdma_get_cm_event");
	if (ev->event != type) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(ev->event), rdma_event_str(type));
		exit(1);
	}
	from = ev->id;
	if (ev->param.conn.private_data_len >= sizeof(peer))
		memcpy(&peer, ev->param.conn.private_data, sizeof(peer));
	rdma_ack_cm_event(ev);
	return from;
}

static void post_recv(void)
{
	struct ibv_recv_wr wr = {0}, *bad;

	if (ibv_post_recv(id->qp, &wr, &bad))
		bench_fail("ibv_post_recv");
}

static void prepare(size_t size)
{
	struct ibv_qp_init_attr attr = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
	int i;

	channel = ibv_create_comp_channel(id->verbs);
	cq = channel ? ibv_create_cq(id->verbs, 2 * DEPTH, NULL, channel, 0) : NULL;
	attr.send_cq = attr.recv_cq = cq;
	if (!pd || !cq || rdma_create_qp(id, pd, &attr))
		bench_fail("queue pair");
	ring = bench_buffer(size);
	tx = bench_buffer(size);
	user = bench_buffer(size);
	ring_mr = ibv_reg_mr(pd, ring, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	tx_mr = ibv_reg_mr(pd, tx, size, IBV_ACCESS_LOCAL_WRITE);
	if (!ring_mr || !tx_mr || ibv_req_notify_cq(cq, 0))
		bench_fail("memory region");
	for (i = 0; i < DEPTH / 2; i++)
		post_recv();
	mine.addr = (uintptr_t)ring;
	mine.rkey = ring_mr->rkey;
	mine.size = (uint32_t)size;
}

static void ping(void)
{
	struct ibv_sge sge = {.addr = (uintptr_t)tx, .length = mine.size, .lkey = tx_mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = 1,
				 .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				 .send_flags = ++sends % (DEPTH / 4) ? 0 : IBV_SEND_SIGNALED,
				 .imm_data = htonl(mine.size),
				 .wr.rdma = {.remote_addr = peer.addr, .rkey = peer.rkey}},
			   *bad;

	if (mine.copy)
		memcpy(tx, user, mine.size);
	if (ibv_post_send(id->qp, &wr, &bad))
		bench_fail("ibv_post_send");
}

/* One look: 1 the message came, 0 not yet, -1 the connection has ended. */
static int look(void)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(cq, 1, &wc) > 0) {
		if (wc.status)
			return -1;
		if (!(wc.opcode & IBV_WC_RECV))
			continue;
		post_recv();
		if (mine.copy)
			memcpy(user, ring, mine.size);
		return 1;
	}
	return 0;
}

static int ended(void)
{
	struct pollfd f[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = cm->fd, .events = POLLIN}};
	struct ibv_cq *which;
	void *ctx;

	if (poll(f, 2, -1) < 0)
		bench_fail("poll");
	if (f[0].revents) {
		if (ibv_get_cq_event(channel, &which, &ctx))
			bench_fail("ibv_get_cq_event");
		if (++unacked == 1000) {
			ibv_ack_cq_events(cq, unacked);
			unacked = 0;
		}
		if (ibv_req_notify_cq(cq, 0))
			bench_fail("ibv_req_notify_cq");
		return 0;
	}
	return 1;
}

/* False: the connection has ended. */
static int pong(int sleeping)
{
	struct pollfd f = {.fd = cm->fd, .events = POLLIN};
	unsigned spins = 0;
	int r;

	while (!(r = look())) {
		if (sleeping ? ended() : !(++spins % 4096) && poll(&f, 1, 0))
			return 0;
	}
	return r > 0;
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1)
		bench_fail("address");
	return sa;
}

static struct rdma_conn_param param(void)
{
	return (struct rdma_conn_param){.private_data = &mine,
					.private_data_len = sizeof(mine),
					.responder_resources = 1,
					.initiator_depth = 1,
					.retry_count = 7,
					.rnr_retry_count = 7};
}

static int serve(const char *host, const char *port)
{
	struct sockaddr_in sa = address(host, port);
	struct rdma_conn_param p;
	int sleeping;

	if (rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) || rdma_bind_addr(id, (struct sockaddr *)&sa) ||
	    rdma_listen(id, 1))
		bench_fail("rdma_listen");
	printf("listening\n");
	fflush(stdout);
	id = event(RDMA_CM_EVENT_CONNECT_REQUEST);
	sleeping = !strcmp(peer.mode, "event");
	prepare(peer.size);
	mine.copy = peer.copy;
	p = param();
	if (rdma_accept(id, &p))
		bench_fail("rdma_accept");
	event(RDMA_CM_EVENT_ESTABLISHED);
	while (pong(sleeping))
		ping();
	return 0;
}

static int drive(char **argv, int copy)
{
	struct sockaddr_in sa = address(argv[2], argv[3]);
	int sleeping = !strcmp(argv[6], "event");
	struct rdma_conn_param p;
	struct bench_rounds r;
	int64_t t;

	if (rdma_create_id(cm, &id, NULL, RDMA_PS_TCP) || rdma_resolve_addr(id, NULL, (struct sockaddr *)&sa, 2000))
		bench_fail("rdma_resolve_addr");
	event(RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(id, 2000))
		bench_fail("rdma_resolve_route");
	event(RDMA_CM_EVENT_ROUTE_RESOLVED);
	prepare(strtoull(argv[4], NULL, 10));
	snprintf(mine.mode, sizeof(mine.mode), "%s", argv[6]);
	mine.copy = (uint32_t)copy;
	p = param();
	if (rdma_connect(id, &p))
		bench_fail("rdma_connect");
	event(RDMA_CM_EVENT_ESTABLISHED);
	bench_start(&r, argv[5]);
	while (bench_more(&r)) {
		t = bench_now();
		ping();
		if (!pong(sleeping))
			bench_fail("the connection ended");
		bench_round(&r, bench_now() - t);
	}
	bench_print(&r, copy ? "verbs+copy" : "verbs", argv[6], mine.size);
	rdma_disconnect(id);
	return 0;
}

int main(int argc, char **argv)
{
	cm = rdma_create_event_channel();
	if (!cm)
		bench_fail("no RDMA device");
	if (argc == 4 && !strcmp(argv[1], "server"))
		return serve(argv[2], argv[3]);
	if (argc >= 7 && !strcmp(argv[1], "client"))
		return drive(argv, argc > 7);
	fprintf(stderr,
		"usage: verbs_pingpong server HOST PORT | client HOST PORT SIZE SECONDS|ROUNDSr event|poll [copy]\n");
	return 2;
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "rawpeer.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void no_step(const char *step)
{
	(void)step;
}

void (*rp_step)(const char *step) = no_step;

static void fail(const char *what)
{
	fprintf(stderr, "rawpeer: %s: %s\n", what, strerror(errno));
	exit(2);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void *pages(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		fail("memory");
	return p;
}

static void open_channel(struct rawpeer *p)
{
	p->channel = rdma_create_event_channel();
	if (!p->channel)
		fail("event channel");
	if (fcntl(p->channel->fd, F_SETFL, fcntl(p->channel->fd, F_GETFL) | O_NONBLOCK) < 0)
		fail("event channel flags");
}

void rp_post_recv(struct rawpeer *p, unsigned slot)
{
	struct ibv_sge sge = {
	    .addr = (uintptr_t)p->ctl + (uint64_t)slot * RP_CTL, .length = RP_CTL, .lkey = p->ctl_mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;

	if (!p->no_receives && ibv_post_recv(p->id->qp, &wr, &bad) && !p->dead)
		fail("receive");
}

static void prepare(struct rawpeer *p)
{
	struct ibv_qp_init_attr attr = {
	    .qp_type = IBV_QPT_RC,
	    .cap = {.max_send_wr = RP_SENDS, .max_recv_wr = RP_RECVS, .max_send_sge = 1, .max_recv_sge = 1}};
	unsigned i;

	p->pd = ibv_alloc_pd(p->id->verbs);
	p->cq = p->pd ? ibv_create_cq(p->id->verbs, RP_SENDS + RP_RECVS, NULL, NULL, 0) : NULL;
	if (!p->cq)
		fail("completion queue");
	attr.send_cq = attr.recv_cq = p->cq;
	if (rdma_create_qp(p->id, p->pd, &attr))
		fail("queue pair");
	p->ring = pages(RP_RING);
	p->tx = pages(RP_TX);
	p->ctl = pages((size_t)RP_RECVS * RP_CTL);
	p->ring_mr = ibv_reg_mr(p->pd, p->ring, RP_RING, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	p->tx_mr = ibv_reg_mr(p->pd, p->tx, RP_TX, IBV_ACCESS_LOCAL_WRITE);
	p->ctl_mr = ibv_reg_mr(p->pd, p->ctl, (size_t)RP_RECVS * RP_CTL, IBV_ACCESS_LOCAL_WRITE);
	if (!p->ring_mr || !p->tx_mr || !p->ctl_mr)
		fail("memory region");
	for (i = 0; i < RP_RECVS; i++)
		rp_post_recv(p, i);
	rp_step("qp");
}

/* ------------------------------------------------------------------ events and completions */

static void take_hello(struct rawpeer *p, const struct rdma_cm_event *ev)
{
	size_t n = ev->param.conn.private_data_len;

	if (ev->param.conn.private_data)
		memcpy(p->hello, ev->param.conn.private_data, n < sizeof(p->hello) ? n : sizeof(p->hello));
}

static void cm_event(struct rawpeer *p, struct rdma_cm_event *ev)
{
	switch (ev->event) {
	case RDMA_CM_EVENT_ESTABLISHED:
		p->established = true;
		if (!p->listener)
			take_hello(p, ev);
		break;
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_UNREACHABLE:
	case RDMA_CM_EVENT_CONNECT_ERROR:
		p->refused = true;
		p->refused_status = ev->status;
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
		p->dead = true;
		break;
	default:
		break;
	}
}

static void message_in(struct rawpeer *p, const uint8_t *m)
{
	uint16_t op = (uint16_t)(m[0] << 8 | m[1]);
	uint64_t addr;
	uint32_t v[2];

	p->messages++;
	if (op != 3)
		return;
	memcpy(&addr, m + 16, 8);
	memcpy(v, m + 24, 8);
	p->addr = be64toh(addr);
	p->length = ntohl(v[0]);
	p->rkey = ntohl(v[1]);
	p->offset = 0;
	p->registers++;
}

static void completion(struct rawpeer *p, struct ibv_wc *wc)
{
	if (wc->status != IBV_WC_SUCCESS) {
		if (!p->dead)
			p->why = wc->status;
		p->dead = true;
		return;
	}
	if (!(wc->opcode & IBV_WC_RECV)) {
		p->in_flight--;
		p->done++;
		return;
	}
	if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
		p->bytes_in += ntohl(wc->imm_data);
		p->ring_used += ntohl(wc->imm_data);
	} else if (wc->byte_len == 32) {
		message_in(p, p->ctl + wc->wr_id * RP_CTL);
	}
	rp_post_recv(p, (unsigned)wc->wr_id);
	if (p->polite && p->ring_used >= RP_RING) {
		p->ring_used = 0;
		rp_register(p);
	}
}

/* True if anything was there. */
static bool look(struct rawpeer *p)
{
	struct rdma_cm_event *ev;
	struct ibv_wc wc[16];
	bool any = false;
	int i, n;

	while (p->cq && (n = ibv_poll_cq(p->cq, 16, wc)) > 0) {
		for (i = 0; i < n; i++)
			completion(p, &wc[i]);
		any = true;
	}
	while (!rdma_get_cm_event(p->channel, &ev)) {
		cm_event(p, ev);
		rdma_ack_cm_event(ev);
		any = true;
	}
	return any;
}

static void idle(struct rawpeer *p)
{
	struct pollfd f = {.fd = p->channel->fd, .events = POLLIN};

	(void)poll(&f, 1, 1);
}

void rp_pump(struct rawpeer *p, int ms)
{
	int64_t until = now_ms() + ms;

	do {
		if (!look(p))
			idle(p);
	} while (!p->dead && now_ms() < until);
}

bool rp_wait(struct rawpeer *p, const unsigned *what, unsigned n, int ms)
{
	int64_t until = now_ms() + ms;

	while (*what < n && !p->dead && now_ms() < until)
		if (!look(p))
			idle(p);
	return *what >= n;
}

bool rp_wait_bytes(struct rawpeer *p, uint64_t n, int ms)
{
	int64_t until = now_ms() + ms;

	while (p->bytes_in < n && !p->dead && now_ms() < until)
		if (!look(p))
			idle(p);
	return p->bytes_in >= n;
}

static void wait_answer(struct rawpeer *p, int ms)
{
	int64_t until = now_ms() + ms;

	while (!p->established && !p->refused && !p->dead && now_ms() < until)
		if (!look(p))
			idle(p);
}

/* ------------------------------------------------------------------ connecting */

static void expect(struct rawpeer *p, enum rdma_cm_event_type type)
{
	struct pollfd f = {.fd = p->channel->fd, .events = POLLIN};
	struct rdma_cm_event *ev;

	while (rdma_get_cm_event(p->channel, &ev)) {
		if (errno != EAGAIN || poll(&f, 1, 5000) <= 0)
			fail(rdma_event_str(type));
	}
	if (ev->event != type) {
		fprintf(stderr, "rawpeer: %s instead of %s\n", rdma_event_str(ev->event), rdma_event_str(type));
		exit(2);
	}
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		p->id = ev->id;
		take_hello(p, ev);
	}
	rdma_ack_cm_event(ev);
}

static struct addrinfo *resolve(const char *host, const char *port, int flags)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | flags}, *ai;

	if (getaddrinfo(host, port, &hints, &ai)) {
		fprintf(stderr, "rawpeer: bad address %s %s\n", host, port);
		exit(2);
	}
	return ai;
}

void rp_connect(struct rawpeer *p, const char *host, const char *port, const void *private_data, uint8_t len, int ms)
{
	struct addrinfo *ai = resolve(host, port, 0);
	struct rdma_conn_param param = {.private_data = private_data,
					.private_data_len = len,
					.responder_resources = 1,
					.initiator_depth = 1,
					.retry_count = 7,
					.rnr_retry_count = 7};

	open_channel(p);
	if (rdma_create_id(p->channel, &p->id, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_resolve_addr(p->id, NULL, ai->ai_addr, 2000))
		fail("rdma_resolve_addr");
	expect(p, RDMA_CM_EVENT_ADDR_RESOLVED);
	rp_step("addr");
	if (rdma_resolve_route(p->id, 2000))
		fail("rdma_resolve_route");
	expect(p, RDMA_CM_EVENT_ROUTE_RESOLVED);
	freeaddrinfo(ai);
	prepare(p);
	if (rdma_connect(p->id, &param))
		fail("rdma_connect");
	rp_step("connect");
	wait_answer(p, ms);
	if (p->established)
		rp_step("established");
}

void rp_listen(struct rawpeer *p, const char *host, const char *port)
{
	struct addrinfo *ai = resolve(host, port, AI_PASSIVE);

	open_channel(p);
	if (rdma_create_id(p->channel, &p->listener, NULL, RDMA_PS_TCP))
		fail("rdma_create_id");
	if (rdma_bind_addr(p->listener, ai->ai_addr))
		fail("rdma_bind_addr");
	if (rdma_listen(p->listener, 16))
		fail("rdma_listen");
	freeaddrinfo(ai);
}

void rp_request_wait(struct rawpeer *p)
{
	struct pollfd f = {.fd = p->channel->fd, .events = POLLIN};

	(void)poll(&f, 1, -1);
	expect(p, RDMA_CM_EVENT_CONNECT_REQUEST);
	rp_step("request");
	prepare(p);
}

void rp_accept(struct rawpeer *p, const void *private_data, uint8_t len, int ms)
{
	struct rdma_conn_param param = {.private_data = private_data,
					.private_data_len = len,
					.responder_resources = 1,
					.initiator_depth = 1,
					.retry_count = 5,
					.rnr_retry_count = p->no_rnr_retry ? 0 : 7};

	if (rdma_accept(p->id, &param))
		fail("rdma_accept");
	rp_step("accept");
	wait_answer(p, ms);
	if (p->established)
		rp_step("established");
}

/* ------------------------------------------------------------------ posting */

bool rp_post(struct rawpeer *p, enum ibv_wr_opcode opcode, uint64_t addr, uint32_t rkey, uint32_t from, uint32_t len,
	     uint32_t imm)
{
	struct ibv_sge sge = {.addr = (uintptr_t)p->tx + from, .length = len, .lkey = p->tx_mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge,
				 .num_sge = len ? 1 : 0,
				 .opcode = opcode,
				 .send_flags = IBV_SEND_SIGNALED,
				 .imm_data = htonl(imm)},
			   *bad;
	int64_t until = now_ms() + 5000;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = addr;
		wr.wr.rdma.rkey = rkey;
	}
	while (p->in_flight >= RP_SENDS - 1 && !p->dead && now_ms() < until)
		if (!look(p))
			idle(p);
	if (p->dead || p->in_flight >= RP_SENDS - 1)
		return false;
	if (ibv_post_send(p->id->qp, &wr, &bad)) {
		p->dead = true;
		return false;
	}
	p->in_flight++;
	return true;
}

/* Messages take turns in the last 64 KiB of the transmit memory. */
bool rp_send(struct rawpeer *p, const void *msg, uint32_t len)
{
	static uint32_t turn;
	uint32_t at = RP_TX - 65536 + (turn++ % 1024) * 64;

	if (len > 64)
		at = RP_TX - 65536;
	memcpy(p->tx + at, msg, len);
	return rp_post(p, IBV_WR_SEND, 0, 0, at, len, 0);
}

bool rp_message(struct rawpeer *p, uint16_t opcode, uint64_t address, uint32_t length, uint32_t rkey)
{
	uint8_t m[32] = {(uint8_t)(opcode >> 8), (uint8_t)opcode};
	uint64_t a = htobe64(address);
	uint32_t v[2] = {htonl(length), htonl(rkey)};

	memcpy(m + 16, &a, 8);
	memcpy(m + 24, v, 8);
	return rp_send(p, m, sizeof(m));
}

bool rp_register(struct rawpeer *p)
{
	return rp_message(p, 3, (uintptr_t)p->ring, RP_RING, p->ring_mr->rkey);
}

/* Everything posted has completed. */
static bool drained(struct rawpeer *p, int ms)
{
	int64_t until = now_ms() + ms;

	while (p->in_flight && !p->dead && now_ms() < until)
		if (!look(p))
			idle(p);
	return !p->in_flight;
}

bool rp_data(struct rawpeer *p, const void *buf, uint32_t len)
{
	static uint32_t at;
	uint32_t n, seen;

	while (len) {
		if (p->offset == p->length) {
			seen = p->registers;
			if (!rp_wait(p, &p->registers, seen + 1, 10000))
				return false;
		}
		n = len < p->length - p->offset ? len : p->length - p->offset;
		n = n < 65536 ? n : 65536;
		if (at + n > RP_TX - 65536) {
			if (!drained(p, 10000))
				return false;
			at = 0;
		}
		memcpy(p->tx + at, buf, n);
		if (!rp_post(p, IBV_WR_RDMA_WRITE_WITH_IMM, p->addr + p->offset, p->rkey, at, n, n))
			return false;
		p->offset += n;
		at += n;
		buf = (const uint8_t *)buf + n;
		len -= n;
	}
	return true;
}

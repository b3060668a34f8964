/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Data and completions of every RC operation: contents, lengths, immediates, order. Each runs between two processes and
 * between two threads of one.
 */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

#define BIG (5 * 1024 * 1024)
static const uint32_t lengths[] = {0,    1,    7,    8,     31,    64,    255,    256,    1023,   1024,    1025,
				   4095, 4096, 4097, 65535, 65536, 65537, 262143, 262144, 262145, BIG - 1, BIG};
enum { N = sizeof(lengths) / sizeof(lengths[0]) };

static void open_both(struct tv_dev *d, struct tv_end *e, struct tv_opt *o)
{
	tv_dev_open(d);
	tv_end_open(e, d, o);
}

static void close_both(struct tv_dev *d, struct tv_end *e, struct tv_side *s)
{
	tv_sync(s);
	tv_end_close(e);
	tv_dev_close(d);
}

/* ---------------------------------------------------------------- SEND, WRITE, WRITE_WITH_IMM, every length */

static void lengths_a(struct tv_side *s)
{
	static const enum ibv_wr_opcode op[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
						IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};
	static const enum ibv_wc_opcode done[] = {IBV_WC_SEND, IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RDMA_WRITE,
						  IBV_WC_RDMA_READ};
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_wc wc;

	o.len = BIG + 64;
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (int k = 0; k < 5; k++)
		for (int i = 0; i < N; i++) {
			tv_sync(s); /* b has its receive, or its data to be read, in place */
			if (op[k] == IBV_WR_RDMA_READ)
				memset(e.buf, 0xcc, lengths[i] + 64);
			else
				tv_fill(e.buf, lengths[i], k * 100 + i);
			tv_post(&e, op[k], 0, lengths[i], 1000 * k + i);
			wc = tv_ok(e.scq, 1000 * k + i);
			CHECK_EQ(wc.opcode, done[k]);
			CHECK_EQ(wc.qp_num, e.qp->qp_num);
			if (op[k] == IBV_WR_RDMA_READ) {
				CHECK_EQ(wc.byte_len, lengths[i]);
				CHECK_FILL(e.buf, lengths[i], k * 100 + i);
				CHECK_EQ(e.buf[lengths[i]], 0xcc);
			}
			tv_sync(s);
		}
	close_both(&d, &e, s);
}

static void lengths_b(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_wc wc;

	o.len = BIG + 64;
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (int k = 0; k < 5; k++)
		for (int i = 0; i < N; i++) {
			bool send = k < 2, imm = k == 1 || k == 3;

			if (k == 4)
				tv_fill(e.buf, lengths[i], k * 100 + i);
			else
				memset(e.buf, 0xcc, lengths[i] + 64);
			if (k != 2 && k != 4)
				tv_recv(&e, 0, send ? e.len : 0, 5000 + i);
			tv_sync(s);
			if (k != 2 && k != 4) {
				wc = tv_ok(e.rcq, 5000 + i);
				CHECK_EQ(wc.opcode, send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM);
				CHECK_EQ(wc.byte_len, lengths[i]);
				CHECK_EQ(wc.qp_num, e.qp->qp_num);
				CHECK_EQ(!!(wc.wc_flags & IBV_WC_WITH_IMM), imm);
				if (imm)
					CHECK_EQ(ntohl(wc.imm_data), 1000 * k + i);
			}
			tv_sync(s);
			/* By now the sender has its completion: the data is here, plain writes' too. */
			CHECK_FILL(e.buf, lengths[i], k * 100 + i);
			if (k != 4)
				CHECK_EQ(e.buf[lengths[i]], 0xcc);
		}
	tv_none(e.rcq, 20);
	close_both(&d, &e, s);
}

/* ---------------------------------------------------------------- a stream of mixed operations */

enum { STREAM = 20000, SLOTS = 64, SLOT = 512 };

static uint32_t next_random(uint32_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 17;
	*x ^= *x << 5;
	return *x;
}

static void stream_a(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	uint32_t x = 12345, acked = 0;
	int out = 0;

	o.len = SLOTS * SLOT;
	o.cap.max_inline_data = 32;
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (uint32_t i = 0; i < STREAM; i++) {
		uint32_t len = next_random(&x) % SLOT, off = i % SLOTS * SLOT;
		bool sig = i % 8 == 7;

		/* b may lag by SLOTS messages, the size of its window. */
		while (i - acked >= SLOTS / 2)
			tv_get(s->ctl, &acked, 4);
		tv_fill(e.buf + off, len, i);
		tv_post_flags(&e, i % 3 == 0 ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM, off, len, i,
			      (sig ? IBV_SEND_SIGNALED : 0) | (len <= 32 ? IBV_SEND_INLINE : 0));
		if (sig && ++out == 2) {
			tv_ok(e.scq, i - 8);
			out--;
		}
	}
	tv_ok(e.scq, STREAM - 1);
	while (acked < STREAM)
		tv_get(s->ctl, &acked, 4);
	close_both(&d, &e, s);
}

static void stream_b(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_wc wc;
	uint32_t x = 12345;

	o.len = 2 * SLOTS * SLOT; /* the second half takes the sends */
	o.cap.max_recv_wr = SLOTS;
	open_both(&d, &e, &o);
	for (int i = 0; i < SLOTS; i++)
		tv_recv(&e, (SLOTS + i) * SLOT, SLOT, i);
	tv_end_meet(&e, s);
	for (uint32_t i = 0; i < STREAM; i++) {
		uint32_t len = next_random(&x) % SLOT, slot = i % SLOTS;

		wc = tv_ok(e.rcq, slot); /* receives are consumed in order by both kinds */
		CHECK_EQ(ntohl(wc.imm_data), i);
		CHECK_EQ(wc.byte_len, len);
		CHECK_EQ(wc.opcode, i % 3 == 0 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV);
		CHECK_FILL(e.buf + (i % 3 ? SLOTS + slot : slot) * SLOT, len, i);
		tv_recv(&e, (SLOTS + slot) * SLOT, SLOT, slot);
		if (i % 8 == 7) {
			uint32_t n = i + 1;

			tv_put(s->ctl, &n, 4);
		}
	}
	close_both(&d, &e, s);
}

/* ---------------------------------------------------------------- order: a completion implies all before it */

static void order_a(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	o.len = 1 << 20;
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (int i = 0; i < 60; i++) {
		/* 16 plain writes, unsignaled, and an empty send that tells of them. */
		tv_fill(e.buf, o.len, i);
		for (int j = 0; j < 16; j++)
			tv_post_flags(&e, IBV_WR_RDMA_WRITE, j * 65536, 65536, 900 + j, 0);
		tv_post(&e, IBV_WR_SEND, 0, 0, i);
		tv_ok(e.scq, i); /* only the signaled one */
		tv_sync(s);
	}
	tv_none(e.scq, 10);
	close_both(&d, &e, s);
}

static void order_b(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	o.len = 1 << 20;
	open_both(&d, &e, &o);
	tv_recv(&e, 0, 0, 0);
	tv_end_meet(&e, s);
	for (int i = 0; i < 60; i++) {
		CHECK_EQ(tv_ok(e.rcq, i).byte_len, 0);
		CHECK_FILL(e.buf, o.len, i);
		tv_recv(&e, 0, 0, i + 1);
		tv_sync(s);
	}
	close_both(&d, &e, s);
}

/* ---------------------------------------------------------------- sq_sig_all */

static void sig_all_a(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	o.sig_all = 1;
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (int i = 0; i < 20; i++)
		tv_post_flags(&e, IBV_WR_RDMA_WRITE, 0, 8, i, 0);
	for (int i = 0; i < 20; i++)
		tv_ok(e.scq, i);
	tv_none(e.scq, 10);
	close_both(&d, &e, s);
}

static void passive_b(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;

	open_both(&d, &e, NULL);
	tv_end_meet(&e, s);
	close_both(&d, &e, s);
}

/* ---------------------------------------------------------------- READ pipelined behind writes, fence */

static void reads_a(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct tv_dev d;
	struct tv_end e;

	o.rd_atomic = 1; /* what Valkey's natives ask for: one at a time, the rest waits */
	open_both(&d, &e, &o);
	tv_end_meet(&e, s);
	for (int round = 0; round < 50; round++) {
		/* Writes, then reads of the same place into another: RC executes in order. */
		tv_fill(e.buf, 8192, round);
		tv_post_flags(&e, IBV_WR_RDMA_WRITE, 0, 8192, 1, 0);
		for (int i = 0; i < 16; i++) {
			tv_wr(&e, &wr, &sge, IBV_WR_RDMA_READ, 16384 + i * 512, 512, 100 + i);
			wr.wr.rdma.remote_addr = e.peer.addr + i * 512;
			CHECK_EQ(tv_post_wr(&e, &wr), 0);
		}
		/* A fenced write of what was read comes after the read. */
		tv_wr(&e, &wr, &sge, IBV_WR_RDMA_WRITE, 16384, 8192, 2);
		wr.wr.rdma.remote_addr = e.peer.addr + 32768;
		wr.send_flags |= IBV_SEND_FENCE;
		CHECK_EQ(tv_post_wr(&e, &wr), 0);
		for (int i = 0; i < 16; i++) {
			CHECK_EQ(tv_ok(e.scq, 100 + i).byte_len, 512);
			CHECK_MEM(e.buf + 16384 + i * 512, e.buf + i * 512, 512);
		}
		tv_ok(e.scq, 2);
		tv_wr(&e, &wr, &sge, IBV_WR_RDMA_READ, 0, 8192, 3);
		wr.wr.rdma.remote_addr = e.peer.addr + 32768;
		memset(e.buf, 0, 8192);
		CHECK_EQ(tv_post_wr(&e, &wr), 0);
		tv_ok(e.scq, 3);
		CHECK_FILL(e.buf, 8192, round);
	}
	close_both(&d, &e, s);
}

/* ---------------------------------------------------------------- atomics */

static uint64_t atomic(struct tv_end *e, enum ibv_wr_opcode op, uint64_t add_or_cmp, uint64_t swap)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct ibv_wc wc;
	uint64_t old;

	tv_wr(e, &wr, &sge, op, 0, 8, 1);
	sge.addr = (uintptr_t)e->buf + 64; /* the old value comes here */
	wr.wr.atomic.compare_add = add_or_cmp;
	wr.wr.atomic.swap = swap;
	CHECK_EQ(tv_post_wr(e, &wr), 0);
	wc = tv_ok(e->scq, 1);
	CHECK_EQ(wc.opcode, op == IBV_WR_ATOMIC_CMP_AND_SWP ? IBV_WC_COMP_SWAP : IBV_WC_FETCH_ADD);
	CHECK_EQ(wc.byte_len, 8);
	memcpy(&old, e->buf + 64, 8);
	return old;
}

static void atomics_a(struct tv_side *s)
{
	int rc;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct tv_dev d;
	struct tv_end e;

	open_both(&d, &e, NULL);
	if (d.attr.atomic_cap == IBV_ATOMIC_NONE)
		tv_skip("no atomics");
	tv_end_meet(&e, s);
	CHECK_EQ(atomic(&e, IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0), 0);
	CHECK_EQ(atomic(&e, IBV_WR_ATOMIC_FETCH_AND_ADD, -1ull, 0), 5);
	CHECK_EQ(atomic(&e, IBV_WR_ATOMIC_CMP_AND_SWP, 99, 1), 4); /* differs: not swapped */
	CHECK_EQ(atomic(&e, IBV_WR_ATOMIC_CMP_AND_SWP, 4, 1ull << 63), 4);
	CHECK_EQ(atomic(&e, IBV_WR_ATOMIC_CMP_AND_SWP, 1ull << 63, 7), 1ull << 63);
	tv_sync(s); /* b sees 7, resets to 0 */
	tv_sync(s);
	for (int i = 0; i < 1000; i++)
		atomic(&e, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
	tv_sync(s);
	/* Not aligned to 8: an invalid request, which kills the QP. */
	tv_sync(s);
	tv_wr(&e, &wr, &sge, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8, 2);
	wr.wr.atomic.remote_addr += 4;
	rc = tv_post_wr(&e, &wr);
	if (rc) /* some refuse it at once */
		CHECK_EQ(rc, EINVAL);
	else
		tv_want(e.scq, 2, IBV_WC_REM_INV_REQ_ERR);
	close_both(&d, &e, s);
}

static void atomics_b(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	uint64_t v;

	open_both(&d, &e, NULL);
	if (d.attr.atomic_cap == IBV_ATOMIC_NONE)
		tv_skip("no atomics");
	tv_end_meet(&e, s);
	tv_sync(s);
	memcpy(&v, e.buf, 8);
	CHECK_EQ(v, 7);
	memset(e.buf, 0, 8);
	tv_sync(s);
	tv_sync(s);
	memcpy(&v, e.buf, 8);
	CHECK_EQ(v, 1000);
	tv_sync(s);
	close_both(&d, &e, s);
}

/* Two requesters in two places, one counter: no addition is lost, and each sees it grow. */
enum { ADDS = 3000 };

static void add_many(struct tv_end *e, uint64_t addr, uint32_t rkey)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint64_t old, last = 0;

	for (int i = 0; i < ADDS; i++) {
		tv_wr(e, &wr, &sge, IBV_WR_ATOMIC_FETCH_AND_ADD, 64, 8, i);
		wr.wr.atomic.remote_addr = addr;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
		CHECK_EQ(tv_post_wr(e, &wr), 0);
		tv_ok(e->scq, i);
		memcpy(&old, e->buf + 64, 8);
		CHECK(i == 0 || old > last);
		last = old;
	}
}

static void counter_owner(struct tv_side *s)
{
	struct tv_end e, l1, l2;
	struct tv_dev d;
	uint64_t v;

	open_both(&d, &e, NULL);
	if (d.attr.atomic_cap == IBV_ATOMIC_NONE)
		tv_skip("no atomics");
	tv_end_open(&l1, &d, NULL);
	tv_end_open(&l2, &d, NULL);
	tv_end_join(&l1, &l2);
	tv_end_meet(&e, s);
	add_many(&l1, (uintptr_t)e.buf, e.mr->rkey);
	tv_sync(s);
	memcpy(&v, e.buf, 8);
	CHECK_EQ(v, 2 * ADDS);
	tv_end_close(&l1);
	tv_end_close(&l2);
	close_both(&d, &e, s);
}

static void counter_visitor(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;

	open_both(&d, &e, NULL);
	if (d.attr.atomic_cap == IBV_ATOMIC_NONE)
		tv_skip("no atomics");
	tv_end_meet(&e, s);
	add_many(&e, e.peer.addr, e.peer.rkey);
	tv_sync(s);
	close_both(&d, &e, s);
}

#define PAIR(name, a, b, seconds)                                                                                      \
	static void test_##name(void **state)                                                                          \
	{                                                                                                              \
		tv_pair(a, b, seconds);                                                                                \
	}
PAIR(lengths, lengths_a, lengths_b, 60)
PAIR(stream, stream_a, stream_b, 60)
PAIR(order, order_a, order_b, 60)
PAIR(sig_all, sig_all_a, passive_b, 20)
PAIR(reads, reads_a, passive_b, 20)
PAIR(atomics, atomics_a, atomics_b, 20)
PAIR(counter, counter_owner, counter_visitor, 30)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_lengths), cmocka_unit_test(test_stream), cmocka_unit_test(test_order),
	    cmocka_unit_test(test_sig_all), cmocka_unit_test(test_reads),  cmocka_unit_test(test_atomics),
	    cmocka_unit_test(test_counter),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("data", tests, NULL, NULL);
}

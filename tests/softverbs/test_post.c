/* SPDX-License-Identifier: BSD-2-Clause */
/* Posting and its immediate errors: ibv_post_send(3), ibv_post_recv(3). */
#include "tv.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <cmocka.h>

struct rig {
	struct tv_dev d;
	struct tv_end a, b;
};

static void rig_open(struct rig *r, const struct tv_opt *o)
{
	tv_dev_open(&r->d);
	tv_end_open(&r->a, &r->d, o);
	tv_end_open(&r->b, &r->d, o);
	tv_end_join(&r->a, &r->b);
}

static void rig_close(struct rig *r)
{
	tv_end_close(&r->a);
	tv_end_close(&r->b);
	tv_dev_close(&r->d);
}

/* Queues of rxe hold more than they say. */
static uint32_t most(uint32_t cap)
{
	return tv_strict() ? cap : 4 * cap;
}

static int post_one(struct tv_end *e, uint64_t id, unsigned flags)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	tv_wr(e, &wr, &sge, IBV_WR_RDMA_WRITE, 0, 8, id);
	wr.send_flags = flags;
	return tv_post_wr(e, &wr);
}

/* Nobody receives and RNR is retried for ever, so nothing leaves the queue: exactly max_send_wr fit. */
static void full_sq_role(struct tv_side *s)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct rig r;
	uint32_t n = 0;
	int rc;

	rig_open(&r, NULL);
	tv_wr(&r.a, &wr, &sge, IBV_WR_SEND, 0, 8, 0);
	do {
		wr.wr_id = n;
		rc = tv_post_wr(&r.a, &wr);
		n += !rc;
		CHECK_OP(n, <=, most(r.a.cap.max_send_wr));
	} while (!rc);
	CHECK_EQ(rc, ENOMEM);
	CHECK_OP(n, >=, r.a.cap.max_send_wr);
	CHECK_EQ(tv_post_wr(&r.a, &wr), ENOMEM);
	/* Room again once completions are polled. */
	for (uint32_t i = 0; i < n; i++)
		tv_recv(&r.b, 0, 8, i);
	for (uint32_t i = 0; i < n; i++) {
		tv_ok(r.a.scq, i);
		tv_ok(r.b.rcq, i);
	}
	CHECK_EQ(post_one(&r.a, 99, IBV_SEND_SIGNALED), 0);
	tv_ok(r.a.scq, 99);
	rig_close(&r);
}

/*
 * Slots are the application's to account for: an unsignaled request holds its own until a later completion has been
 * polled, though it was executed long ago.
 */
static void unsignaled_slots_role(struct tv_side *s)
{
	struct rig r;
	uint32_t n;

	if (!tv_strict())
		tv_skip("providers differ");
	rig_open(&r, NULL);
	n = r.a.cap.max_send_wr;
	for (uint32_t i = 0; i < n - 1; i++)
		CHECK_EQ(post_one(&r.a, i, 0), 0);
	tv_none(r.a.scq, 20);
	CHECK_EQ(post_one(&r.a, 1000, IBV_SEND_SIGNALED), 0);
	CHECK_EQ(post_one(&r.a, 1001, 0), ENOMEM);
	tv_ok(r.a.scq, 1000); /* frees all before it */
	for (uint32_t i = 0; i < n; i++)
		CHECK_EQ(post_one(&r.a, i, i == n / 2 ? IBV_SEND_SIGNALED : 0), 0);
	CHECK_EQ(post_one(&r.a, 0, 0), ENOMEM);
	tv_ok(r.a.scq, n / 2);
	for (uint32_t i = 0; i <= n / 2; i++)
		CHECK_EQ(post_one(&r.a, 2000 + i, 0), 0);
	CHECK_EQ(post_one(&r.a, 0, 0), ENOMEM);
	rig_close(&r);
}

static void full_rq_role(struct tv_side *s)
{
	struct rig r;
	uint32_t n = 0;
	int rc;

	rig_open(&r, NULL);
	while ((rc = tv_try_recv(&r.b, 0, 8, n)) == 0) {
		n++;
		CHECK_OP(n, <=, most(r.b.cap.max_recv_wr));
	}
	CHECK_EQ(rc, ENOMEM);
	CHECK_OP(n, >=, r.b.cap.max_recv_wr);
	for (int i = 0; i < 3; i++)
		tv_post(&r.a, IBV_WR_SEND, 0, 8, i);
	for (int i = 0; i < 3; i++)
		tv_ok(r.b.rcq, i);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(tv_try_recv(&r.b, 0, 8, n + i), 0);
	CHECK_EQ(tv_try_recv(&r.b, 0, 8, 0), ENOMEM);
	rig_close(&r);
}

/* "It stops processing WRs from this list at the first failure and returns this failing WR through bad_wr." */
static void list_role(struct tv_side *s)
{
	enum { N = 6 };
	struct ibv_send_wr wr[N], *bad = NULL;
	struct ibv_recv_wr rw[N], *rbad = NULL;
	struct ibv_sge sge[N], many[64], rsge;
	struct rig r;

	rig_open(&r, NULL);
	for (int i = 0; i < 64; i++)
		many[i] = (struct ibv_sge){(uintptr_t)r.a.buf, 1, r.a.mr->lkey};
	for (int i = 0; i < N; i++) {
		tv_wr(&r.a, &wr[i], &sge[i], IBV_WR_RDMA_WRITE, i * 8, 8, i);
		wr[i].next = i + 1 < N ? &wr[i + 1] : NULL;
	}
	CHECK_OP(r.a.cap.max_send_sge, <, 64);
	wr[4].sg_list = many;
	wr[4].num_sge = r.a.cap.max_send_sge + 1;
	tv_fill(r.a.buf, 64, 3);
	CHECK_NE(ibv_post_send(r.a.qp, wr, &bad), 0);
	CHECK(bad == &wr[4]);
	for (int i = 0; i < 4; i++)
		tv_ok(r.a.scq, i);
	tv_none(r.a.scq, 20);
	CHECK_FILL(r.b.buf, 32, 3);
	for (int i = 32; i < 48; i++)
		CHECK_EQ(r.b.buf[i], 0);
	rsge = (struct ibv_sge){(uintptr_t)r.b.buf, 8, r.b.mr->lkey};
	for (int i = 0; i < N; i++)
		rw[i] = (struct ibv_recv_wr){
		    .wr_id = i, .sg_list = &rsge, .num_sge = 1, .next = i + 1 < N ? &rw[i + 1] : NULL};
	rw[2].sg_list = many;
	rw[2].num_sge = r.b.cap.max_recv_sge + 1;
	CHECK_NE(ibv_post_recv(r.b.qp, rw, &rbad), 0);
	CHECK(rbad == &rw[2]);
	for (int i = 0; i < 2; i++) {
		tv_post(&r.a, IBV_WR_SEND, 0, 8, i);
		tv_ok(r.b.rcq, i);
	}
	/* A whole good list. */
	wr[4].num_sge = 1;
	wr[4].sg_list = &sge[4];
	tv_ok(r.a.scq, 0);
	tv_ok(r.a.scq, 1);
	CHECK_EQ(ibv_post_send(r.a.qp, wr, &bad), 0);
	for (int i = 0; i < N; i++)
		tv_ok(r.a.scq, i);
	CHECK_FILL(r.b.buf, 48, 3);
	rig_close(&r);
}

static void sges_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_send_wr wr;
	struct ibv_recv_wr rw = {.wr_id = 5}, *rbad;
	struct ibv_sge sge[3], rs[3];
	struct rig r;

	o.cap.max_send_sge = o.cap.max_recv_sge = 3;
	rig_open(&r, &o);
	/* Gathered from three places, an empty one among them, scattered over three others. */
	tv_fill(r.a.buf, 100, 5);
	sge[0] = (struct ibv_sge){(uintptr_t)r.a.buf, 10, r.a.mr->lkey};
	sge[1] = (struct ibv_sge){(uintptr_t)r.a.buf + 10, 1, r.a.mr->lkey};
	sge[2] = (struct ibv_sge){(uintptr_t)r.a.buf + 11, 89, r.a.mr->lkey};
	rs[0] = (struct ibv_sge){(uintptr_t)r.b.buf + 5000, 50, r.b.mr->lkey};
	rs[1] = (struct ibv_sge){(uintptr_t)r.b.buf, 25, r.b.mr->lkey};
	rs[2] = (struct ibv_sge){(uintptr_t)r.b.buf + 100, 1000, r.b.mr->lkey};
	rw.sg_list = rs;
	rw.num_sge = 3;
	CHECK_EQ(ibv_post_recv(r.b.qp, &rw, &rbad), 0);
	tv_wr(&r.a, &wr, sge, IBV_WR_SEND, 0, 10, 1);
	sge[0].length = 10;
	wr.num_sge = 3;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	tv_ok(r.a.scq, 1);
	CHECK_EQ(tv_ok(r.b.rcq, 5).byte_len, 100);
	CHECK_MEM(r.b.buf + 5000, r.a.buf, 50);
	CHECK_MEM(r.b.buf, r.a.buf + 50, 25);
	CHECK_MEM(r.b.buf + 100, r.a.buf + 75, 25);
	CHECK_EQ(r.b.buf[125], 0);
	/* READ scatters too. */
	tv_wr(&r.a, &wr, sge, IBV_WR_RDMA_READ, 0, 10, 2);
	wr.num_sge = 3;
	wr.wr.rdma.remote_addr = r.a.peer.addr + 5000;
	sge[2].length = 39;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	tv_ok(r.a.scq, 2);
	CHECK_FILL(r.a.buf, 50, 5);
	rig_close(&r);
}

static void inline_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct ibv_send_wr wr;
	struct ibv_sge sge[2];
	uint8_t *ro = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t local[64];
	struct rig r;
	uint32_t max;
	int rc;

	o.cap.max_inline_data = 64;
	rig_open(&r, &o);
	max = r.a.cap.max_inline_data;
	CHECK_OP(max, >=, 64);
	/* No key, memory that nobody registered, and reusable at once. */
	tv_recv(&r.b, 0, 64, 1);
	tv_fill(local, 64, 4);
	tv_wr(&r.a, &wr, sge, IBV_WR_SEND, 0, 64, 1);
	sge[0] = (struct ibv_sge){(uintptr_t)local, 40, 0xdeadbeef};
	sge[1] = (struct ibv_sge){(uintptr_t)local + 40, 24, 0};
	wr.num_sge = 2;
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	memset(local, 0xee, 64);
	tv_ok(r.a.scq, 1);
	tv_ok(r.b.rcq, 1);
	CHECK_FILL(r.b.buf, 64, 4);
	/* From read-only memory, by WRITE and WRITE_WITH_IMM. */
	tv_fill(ro, 64, 6);
	CHECK_EQ(mprotect(ro, 4096, PROT_READ), 0);
	for (int imm = 0; imm < 2; imm++) {
		tv_recv(&r.b, 0, 0, 2);
		tv_wr(&r.a, &wr, sge, imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE, 128 + imm, 64, 2);
		sge[0] = (struct ibv_sge){(uintptr_t)ro, 64, 0};
		wr.send_flags |= IBV_SEND_INLINE;
		CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
		tv_ok(r.a.scq, 2);
		CHECK_FILL(r.b.buf + 128 + imm, 64, 6);
	}
	tv_ok(r.b.rcq, 2);
	/* The whole grant fits; one more byte does not (EINVAL or ENOMEM, providers differ), nor does it by two SGEs.
	 */
	CHECK_OP(max, <, r.a.len);
	tv_wr(&r.a, &wr, sge, IBV_WR_RDMA_WRITE, 0, max, 3);
	wr.send_flags |= IBV_SEND_INLINE;
	CHECK_EQ(tv_post_wr(&r.a, &wr), 0);
	tv_ok(r.a.scq, 3);
	sge[0].length = max + 1;
	rc = tv_post_wr(&r.a, &wr);
	CHECK(rc == EINVAL || rc == ENOMEM);
	sge[0].length = max;
	sge[1] = (struct ibv_sge){(uintptr_t)r.a.buf, 1, 0};
	wr.num_sge = 2;
	rc = tv_post_wr(&r.a, &wr);
	CHECK(rc == EINVAL || rc == ENOMEM);
	tv_none(r.a.scq, 20);
	CHECK_EQ(tv_end_state(&r.a), IBV_QPS_RTS);
	munmap(ro, 4096);
	rig_close(&r);
}

static void states_role(struct tv_side *s)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct tv_dev d;
	struct tv_end a;
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	if (!tv_strict())
		tv_skip("providers differ");
	tv_dev_open(&d);
	tv_end_open(&a, &d, NULL);
	tv_wr(&a, &wr, &sge, IBV_WR_SEND, 0, 8, 1);
	/* INIT: receives may be posted, sends not. */
	CHECK_EQ(tv_post_wr(&a, &wr), EINVAL);
	CHECK_EQ(tv_try_recv(&a, 0, 8, 1), 0);
	/* RTR: the same. */
	tv_end_wire(&a, &a.peer);
	tv_end_rtr(&a);
	CHECK_EQ(tv_post_wr(&a, &wr), EINVAL);
	CHECK_EQ(tv_try_recv(&a, 0, 8, 2), 0);
	/* ERR: both are taken, and flushed. */
	tv_end_err(&a);
	CHECK_EQ(tv_post_wr(&a, &wr), 0);
	CHECK_EQ(tv_try_recv(&a, 0, 8, 3), 0);
	tv_want(a.scq, 1, IBV_WC_WR_FLUSH_ERR);
	for (int i = 1; i <= 3; i++)
		tv_want(a.rcq, i, IBV_WC_WR_FLUSH_ERR);
	/* RESET: neither. */
	CHECK_EQ(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE), 0);
	CHECK_EQ(tv_post_wr(&a, &wr), EINVAL);
	CHECK_EQ(tv_try_recv(&a, 0, 8, 1), EINVAL);
	tv_none(a.rcq, 10);
	tv_end_close(&a);
	tv_dev_close(&d);
}

static void opcodes_role(struct tv_side *s)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	struct rig r;

	if (!tv_strict())
		tv_skip("rxe checks neither");
	rig_open(&r, NULL);
	tv_wr(&r.a, &wr, &sge, (enum ibv_wr_opcode)77, 0, 8, 1);
	CHECK_NE(tv_post_wr(&r.a, &wr), 0);
	tv_wr(&r.a, &wr, &sge, IBV_WR_SEND, 0, 8, 1);
	wr.num_sge = -1;
	CHECK_NE(tv_post_wr(&r.a, &wr), 0);
	CHECK_EQ(post_one(&r.a, 2, IBV_SEND_SIGNALED), 0);
	tv_ok(r.a.scq, 2);
	rig_close(&r);
}

#define SOLO(role)                                                                                                     \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
SOLO(full_sq)
SOLO(unsignaled_slots)
SOLO(full_rq)
SOLO(list)
SOLO(sges)
SOLO(inline)
SOLO(states)
SOLO(opcodes)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_full_sq), cmocka_unit_test(test_unsignaled_slots),
	    cmocka_unit_test(test_full_rq), cmocka_unit_test(test_list),
	    cmocka_unit_test(test_sges),    cmocka_unit_test(test_inline),
	    cmocka_unit_test(test_states),  cmocka_unit_test(test_opcodes),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("post", tests, NULL, NULL);
}

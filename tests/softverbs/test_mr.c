/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory regions: keys, bounds, access flags, every kind of memory, contents: ibv_reg_mr(3). */
#include "tv.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <cmocka.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* ---------------------------------------------------------------- registration alone */

static void flags_role(struct tv_side *s)
{
	struct tv_dev d;
	char *buf = aligned_alloc(4096, 8192);
	struct ibv_mr *mr;

	tv_dev_open(&d);
	/* "If REMOTE_WRITE or REMOTE_ATOMIC is set, then LOCAL_WRITE must be set too." */
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, buf, 8192, IBV_ACCESS_REMOTE_WRITE));
	CHECK_EQ(errno, EINVAL);
	CHECK(!ibv_reg_mr(d.pd, buf, 8192, IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_REMOTE_READ));
	for (int access = 0; access < 16; access++) {
		bool bad = (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
			   !(access & IBV_ACCESS_LOCAL_WRITE);

		mr = ibv_reg_mr(d.pd, buf, 8192, access);
		CHECK_EQ(!mr, bad);
		if (!mr)
			continue;
		CHECK(mr->context == d.ctx && mr->pd == d.pd && mr->addr == buf);
		CHECK_EQ(mr->length, 8192);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
	}
	/* RELAXED_ORDERING is optional: a provider may ignore it but not refuse it. */
	mr = ibv_reg_mr(d.pd, buf, 8192, ALL | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	free(buf);
	tv_dev_close(&d);
}

static void bad_memory_role(struct tv_side *s)
{
	struct tv_dev d;
	char *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	tv_dev_open(&d);
	CHECK_EQ(munmap(p + 4096, 4096), 0);
	/* Half of the range is not mapped: EFAULT (old kernels say ENOMEM). Nothing may have changed. */
	strcpy(p, "kept");
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, p, 8192, ALL));
	CHECK(errno == EFAULT || errno == ENOMEM);
	CHECK_EQ(strcmp(p, "kept"), 0);
	errno = 0;
	CHECK(!ibv_reg_mr(d.pd, p + 4096, 100, IBV_ACCESS_LOCAL_WRITE));
	CHECK(errno == EFAULT || errno == ENOMEM);
	/* A range that wraps around. */
	CHECK(!ibv_reg_mr(d.pd, (void *)(uintptr_t)-4096, 8192, IBV_ACCESS_LOCAL_WRITE));
	/* Read-only memory can be registered for reading, not for writing. */
	CHECK_EQ(mprotect(p, 4096, PROT_READ), 0);
	CHECK(!ibv_reg_mr(d.pd, p, 4096, ALL));
	mr = ibv_reg_mr(d.pd, p, 4096, IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	CHECK_EQ(strcmp(p, "kept"), 0);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	tv_dev_close(&d);
}

static void keys_role(struct tv_side *s)
{
	enum { N = 64 };
	struct tv_dev d;
	char *buf = aligned_alloc(4096, N * 4096);
	struct ibv_mr *mr[N];

	tv_dev_open(&d);
	for (int i = 0; i < N; i++) {
		mr[i] = ibv_reg_mr(d.pd, buf + i * 4096, 4096, ALL);
		CHECK(mr[i]);
		for (int j = 0; j < i; j++) {
			CHECK_NE(mr[i]->rkey, mr[j]->rkey);
			CHECK_NE(mr[i]->lkey, mr[j]->lkey);
		}
	}
	for (int i = 0; i < N; i++)
		CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
	free(buf);
	tv_dev_close(&d);
}

/* Contents survive registration and deregistration, alone and overlapping, in any order of release. */
static void contents_role(struct tv_side *s)
{
	enum { LEN = 10 * 4096 };
	static const struct {
		size_t off, len;
	} part[] = {{0, LEN}, {4096, 8192}, {100, 5000}, {4095, 2}, {3 * 4096 + 7, 4 * 4096}, {0, 1}};
	enum { N = sizeof(part) / sizeof(part[0]) };
	struct tv_dev d;
	uint8_t *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr[N];

	tv_dev_open(&d);
	for (unsigned round = 0; round < 24; round++) {
		tv_fill(buf, LEN, round);
		for (unsigned i = 0; i < N; i++) {
			mr[i] = ibv_reg_mr(d.pd, buf + part[i].off, part[i].len, ALL);
			CHECK(mr[i]);
			CHECK_FILL(buf, LEN, round);
		}
		tv_fill(buf, LEN, round + 100); /* the processor writes while it is registered */
		for (unsigned i = 0; i < N; i++) {
			CHECK_EQ(ibv_dereg_mr(mr[(i * (round % 2 ? 1 : 5) + round) % N]), 0);
			CHECK_FILL(buf, LEN, round + 100);
		}
	}
	CHECK_EQ(munmap(buf, LEN), 0);
	tv_dev_close(&d);
}

static void churn_role(struct tv_side *s)
{
	struct tv_dev d;
	char *buf = aligned_alloc(4096, 64 * 4096);
	int fds;
	long rss = 0;

	tv_dev_open(&d);
	memset(buf, 1, 64 * 4096);
	fds = -1;
	for (int i = 0; i < 3000; i++) {
		struct ibv_mr *mr = ibv_reg_mr(d.pd, buf + (i % 32) * 4096 + i % 3, 32 * 4096 - 5, ALL);

		CHECK(mr);
		CHECK_EQ(ibv_dereg_mr(mr), 0);
		if (i == 500) {
			fds = tv_fd_count();
			rss = tv_rss_kib();
		}
	}
	CHECK_EQ(tv_fd_count(), fds);
	if (tv_scale() == 1) /* a sanitizer's quarantine grows by itself */
		CHECK_OP(tv_rss_kib() - rss, <, 4096);
	free(buf);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- kinds of memory, seen by a peer */

enum { KIND_LEN = 3 * 4096 + 123 };
static uint8_t static_buf[KIND_LEN];
struct kind {
	uint8_t *p;
	size_t len;
};

static uint8_t *shared_file(int flags)
{
	FILE *f = tmpfile();
	uint8_t *p;

	CHECK(f);
	CHECK_EQ(ftruncate(fileno(f), KIND_LEN), 0);
	p = mmap(NULL, KIND_LEN, PROT_READ | PROT_WRITE, flags, fileno(f), 0);
	CHECK(p != MAP_FAILED);
	fclose(f);
	return p;
}

static int kinds(struct kind *k, uint8_t *stack)
{
	uint8_t *anon = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *shared = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int n = 0;

	CHECK(anon != MAP_FAILED && shared != MAP_FAILED);
	k[n++] = (struct kind){malloc(40), 40};
	k[n++] = (struct kind){malloc(KIND_LEN), KIND_LEN};
	k[n++] = (struct kind){malloc(3 << 20), 3 << 20};
	k[n++] = (struct kind){(uint8_t *)calloc(1, 1 << 20) + 1, (1 << 20) - 1};
	k[n++] = (struct kind){anon, 1 << 19};
	k[n++] = (struct kind){anon + (1 << 19) + 4000, 200}; /* across a page boundary */
	k[n++] = (struct kind){shared, 1 << 16};
	k[n++] = (struct kind){shared_file(MAP_SHARED), KIND_LEN};
	k[n++] = (struct kind){shared_file(MAP_PRIVATE), KIND_LEN};
	k[n++] = (struct kind){stack, KIND_LEN};
	k[n++] = (struct kind){static_buf, KIND_LEN};
	return n;
}
#define KINDS 11

static void owner_role(struct tv_side *s)
{
	uint8_t stack[KIND_LEN];
	static struct kind k[KINDS]; /* static: what it points to is no leak */
	struct ibv_mr *mr[KINDS];
	struct tv_dev d;
	struct tv_end e;
	int n = kinds(k, stack);

	CHECK_EQ(n, KINDS);
	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_recv(&e, 0, 0, 7);
	tv_end_meet(&e, s);
	for (int i = 0; i < n; i++) {
		tv_fill(k[i].p, k[i].len, i);
		mr[i] = ibv_reg_mr(d.pd, k[i].p, k[i].len, ALL);
		CHECK(mr[i]);
		CHECK_FILL(k[i].p, k[i].len, i);
		tv_fill(k[i].p, k[i].len, i + 50); /* a store after registration is what a reader must see */
		tv_put(s->ctl, &(uint64_t){(uintptr_t)k[i].p}, 8);
		tv_put(s->ctl, &mr[i]->rkey, 4);
		tv_put(s->ctl, &(uint64_t){k[i].len}, 8);
		/* The peer has read, then written; its last write carried an immediate. */
		tv_want(e.rcq, 7, IBV_WC_SUCCESS);
		CHECK_FILL(k[i].p, k[i].len, i + 100);
		tv_recv(&e, 0, 0, 7);
		tv_sync(s);
		/* And a plain write, which completes nothing here: visible once the peer has its completion. */
		tv_sync(s);
		CHECK_FILL(k[i].p, k[i].len, i + 150);
		if (i % 2)
			CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
		CHECK_FILL(k[i].p, k[i].len, i + 150);
	}
	for (int i = 0; i < n; i += 2)
		CHECK_EQ(ibv_dereg_mr(mr[i]), 0);
	for (int i = 0; i < n; i++)
		CHECK_FILL(k[i].p, k[i].len, i + 150);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void remote(struct tv_end *e, enum ibv_wr_opcode op, uint64_t addr, uint32_t rkey, size_t len)
{
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	tv_wr(e, &wr, &sge, op, 0, len, op);
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	CHECK_EQ(tv_post_wr(e, &wr), 0);
	tv_ok(e->scq, op);
}

static void visitor_role(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;

	o.len = 3 << 20;
	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_end_meet(&e, s);
	for (int i = 0; i < KINDS; i++) {
		uint64_t addr, len;
		uint32_t rkey;

		tv_get(s->ctl, &addr, 8);
		tv_get(s->ctl, &rkey, 4);
		tv_get(s->ctl, &len, 8);
		remote(&e, IBV_WR_RDMA_READ, addr, rkey, len);
		CHECK_FILL(e.buf, len, i + 50);
		tv_fill(e.buf, len, i + 100);
		remote(&e, IBV_WR_RDMA_WRITE_WITH_IMM, addr, rkey, len);
		tv_sync(s);
		tv_fill(e.buf, len, i + 150);
		remote(&e, IBV_WR_RDMA_WRITE, addr, rkey, len);
		tv_sync(s);
	}
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- overlapping, seen by a peer */

static void overlap_owner(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	struct ibv_mr *ro, *tail;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_fill(e.buf, e.len, 1);
	ro = ibv_reg_mr(d.pd, e.buf, e.len, IBV_ACCESS_REMOTE_READ);
	tail = ibv_reg_mr(d.pd, e.buf + 6000, 9000, ALL);
	CHECK(ro && tail);
	tv_end_meet(&e, s);
	tv_put(s->ctl, &ro->rkey, 4);
	tv_put(s->ctl, &tail->rkey, 4);
	tv_sync(s);
	/* The peer has written [6000, 15000) by the tail's key. */
	CHECK_FILL(e.buf, 6000, 1);
	CHECK_FILL(e.buf + 6000, 9000, 2);
	CHECK_EQ(ibv_dereg_mr(tail), 0);
	CHECK_FILL(e.buf + 6000, 9000, 2);
	e.buf[6000] ^= 0xff; /* still the memory that the other keys see */
	tv_sync(s);
	tv_sync(s);
	tv_end_wait_state(&e, IBV_QPS_ERR); /* the dead key was tried */
	CHECK_EQ(ibv_dereg_mr(ro), 0);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void overlap_visitor(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint32_t ro, tail;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	tv_get(s->ctl, &ro, 4);
	tv_get(s->ctl, &tail, 4);
	tv_fill(e.buf, 9000, 2);
	remote(&e, IBV_WR_RDMA_WRITE, e.peer.addr + 6000, tail, 9000);
	remote(&e, IBV_WR_RDMA_READ, e.peer.addr + 6000, ro, 9000);
	CHECK_FILL(e.buf, 9000, 2);
	tv_sync(s);
	tv_sync(s);
	memset(e.buf, 0, 9000);
	remote(&e, IBV_WR_RDMA_READ, e.peer.addr + 6000, ro, 9000);
	e.buf[0] ^= 0xff;
	CHECK_FILL(e.buf, 9000, 2);
	tv_sync(s);
	tv_wr(&e, &wr, &sge, IBV_WR_RDMA_WRITE, 6000, 100, 9);
	wr.wr.rdma.rkey = tail;
	CHECK_EQ(tv_post_wr(&e, &wr), 0);
	tv_want(e.scq, 9, IBV_WC_REM_ACCESS_ERR);
	tv_end_close(&e);
	tv_dev_close(&d);
}

/* ---------------------------------------------------------------- unmapped while registered */

/* The pages stay with the device: a peer's write neither faults the owner nor lands in what is mapped there next. */
static void unmap_owner(struct tv_side *s)
{
	struct tv_opt o = tv_defaults;
	struct tv_dev d;
	struct tv_end e;
	struct ibv_mr *mr;
	uint8_t *p = mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *q;

	tv_dev_open(&d);
	tv_end_open(&e, &d, &o);
	tv_recv(&e, 0, 0, 3);
	memset(p, 1, 16384);
	mr = ibv_reg_mr(d.pd, p, 16384, ALL);
	CHECK(mr);
	q = mmap(p, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0); /* unmaps the old one */
	CHECK(q == p);
	memset(q, 0x77, 16384);
	tv_end_meet(&e, s);
	tv_put(s->ctl, &(uint64_t){(uintptr_t)p}, 8);
	tv_put(s->ctl, &mr->rkey, 4);
	tv_ok(e.rcq, 3);
	for (int i = 0; i < 16384; i++)
		CHECK_EQ(q[i], 0x77);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	for (int i = 0; i < 16384; i++)
		CHECK_EQ(q[i], 0x77);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void unmap_visitor(struct tv_side *s)
{
	struct tv_dev d;
	struct tv_end e;
	uint64_t addr;
	uint32_t rkey;

	tv_dev_open(&d);
	tv_end_open(&e, &d, NULL);
	tv_end_meet(&e, s);
	tv_get(s->ctl, &addr, 8);
	tv_get(s->ctl, &rkey, 4);
	memset(e.buf, 0x11, 16384);
	remote(&e, IBV_WR_RDMA_WRITE_WITH_IMM, addr, rkey, 16384);
	tv_sync(s);
	tv_end_close(&e);
	tv_dev_close(&d);
}

static void test_flags(void **state)
{
	tv_solo(flags_role, 20);
}

static void test_bad_memory(void **state)
{
	tv_solo(bad_memory_role, 20);
}

static void test_keys(void **state)
{
	tv_solo(keys_role, 20);
}

static void test_contents(void **state)
{
	tv_solo(contents_role, 20);
}

static void test_churn(void **state)
{
	tv_solo(churn_role, 30);
}

static void test_kinds(void **state)
{
	tv_pair(owner_role, visitor_role, 30);
}

static void test_overlap(void **state)
{
	tv_pair(overlap_owner, overlap_visitor, 20);
}

static void test_unmap(void **state)
{
	tv_pair(unmap_owner, unmap_visitor, 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_flags),    cmocka_unit_test(test_bad_memory), cmocka_unit_test(test_keys),
	    cmocka_unit_test(test_contents), cmocka_unit_test(test_churn),      cmocka_unit_test(test_kinds),
	    cmocka_unit_test(test_overlap),  cmocka_unit_test(test_unmap),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("mr", tests, NULL, NULL);
}

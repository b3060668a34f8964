/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The extended interfaces: polling by ibv_cq_ex, posting by ibv_qp_ex. Both are built on the plain ones.
 */
#include "soft.h"

/* ------------------------------------------------------------------ polling */

static struct sv_cq *cq_of(struct ibv_cq_ex *ex)
{
	return sv_container(ex, struct sv_cq, ex);
}

static int poll_one(struct ibv_cq_ex *ex)
{
	struct sv_cq *cq = cq_of(ex);
	int n = sv_cq_poll(&cq->cq, 1, &cq->cur);

	if (n <= 0)
		return n < 0 ? EIO : ENOENT;
	ex->wr_id = cq->cur.wr_id;
	ex->status = cq->cur.status;
	return 0;
}

/* Between a start that succeeds and the end the completion at hand belongs to one thread. */
static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	int ret;

	if (attr->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&cq_of(ex)->ex_lock);
	ret = poll_one(ex);
	if (ret)
		pthread_mutex_unlock(&cq_of(ex)->ex_lock);
	return ret;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	pthread_mutex_unlock(&cq_of(ex)->ex_lock);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.wc_flags;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->cur.dlid_path_bits;
}

struct ibv_cq_ex *sv_cq_create_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	struct ibv_cq_ex *ex;
	struct ibv_cq *cq;

	if ((a->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS) ||
	    (a->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS) ||
	    ((a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	     (a->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = sv_cq_create(c, (int)a->cqe, a->cq_context, a->channel, (int)a->comp_vector);
	if (!cq)
		return NULL;
	ex = &sv_container(cq, struct sv_cq, cq)->ex;
	ex->start_poll = start_poll;
	ex->next_poll = poll_one;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_slid;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_dlid_path_bits;
	return ex;
}

/* ------------------------------------------------------------------ posting */

/* A list under construction, from wr_start to wr_complete or wr_abort; the lock is held between. */
struct sv_builder {
	pthread_mutex_t lock;
	uint32_t n, cap;
	int err;
	struct ibv_send_wr *wr;
	struct ibv_sge (*sge)[SV_MAX_SGE];
};

static struct sv_builder *builder(struct ibv_qp_ex *ex)
{
	return ((struct sv_qp *)ex)->builder;
}

static struct ibv_send_wr *current(struct ibv_qp_ex *ex)
{
	struct sv_builder *b = builder(ex);

	return b->n && !b->err ? &b->wr[b->n - 1] : NULL;
}

static void wr_start(struct ibv_qp_ex *ex)
{
	struct sv_builder *b = builder(ex);

	pthread_mutex_lock(&b->lock);
	b->n = 0;
	b->err = 0;
}

static struct ibv_send_wr *next_wr(struct ibv_qp_ex *ex, enum ibv_wr_opcode op)
{
	struct sv_builder *b = builder(ex);
	struct ibv_send_wr *wr;

	if (b->err)
		return NULL;
	if (b->n == b->cap) {
		b->err = ENOMEM;
		return NULL;
	}
	wr = &b->wr[b->n];
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = ex->wr_id;
	wr->send_flags = ex->wr_flags & ~(unsigned)IBV_SEND_INLINE;
	wr->opcode = op;
	wr->sg_list = b->sge[b->n];
	b->n++;
	return wr;
}

static void wr_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibv_send_wr *wr = next_wr(ex, op);

	if (!wr)
		return;
	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = addr;
	wr->imm_data = imm;
}

static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	wr_rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0);
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr)
{
	wr_rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	wr_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void wr_send(struct ibv_qp_ex *ex)
{
	next_wr(ex, IBV_WR_SEND);
}

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct ibv_send_wr *wr = next_wr(ex, IBV_WR_SEND_WITH_IMM);

	if (wr)
		wr->imm_data = imm;
}

static void wr_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, uint64_t a, uint64_t b)
{
	struct ibv_send_wr *wr = next_wr(ex, op);

	if (!wr)
		return;
	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = addr;
	wr->wr.atomic.compare_add = a;
	wr->wr.atomic.swap = b;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	wr_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t add)
{
	wr_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct ibv_send_wr *wr = current(ex);

	if (!wr)
		return;
	if (n > ((struct sv_qp *)ex)->cap.max_send_sge) {
		builder(ex)->err = EINVAL;
		return;
	}
	memcpy(wr->sg_list, list, n * sizeof(*list));
	wr->num_sge = (int)n;
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t len)
{
	struct ibv_sge sge = {addr, len, lkey};

	wr_set_sge_list(ex, len ? 1 : 0, &sge);
}

/* The data may be gone when wr_complete is called: it is copied here. */
static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct ibv_send_wr *wr = current(ex);
	size_t len = 0;
	char *copy;

	if (!wr)
		return;
	for (size_t i = 0; i < n; i++)
		len += list[i].length;
	if (len > ((struct sv_qp *)ex)->cap.max_inline_data) {
		builder(ex)->err = EINVAL;
		return;
	}
	copy = malloc(len ? len : 1);
	if (!copy) {
		builder(ex)->err = ENOMEM;
		return;
	}
	wr->sg_list[0] = (struct ibv_sge){(uint64_t)copy, (uint32_t)len, 0};
	wr->num_sge = 1;
	wr->send_flags |= IBV_SEND_INLINE;
	for (size_t i = 0; i < n; i++) {
		memcpy(copy, list[i].addr, list[i].length);
		copy += list[i].length;
	}
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t len)
{
	struct ibv_data_buf buf = {addr, len};

	wr_set_inline_data_list(ex, 1, &buf);
}

static void list_end(struct sv_builder *b)
{
	for (uint32_t i = 0; i < b->n; i++)
		if (b->wr[i].send_flags & IBV_SEND_INLINE)
			free((void *)b->wr[i].sg_list[0].addr);
	b->n = 0;
	pthread_mutex_unlock(&b->lock);
}

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct sv_builder *b = builder(ex);
	struct ibv_send_wr *bad;
	int ret = b->err;

	for (uint32_t i = 0; i + 1 < b->n; i++)
		b->wr[i].next = &b->wr[i + 1];
	if (!ret && b->n)
		ret = sv_post_send(&ex->qp_base, b->wr, &bad);
	list_end(b);
	return ret;
}

static void wr_abort(struct ibv_qp_ex *ex)
{
	list_end(builder(ex));
}

#define KNOWN_OPS                                                                                                      \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |                        \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |                 \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

static void set_functions(struct ibv_qp_ex *ex)
{
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
}

int sv_qp_ex_init(struct sv_qp *qp, uint64_t ops)
{
	struct sv_builder *b;

	if (ops & ~(uint64_t)KNOWN_OPS)
		return EOPNOTSUPP;
	b = calloc(1, sizeof(*b));
	if (!b)
		return ENOMEM;
	pthread_mutex_init(&b->lock, NULL);
	b->cap = qp->cap.max_send_wr;
	b->wr = calloc(b->cap, sizeof(*b->wr));
	b->sge = calloc(b->cap, sizeof(*b->sge));
	qp->builder = b;
	if (b->cap && (!b->wr || !b->sge))
		return ENOMEM;
	set_functions(&qp->ex);
	return 0;
}

void sv_qp_ex_fini(struct sv_qp *qp)
{
	if (!qp->builder)
		return;
	pthread_mutex_destroy(&qp->builder->lock);
	free(qp->builder->wr);
	free(qp->builder->sge);
	free(qp->builder);
}

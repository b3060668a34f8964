/* SPDX-License-Identifier: BSD-2-Clause */
/* Devices, ports, GIDs, protection domains: ibv_get_device_list(3), ibv_query_device(3), ibv_query_port(3). */
#include "tv.h"

#include <setjmp.h>
#include <cmocka.h>

static void list_role(struct tv_side *s)
{
	struct tv_dev d;
	struct ibv_device **list;
	int n = -1;

	tv_dev_open(&d); /* skips where there is none */
	list = ibv_get_device_list(&n);
	CHECK(list);
	CHECK_OP(n, >=, 1);
	CHECK(!list[n]); /* NULL-terminated */
	for (int i = 0; i < n; i++) {
		CHECK_OP(strlen(ibv_get_device_name(list[i])), >, 0);
		CHECK_EQ(list[i]->transport_type, IBV_TRANSPORT_IB);
		CHECK_EQ(list[i]->node_type, IBV_NODE_CA);
	}
	/* "Client code should open all the devices it intends to use before calling free": a context outlives the list.
	 */
	struct ibv_context *c = ibv_open_device(list[0]);
	CHECK(c);
	ibv_free_device_list(list);
	CHECK_OP(strlen(ibv_get_device_name(c->device)), >, 0);
	CHECK_OP(c->num_comp_vectors, >=, 1);
	CHECK_OP(c->async_fd, >=, 0);
	CHECK_EQ(ibv_close_device(c), 0);
	list = ibv_get_device_list(NULL); /* the count is optional */
	CHECK(list && list[0]);
	ibv_free_device_list(list);
	tv_dev_close(&d);
}

static void attributes_role(struct tv_side *s)
{
	struct tv_dev d;
	struct ibv_device_attr_ex ex;

	tv_dev_open(&d);
	CHECK_OP(d.attr.phys_port_cnt, >=, 1);
	CHECK_OP(d.attr.max_qp, >=, 64);
	CHECK_OP(d.attr.max_qp_wr, >=, 1024); /* native Valkey asks for 1024 */
	CHECK_OP(d.attr.max_sge, >=, 1);
	CHECK_OP(d.attr.max_cq, >=, 64);
	CHECK_OP(d.attr.max_cqe, >=, 4096);
	CHECK_OP(d.attr.max_mr, >=, 64);
	CHECK(d.attr.max_mr_size >= 1ull << 30);
	CHECK_OP(d.attr.max_pd, >=, 64);
	CHECK_OP(d.attr.max_qp_rd_atom, >=, 1);
	CHECK_OP(d.attr.max_qp_init_rd_atom, >=, 1);
	CHECK_OP(d.attr.max_srq, >=, 1);
	CHECK_OP(d.attr.max_srq_wr, >=, 64);
	CHECK_OP(d.attr.max_srq_sge, >=, 1);
	memset(&ex, 0, sizeof(ex));
	CHECK_EQ(ibv_query_device_ex(d.ctx, NULL, &ex), 0);
	CHECK_MEM(&ex.orig_attr, &d.attr, sizeof(d.attr));
	tv_dev_close(&d);
}

static void port_role(struct tv_side *s)
{
	struct tv_dev d;
	struct ibv_port_attr p;
	union ibv_gid gid;
	__be16 pkey = 0;

	tv_dev_open(&d);
	CHECK_EQ(d.port.state, IBV_PORT_ACTIVE);
	CHECK_OP(d.port.active_mtu, >=, IBV_MTU_256);
	CHECK_OP(d.port.active_mtu, <=, d.port.max_mtu);
	CHECK_OP(d.port.max_msg_sz, >=, 1 << 20);
	CHECK_OP(d.port.gid_tbl_len, >=, 1);
	CHECK_OP(d.port.pkey_tbl_len, >=, 1);
	CHECK(d.port.link_layer == IBV_LINK_LAYER_ETHERNET || d.port.link_layer == IBV_LINK_LAYER_INFINIBAND);
	CHECK_NE(ibv_query_port(d.ctx, 0, &p), 0);
	CHECK_NE(ibv_query_port(d.ctx, d.attr.phys_port_cnt + 1, &p), 0);
	CHECK_EQ(ibv_query_pkey(d.ctx, 1, 0, &pkey), 0);
	CHECK_NE(pkey, 0);
	CHECK_NE(ibv_query_gid(d.ctx, 1, d.port.gid_tbl_len + 1000, &gid), 0);
	CHECK(ibv_node_type_str(IBV_NODE_CA));
	CHECK(ibv_port_state_str(d.port.state));
	tv_dev_close(&d);
}

static void gid_table_role(struct tv_side *s)
{
	struct ibv_gid_entry entry, table[256];
	struct tv_dev d;
	ssize_t n;

	tv_dev_open(&d);
	memset(&entry, 0, sizeof(entry));
	CHECK_EQ(ibv_query_gid_ex(d.ctx, 1, d.gid_index, &entry, 0), 0);
	CHECK_MEM(&entry.gid, &d.gid, sizeof(d.gid));
	CHECK_EQ(entry.gid_index, d.gid_index);
	CHECK_EQ(entry.port_num, 1);
	n = ibv_query_gid_table(d.ctx, table, 256, 0);
	CHECK_OP(n, >=, 1);
	for (ssize_t i = 0; i < n; i++)
		if (table[i].gid_index == (uint32_t)d.gid_index && table[i].port_num == 1)
			CHECK_MEM(&table[i].gid, &d.gid, sizeof(d.gid));
	tv_dev_close(&d);
}

static void pd_role(struct tv_side *s)
{
	struct tv_dev d;
	struct ibv_pd *pd[32];
	struct ibv_mr *mr;
	char *buf = aligned_alloc(4096, 4096);

	tv_dev_open(&d);
	for (int i = 0; i < 32; i++) {
		pd[i] = ibv_alloc_pd(d.ctx);
		CHECK(pd[i]);
		CHECK(pd[i]->context == d.ctx);
	}
	mr = ibv_reg_mr(pd[3], buf, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	/* "may fail if any other resource is still associated": on Linux it does. */
	CHECK_EQ(ibv_dealloc_pd(pd[3]), EBUSY);
	CHECK_EQ(ibv_dereg_mr(mr), 0);
	for (int i = 0; i < 32; i++)
		CHECK_EQ(ibv_dealloc_pd(pd[i]), 0);
	free(buf);
	tv_dev_close(&d);
}

static void two_contexts_role(struct tv_side *s)
{
	struct tv_dev a, b;
	struct ibv_cq *cq;
	int before;

	/* Objects of one context do not hold the other; opening and closing leaks no descriptor. */
	tv_dev_open(&a);
	tv_dev_open(&b);
	CHECK(a.ctx != b.ctx);
	cq = ibv_create_cq(b.ctx, 16, NULL, NULL, 0);
	CHECK(cq);
	tv_dev_close(&a);
	CHECK_EQ(ibv_query_device(b.ctx, &b.attr), 0);
	CHECK_EQ(ibv_destroy_cq(cq), 0);
	tv_dev_close(&b);
	before = tv_fd_count();
	for (int i = 0; i < 100; i++) {
		tv_dev_open(&a);
		tv_dev_close(&a);
	}
	CHECK_EQ(tv_fd_count(), before);
}

static void strings_role(struct tv_side *s)
{
	for (int i = 0; i <= IBV_WC_GENERAL_ERR; i++)
		CHECK_OP(strlen(ibv_wc_status_str(i)), >, 0);
	CHECK(strcmp(ibv_wc_status_str(IBV_WC_SUCCESS), ibv_wc_status_str(IBV_WC_WR_FLUSH_ERR)));
	for (int i = 0; i <= IBV_EVENT_GID_CHANGE; i++)
		CHECK_OP(strlen(ibv_event_type_str(i)), >, 0);
	for (int i = 0; i <= RDMA_CM_EVENT_TIMEWAIT_EXIT; i++)
		CHECK_OP(strlen(rdma_event_str(i)), >, 0);
	CHECK_EQ(strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"), 0);
}

static void rdma_devices_role(struct tv_side *s)
{
	struct ibv_context **list;
	int n = 0;
	struct tv_dev d;

	tv_dev_open(&d);
	list = rdma_get_devices(&n);
	CHECK(list);
	CHECK_OP(n, >=, 1);
	CHECK(!list[n]);
	CHECK_EQ(ibv_query_device(list[0], &d.attr), 0);
	rdma_free_devices(list);
	tv_dev_close(&d);
}

#define T(role)                                                                                                        \
	static void test_##role(void **state)                                                                          \
	{                                                                                                              \
		tv_solo(role##_role, 20);                                                                              \
	}
T(list)
T(attributes)
T(port)
T(gid_table)
T(pd)
T(two_contexts)
T(strings)
T(rdma_devices)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_list),      cmocka_unit_test(test_attributes),   cmocka_unit_test(test_port),
	    cmocka_unit_test(test_gid_table), cmocka_unit_test(test_pd),           cmocka_unit_test(test_two_contexts),
	    cmocka_unit_test(test_strings),   cmocka_unit_test(test_rdma_devices),
	};

	cmocka_set_test_filter(getenv("TV_ONLY"));
	return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}

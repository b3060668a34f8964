/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The device, contexts, protection domains, memory registration's exported names, asynchronous events.
 */
#include "soft.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/eventfd.h>

static struct ibv_device soft_device = {
    .node_type = IBV_NODE_CA,
    .transport_type = IBV_TRANSPORT_IB,
    .name = "soft0",
    .dev_name = "uverbs-soft0",
    .dev_path = "/nonexistent/vkrdma-soft0",
    .ibdev_path = "/nonexistent/vkrdma-soft0",
};

static const __be64 *soft_guid(void)
{
	static const uint8_t guid[8] = {0x02, 0x76, 0x6b, 0x72, 0x73, 0x6f, 0x66, 0x74};

	return (const __be64 *)guid;
}

/* ------------------------------------------------------------------ device */

#undef ibv_get_device_list
SV_EXPORT struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (num)
		*num = 0;
	if (!list)
		return NULL;
	if (!sv_fault_no_device()) {
		list[0] = &soft_device;
		if (num)
			*num = 1;
	}
	return list;
}

SV_EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

SV_EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

SV_EXPORT int ibv_get_device_index(struct ibv_device *device)
{
	return 0;
}

SV_EXPORT __be64 ibv_get_device_guid(struct ibv_device *device)
{
	__be64 guid;

	memcpy(&guid, soft_guid(), sizeof(guid));
	return guid;
}

static void async_drop(struct sv_event *e);
static void async_taken(struct sv_event *e);

static int ctx_alloc(struct sv_ctx **out)
{
	struct sv_ctx *c;
	int ret = sv_start();

	if (ret)
		return ret;
	c = calloc(1, sizeof(*c));
	if (!c)
		return ENOMEM;
	ret = sv_evq_init(&c->async, (_Atomic int *)&c->v.context.async_fd);
	if (ret) {
		free(c);
		return ret;
	}
	c->async.taken = async_taken;
	c->pid = getpid();
	c->v.sz = sizeof(c->v);
	c->v.context.device = &soft_device;
	c->v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->v.context.cmd_fd = -1;
	c->v.context.async_fd = c->async.fd;
	c->v.context.num_comp_vectors = 1;
	pthread_mutex_init(&c->v.context.mutex, NULL);
	sv_ctx_ops(&c->v);
	pthread_mutex_lock(&sv_proc.lock);
	c->next = sv_proc.ctxs;
	if (c->next)
		c->next->prev = &c->next;
	c->prev = &sv_proc.ctxs;
	sv_proc.ctxs = c;
	pthread_mutex_unlock(&sv_proc.lock);
	*out = c;
	return 0;
}

SV_EXPORT struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct sv_ctx *c;
	int ret = device == &soft_device && !sv_fault_no_device() ? ctx_alloc(&c) : ENODEV;

	if (ret) {
		errno = ret;
		return NULL;
	}
	return &c->v.context;
}

static bool async_any(struct sv_event *e, void *arg)
{
	return true;
}

SV_EXPORT int ibv_close_device(struct ibv_context *context)
{
	struct sv_ctx *c = sv_container(context, struct sv_ctx, v.context);

	if (!sv_ours(context))
		return EINVAL;
	pthread_mutex_lock(&sv_proc.lock);
	*c->prev = c->next;
	if (c->next)
		c->next->prev = c->prev;
	pthread_mutex_unlock(&sv_proc.lock);
	sv_evq_purge(&c->async, async_any, NULL, async_drop);
	sv_evq_fini(&c->async);
	free(c);
	return 0;
}

static struct sv_ctx *shared;
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

void sv_ctx_reset(void)
{
	pthread_mutex_init(&shared_lock, NULL);
	shared = NULL;
}

/* rdma_cm's own: one a process, never closed. */
struct ibv_context *sv_ctx_open(void)
{
	struct sv_ctx *c = NULL;
	int ret = 0;

	pthread_mutex_lock(&shared_lock);
	if (!shared) {
		ret = sv_fault_no_device() ? ENODEV : ctx_alloc(&c);
		if (!ret)
			shared = c;
	}
	c = shared;
	pthread_mutex_unlock(&shared_lock);
	if (ret) {
		errno = ret;
		return NULL;
	}
	return &c->v.context;
}

/* ------------------------------------------------------------------ queries */

static int query_device(struct ibv_context *context, struct ibv_device_attr *a)
{
	memset(a, 0, sizeof(*a));
	snprintf(a->fw_ver, sizeof(a->fw_ver), "1.0.0");
	memcpy(&a->node_guid, soft_guid(), sizeof(a->node_guid));
	a->sys_image_guid = a->node_guid;
	a->max_mr_size = SV_DATA_SIZE / 2;
	a->page_size_cap = 0xfffff000;
	a->hw_ver = 1;
	a->max_qp = SV_MAX_QP;
	a->max_qp_wr = SV_MAX_WR;
	a->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SRQ_RESIZE |
			      IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_SYS_IMAGE_GUID;
	a->max_sge = SV_MAX_SGE;
	a->max_sge_rd = SV_MAX_SGE;
	a->max_cq = SV_MAX_CQ;
	a->max_cqe = SV_MAX_CQE;
	a->max_mr = SV_MAX_MR;
	a->max_pd = 65536;
	a->max_qp_rd_atom = 16;
	a->max_res_rd_atom = 16 * SV_MAX_QP;
	a->max_qp_init_rd_atom = 16;
	a->atomic_cap = IBV_ATOMIC_HCA;
	a->max_srq = SV_MAX_SRQ;
	a->max_srq_wr = SV_MAX_WR;
	a->max_srq_sge = SV_MAX_SGE;
	a->max_pkeys = 1;
	a->local_ca_ack_delay = 15;
	a->phys_port_cnt = 1;
	return 0;
}

SV_EXPORT int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	return query_device(context, attr);
}

static int query_device_ex(struct ibv_context *context, const struct ibv_query_device_ex_input *in,
			   struct ibv_device_attr_ex *attr, size_t size)
{
	struct ibv_device_attr_ex a;

	memset(&a, 0, sizeof(a));
	query_device(context, &a.orig_attr);
	a.device_cap_flags_ex = a.orig_attr.device_cap_flags;
	a.phys_port_cnt_ex = 1;
	memset(attr, 0, size);
	memcpy(attr, &a, sv_min(size, sizeof(a)));
	return 0;
}

size_t sv_gid_table(struct ibv_gid_entry *out, size_t max)
{
	struct ifaddrs *list = NULL, *i;
	size_t n = 0;

	/* Addresses that other hosts would use first, loopback last, as a device would have them. */
	if (getifaddrs(&list))
		return 0;
	for (int loop = 0; loop < 2; loop++) {
		for (i = list; i && n < max; i = i->ifa_next) {
			uint8_t *raw = out[n].gid.raw;

			if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !!(i->ifa_flags & IFF_LOOPBACK) != loop)
				continue;
			memset(&out[n], 0, sizeof(out[n]));
			if (i->ifa_addr->sa_family == AF_INET) {
				raw[10] = raw[11] = 0xff;
				memcpy(raw + 12, &((struct sockaddr_in *)i->ifa_addr)->sin_addr, 4);
			} else if (i->ifa_addr->sa_family == AF_INET6) {
				memcpy(raw, &((struct sockaddr_in6 *)i->ifa_addr)->sin6_addr, 16);
			} else {
				continue;
			}
			out[n].gid_index = (uint32_t)n;
			out[n].port_num = 1;
			out[n].gid_type = IBV_GID_TYPE_ROCE_V2;
			out[n].ndev_ifindex = if_nametoindex(i->ifa_name);
			n++;
		}
	}
	freeifaddrs(list);
	return n;
}

#define GID_TABLE 64

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr, size_t len)
{
	struct ibv_port_attr a;

	if (port != 1)
		return EINVAL;
	memset(&a, 0, sizeof(a));
	a.state = IBV_PORT_ACTIVE;
	a.max_mtu = a.active_mtu = IBV_MTU_4096;
	a.gid_tbl_len = GID_TABLE;
	a.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
	a.max_msg_sz = SV_MAX_MSG;
	a.pkey_tbl_len = 1;
	a.max_vl_num = 1;
	a.active_width = 2;
	a.active_speed = 32;
	a.phys_state = 5;
	a.link_layer = IBV_LINK_LAYER_ETHERNET;
	memset(attr, 0, len);
	memcpy(attr, &a, sv_min(len, sizeof(a)));
	return 0;
}

#undef ibv_query_port
SV_EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	/* The old structure ends before port_cap_flags2. */
	return query_port(context, port, (struct ibv_port_attr *)attr, offsetof(struct ibv_port_attr, port_cap_flags2));
}

SV_EXPORT ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
				       uint32_t flags, size_t entry_size)
{
	struct ibv_gid_entry t[GID_TABLE];
	size_t n = sv_gid_table(t, GID_TABLE);

	if (flags)
		return -EOPNOTSUPP;
	if (n > max)
		return -EINVAL;
	for (size_t i = 0; i < n; i++)
		memcpy((char *)entries + i * entry_size, &t[i], sv_min(entry_size, sizeof(t[i])));
	return (ssize_t)n;
}

SV_EXPORT int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry,
				uint32_t flags, size_t entry_size)
{
	struct ibv_gid_entry t[GID_TABLE];
	size_t n = sv_gid_table(t, GID_TABLE);

	if (flags)
		return EOPNOTSUPP;
	if (port != 1 || index >= GID_TABLE)
		return EINVAL;
	if (index >= n)
		return ENODATA;
	memcpy(entry, &t[index], sv_min(entry_size, sizeof(t[0])));
	return 0;
}

SV_EXPORT int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	struct ibv_gid_entry e;
	int ret = _ibv_query_gid_ex(context, port, (uint32_t)index, &e, 0, sizeof(e));

	memset(gid, 0, sizeof(*gid));
	if (ret == ENODATA)
		return 0; /* an empty entry of the table */
	if (ret) {
		errno = ret;
		return -1;
	}
	*gid = e.gid;
	return 0;
}

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type);
SV_EXPORT int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned index, unsigned *type)
{
	/* The numbers of the private entry: 0 IB or RoCE v1, 1 RoCE v2. */
	*type = 1;
	return port == 1 ? 0 : -1;
}

SV_EXPORT int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	if (port != 1 || index) {
		errno = EINVAL;
		return -1;
	}
	*pkey = 0xffff;
	return 0;
}

SV_EXPORT int ibv_get_pkey_index(struct ibv_context *context, uint8_t port, __be16 pkey)
{
	return port == 1 && pkey == 0xffff ? 0 : -1;
}

/* ------------------------------------------------------------------ protection domains and memory */

SV_EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	static _Atomic uint32_t next = 1;
	struct sv_pd *pd;

	if (!sv_usable(context)) {
		errno = EINVAL;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	pd->pd.context = context;
	pd->pd.handle = atomic_fetch_add(&next, 1);
	pthread_mutex_init(&pd->lock, NULL);
	return &pd->pd;
}

SV_EXPORT int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct sv_pd *pd = sv_container(ibpd, struct sv_pd, pd);

	if (!sv_ours(ibpd->context))
		return EINVAL;
	if (sv_load(&pd->users))
		return EBUSY;
	pthread_mutex_destroy(&pd->lock);
	free(pd);
	return 0;
}

#undef ibv_reg_mr
SV_EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return sv_mr_reg(pd, addr, length, (uint64_t)addr, access);
}

#undef ibv_reg_mr_iova
SV_EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return sv_mr_reg(pd, addr, length, iova, access);
}

SV_EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
					  unsigned int access)
{
	return sv_mr_reg(pd, addr, length, iova, (int)access);
}

SV_EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	return sv_mr_dereg(mr);
}

/* ------------------------------------------------------------------ asynchronous events */

struct async_event {
	struct sv_event e;
	struct ibv_async_event ev;
};

static void async_drop(struct sv_event *e)
{
	free(sv_container(e, struct async_event, e));
}

void sv_async_raise(struct sv_ctx *ctx, enum ibv_event_type type, void *element)
{
	struct async_event *a = calloc(1, sizeof(*a));

	if (!a)
		return;
	a->ev.event_type = type;
	if (element)
		a->ev.element.qp = element;
	else
		a->ev.element.port_num = 1;
	sv_evq_push(&ctx->async, &a->e);
}

void sv_ctx_each(enum ibv_event_type type)
{
	pthread_mutex_lock(&sv_proc.lock);
	for (struct sv_ctx *c = sv_proc.ctxs; c; c = c->next)
		sv_async_raise(c, type, NULL);
	pthread_mutex_unlock(&sv_proc.lock);
}

/* They stay until they are closed, as rdma_cm's do; a device that comes back is another one. */
void sv_ctx_gone(bool dead)
{
	pthread_mutex_lock(&shared_lock);
	shared = NULL;
	pthread_mutex_unlock(&shared_lock);
	pthread_mutex_lock(&sv_proc.lock);
	for (struct sv_ctx *c = sv_proc.ctxs; c; c = c->next)
		sv_store(&c->gone, dead);
	pthread_mutex_unlock(&sv_proc.lock);
}

static int event_class(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR:
		return 1;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		return 2;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		return 3;
	default:
		return 0;
	}
}

SV_EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct sv_ctx *c = sv_container(context, struct sv_ctx, v.context);
	struct sv_event *e;

	if (!sv_ours(context)) {
		errno = EINVAL;
		return -1;
	}
	e = sv_evq_get(&c->async);
	if (!e)
		return -1;
	*event = sv_container(e, struct async_event, e)->ev;
	async_drop(e);
	return 0;
}

/* The queue's lock is held: whoever destroys the object purges the queue first and finds the count right. */
static void async_taken(struct sv_event *e)
{
	struct ibv_async_event *event = &sv_container(e, struct async_event, e)->ev;

	switch (event_class(event->event_type)) {
	case 1:
		atomic_fetch_add(&sv_container(event->element.cq, struct sv_cq, cq)->async_got, 1);
		break;
	case 2:
		atomic_fetch_add(&((struct sv_qp *)event->element.qp)->async_got, 1);
		break;
	case 3:
		atomic_fetch_add(&sv_container(event->element.srq, struct sv_srq, srq)->async_got, 1);
		break;
	default:
		break;
	}
}

static void ack(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *count)
{
	pthread_mutex_lock(mutex);
	++*count;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mutex);
}

SV_EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
	struct ibv_cq *cq = event->element.cq;
	struct ibv_qp *qp = event->element.qp;
	struct ibv_srq *srq = event->element.srq;

	switch (event_class(event->event_type)) {
	case 1:
		ack(&cq->mutex, &cq->cond, &cq->async_events_completed);
		break;
	case 2:
		ack(&qp->mutex, &qp->cond, &qp->events_completed);
		break;
	case 3:
		ack(&srq->mutex, &srq->cond, &srq->events_completed);
		break;
	default:
		break;
	}
}

static bool async_about(struct sv_event *e, void *element)
{
	struct async_event *a = sv_container(e, struct async_event, e);

	return event_class(a->ev.event_type) && (void *)a->ev.element.qp == element;
}

void sv_async_forget(struct sv_ctx *ctx, void *element)
{
	sv_evq_purge(&ctx->async, async_about, element, async_drop);
}

/* ------------------------------------------------------------------ the inline verbs' table */

static struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr)
{
	return sv_qp_create(c, attr);
}

static struct ibv_mw *alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	errno = EOPNOTSUPP;
	return NULL;
}

void sv_ctx_ops(struct verbs_context *v)
{
	struct ibv_context_ops *o = &v->context.ops;

	v->query_port = query_port;
	v->query_device_ex = query_device_ex;
	v->create_cq_ex = sv_cq_create_ex;
	v->create_qp_ex = create_qp_ex;
	o->alloc_mw = alloc_mw;
	o->poll_cq = sv_cq_poll;
	o->req_notify_cq = sv_cq_notify;
	o->post_srq_recv = sv_post_srq_recv;
	o->post_send = sv_post_send;
	o->post_recv = sv_post_recv;
}

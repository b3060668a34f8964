/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Endpoints: the synchronous interface, and address look-up.
 */
#include "cm.h"

#include <rdma/rdma_verbs.h>

#include <netdb.h>

/* ------------------------------------------------------------------ rdma_getaddrinfo */

static int copy_addr(struct sockaddr **to, socklen_t *len, const struct sockaddr *from, socklen_t n)
{
	*to = malloc(n);
	if (!*to)
		return ENOMEM;
	memcpy(*to, from, n);
	*len = n;
	return 0;
}

SV_EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
	while (res) {
		struct rdma_addrinfo *next = res->ai_next;

		free(res->ai_src_addr);
		free(res->ai_dst_addr);
		free(res->ai_src_canonname);
		free(res->ai_dst_canonname);
		free(res->ai_route);
		free(res->ai_connect);
		free(res);
		res = next;
	}
}

static int fill_info(struct rdma_addrinfo *r, const struct rdma_addrinfo *hints, const struct addrinfo *ai)
{
	r->ai_flags = hints->ai_flags;
	r->ai_family = ai ? ai->ai_family : hints->ai_family;
	r->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : IBV_QPT_RC;
	r->ai_port_space = hints->ai_port_space ? hints->ai_port_space : RDMA_PS_TCP;
	if (ai && (hints->ai_flags & RAI_PASSIVE))
		return copy_addr(&r->ai_src_addr, &r->ai_src_len, ai->ai_addr, ai->ai_addrlen);
	if (ai && copy_addr(&r->ai_dst_addr, &r->ai_dst_len, ai->ai_addr, ai->ai_addrlen))
		return ENOMEM;
	if (hints->ai_src_len && hints->ai_src_addr)
		return copy_addr(&r->ai_src_addr, &r->ai_src_len, hints->ai_src_addr, hints->ai_src_len);
	return 0;
}

SV_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
			       struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	struct addrinfo want, *ai = NULL;
	struct rdma_addrinfo *r;
	int ret;

	if (!hints)
		hints = &none;
	if (!node && !service && !hints->ai_src_addr && !hints->ai_dst_addr)
		return cm_err(EINVAL);
	memset(&want, 0, sizeof(want));
	want.ai_family = hints->ai_flags & RAI_FAMILY || hints->ai_family ? hints->ai_family : AF_UNSPEC;
	want.ai_socktype = SOCK_STREAM;
	if (hints->ai_flags & RAI_PASSIVE)
		want.ai_flags |= AI_PASSIVE;
	if (hints->ai_flags & RAI_NUMERICHOST)
		want.ai_flags |= AI_NUMERICHOST;
	if (node || service) {
		ret = getaddrinfo(node, service, &want, &ai);
		if (ret) {
			errno = ret == EAI_SYSTEM ? errno : ENODATA;
			return ret;
		}
	}
	r = calloc(1, sizeof(*r));
	if (!r || fill_info(r, hints, ai)) {
		rdma_freeaddrinfo(r);
		if (ai)
			freeaddrinfo(ai);
		return cm_err(ENOMEM);
	}
	if (ai)
		freeaddrinfo(ai);
	*res = r;
	return 0;
}

/* ------------------------------------------------------------------ endpoints */

struct ep_attr {
	struct ibv_pd *pd;
	struct ibv_qp_init_attr attr;
};

static int ep_passive(struct rdma_cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd,
		      struct ibv_qp_init_attr *attr)
{
	struct ep_attr *keep;

	if (rdma_bind_addr(id, res->ai_src_addr))
		return -1;
	if (!attr)
		return 0;
	keep = calloc(1, sizeof(*keep));
	if (!keep)
		return -1;
	keep->pd = pd;
	keep->attr = *attr;
	keep->attr.qp_type = res->ai_qp_type;
	cm_of(id)->ep = keep;
	return 0;
}

static int ep_active(struct rdma_cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	if (rdma_resolve_addr(id, res->ai_src_addr, res->ai_dst_addr, 2000) || rdma_resolve_route(id, 2000))
		return -1;
	if (!attr)
		return 0;
	attr->qp_type = res->ai_qp_type;
	return rdma_create_qp(id, pd, attr);
}

SV_EXPORT int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *res, struct ibv_pd *pd,
			     struct ibv_qp_init_attr *attr)
{
	struct rdma_cm_id *fresh;
	int ret;

	if (rdma_create_id(NULL, &fresh, NULL, res->ai_port_space))
		return -1;
	ret = res->ai_flags & RAI_PASSIVE ? ep_passive(fresh, res, pd, attr) : ep_active(fresh, res, pd, attr);
	if (ret) {
		int saved = errno;

		rdma_destroy_ep(fresh);
		errno = saved;
		return -1;
	}
	*id = fresh;
	return 0;
}

SV_EXPORT void rdma_destroy_ep(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	if (id->srq)
		rdma_destroy_srq(id);
	free(cm_of(id)->ep);
	rdma_destroy_id(id);
}

SV_EXPORT int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct ep_attr *ep = cm_of(listen)->ep;
	struct rdma_cm_event *event;

	if (!cm_of(listen)->sync)
		return cm_err(EINVAL);
	if (listen->event) {
		rdma_ack_cm_event(listen->event);
		listen->event = NULL;
	}
	if (rdma_get_cm_event(listen->channel, &event))
		return -1;
	if (event->status || event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		listen->event = event;
		return cm_err(event->status ? -event->status : EINVAL);
	}
	if (ep) {
		struct ibv_qp_init_attr attr = ep->attr;

		if (rdma_create_qp(event->id, ep->pd, &attr)) {
			struct rdma_cm_id *unwanted = event->id;
			int saved = errno;

			rdma_ack_cm_event(event);
			rdma_reject(unwanted, NULL, 0);
			rdma_destroy_id(unwanted);
			return cm_err(saved);
		}
	}
	*id = event->id;
	/* The new id's event is the request, acknowledged with the id's next call or its end. */
	(*id)->event = event;
	return rdma_migrate_id(*id, NULL);
}

/* ------------------------------------------------------------------ SRQs of an id */

SV_EXPORT int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	if (id->srq || !id->verbs)
		return cm_err(EINVAL);
	id->srq = ibv_create_srq(pd ? pd : id->pd, attr);
	if (!id->srq)
		return -1;
	if (!id->pd)
		id->pd = pd;
	return 0;
}

int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr);
SV_EXPORT int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *attr)
{
	if (attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && attr->srq_type != IBV_SRQT_BASIC)
		return cm_err(EOPNOTSUPP);
	return rdma_create_srq(id, attr->comp_mask & IBV_SRQ_INIT_ATTR_PD ? attr->pd : NULL,
			       (struct ibv_srq_init_attr *)attr);
}

SV_EXPORT void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}

/* ------------------------------------------------------------------ not on this device: datagrams, ECE */

SV_EXPORT int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *addr, void *context)
{
	return cm_err(EOPNOTSUPP);
}

SV_EXPORT int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *attr, void *context)
{
	return cm_err(EOPNOTSUPP);
}

SV_EXPORT int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *addr)
{
	return cm_err(EOPNOTSUPP);
}

SV_EXPORT int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	return cm_err(EOPNOTSUPP);
}

SV_EXPORT int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *ece)
{
	return cm_err(EOPNOTSUPP);
}

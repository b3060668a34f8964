/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Symbols of rdma-core that other libraries and tools name but never call on this device: without them they would not
 * load (libmlx5 and libefa, which perftest is linked with, want the private interface of providers). Each fails as an
 * unsupported call: EOPNOTSUPP. rsocket's calls are among them.
 */
#include "soft.h"

#include <poll.h>

/* A provider's flag that libibverbs defines. */
extern SV_EXPORT bool verbs_allow_disassociate_destroy;
bool verbs_allow_disassociate_destroy;

long sv_unsupported(void);
long sv_unsupported(void)
{
	errno = EOPNOTSUPP;
	return -1;
}

void *sv_unsupported_ptr(void);
void *sv_unsupported_ptr(void)
{
	errno = EOPNOTSUPP;
	return NULL;
}

void sv_ignored(void);
void sv_ignored(void)
{
}

#define UNSUPPORTED(name)     extern SV_EXPORT __attribute__((alias("sv_unsupported"))) long name(void)
#define UNSUPPORTED_PTR(name) extern SV_EXPORT __attribute__((alias("sv_unsupported_ptr"))) void *name(void)
#define IGNORED(name)         extern SV_EXPORT __attribute__((alias("sv_ignored"))) void name(void)

/* rping polls with it, on plain descriptors. */
int rpoll(struct pollfd *fds, nfds_t n, int timeout);
SV_EXPORT int rpoll(struct pollfd *fds, nfds_t n, int timeout)
{
	return poll(fds, n, timeout);
}

UNSUPPORTED(__ioctl_final_num_attrs);
IGNORED(__verbs_log);
UNSUPPORTED_PTR(_verbs_init_and_alloc_context);
UNSUPPORTED(execute_ioctl);
UNSUPPORTED(ibv_cmd_advise_mr);
UNSUPPORTED(ibv_cmd_alloc_dm);
UNSUPPORTED(ibv_cmd_alloc_mw);
UNSUPPORTED(ibv_cmd_alloc_pd);
UNSUPPORTED(ibv_cmd_attach_mcast);
UNSUPPORTED(ibv_cmd_close_xrcd);
UNSUPPORTED(ibv_cmd_create_ah);
UNSUPPORTED(ibv_cmd_create_counters);
UNSUPPORTED(ibv_cmd_create_cq);
UNSUPPORTED(ibv_cmd_create_cq_ex);
UNSUPPORTED(ibv_cmd_create_flow);
UNSUPPORTED(ibv_cmd_create_flow_action_esp);
UNSUPPORTED(ibv_cmd_create_qp);
UNSUPPORTED(ibv_cmd_create_qp_ex);
UNSUPPORTED(ibv_cmd_create_qp_ex2);
UNSUPPORTED(ibv_cmd_create_rwq_ind_table);
UNSUPPORTED(ibv_cmd_create_srq);
UNSUPPORTED(ibv_cmd_create_srq_ex);
UNSUPPORTED(ibv_cmd_create_wq);
UNSUPPORTED(ibv_cmd_dealloc_mw);
UNSUPPORTED(ibv_cmd_dealloc_pd);
UNSUPPORTED(ibv_cmd_dereg_mr);
UNSUPPORTED(ibv_cmd_destroy_ah);
UNSUPPORTED(ibv_cmd_destroy_counters);
UNSUPPORTED(ibv_cmd_destroy_cq);
UNSUPPORTED(ibv_cmd_destroy_flow);
UNSUPPORTED(ibv_cmd_destroy_flow_action);
UNSUPPORTED(ibv_cmd_destroy_qp);
UNSUPPORTED(ibv_cmd_destroy_rwq_ind_table);
UNSUPPORTED(ibv_cmd_destroy_srq);
UNSUPPORTED(ibv_cmd_destroy_wq);
UNSUPPORTED(ibv_cmd_detach_mcast);
UNSUPPORTED(ibv_cmd_free_dm);
UNSUPPORTED(ibv_cmd_get_context);
UNSUPPORTED(ibv_cmd_modify_cq);
UNSUPPORTED(ibv_cmd_modify_flow_action_esp);
UNSUPPORTED(ibv_cmd_modify_qp);
UNSUPPORTED(ibv_cmd_modify_qp_ex);
UNSUPPORTED(ibv_cmd_modify_srq);
UNSUPPORTED(ibv_cmd_modify_wq);
UNSUPPORTED(ibv_cmd_open_qp);
UNSUPPORTED(ibv_cmd_open_xrcd);
UNSUPPORTED(ibv_cmd_poll_cq);
UNSUPPORTED(ibv_cmd_post_recv);
UNSUPPORTED(ibv_cmd_post_send);
UNSUPPORTED(ibv_cmd_post_srq_recv);
UNSUPPORTED(ibv_cmd_query_context);
UNSUPPORTED(ibv_cmd_query_device_any);
UNSUPPORTED(ibv_cmd_query_mr);
UNSUPPORTED(ibv_cmd_query_port);
UNSUPPORTED(ibv_cmd_query_qp);
UNSUPPORTED(ibv_cmd_query_srq);
UNSUPPORTED(ibv_cmd_read_counters);
UNSUPPORTED(ibv_cmd_reg_dm_mr);
UNSUPPORTED(ibv_cmd_reg_dmabuf_mr);
UNSUPPORTED(ibv_cmd_reg_mr);
UNSUPPORTED(ibv_cmd_req_notify_cq);
UNSUPPORTED(ibv_cmd_rereg_mr);
UNSUPPORTED(ibv_cmd_resize_cq);
IGNORED(ibv_copy_ah_attr_from_kern);
IGNORED(ibv_copy_path_rec_from_kern);
IGNORED(ibv_copy_path_rec_to_kern);
IGNORED(ibv_copy_qp_attr_from_kern);
UNSUPPORTED(ibv_read_ibdev_sysfs_file);
UNSUPPORTED(raccept);
UNSUPPORTED(rbind);
UNSUPPORTED(rclose);
UNSUPPORTED(rconnect);
UNSUPPORTED(rfcntl);
UNSUPPORTED(rgetpeername);
UNSUPPORTED(rgetsockname);
UNSUPPORTED(rgetsockopt);
UNSUPPORTED(riomap);
UNSUPPORTED(riounmap);
UNSUPPORTED(riowrite);
UNSUPPORTED(rlisten);
UNSUPPORTED(rread);
UNSUPPORTED(rreadv);
UNSUPPORTED(rrecv);
UNSUPPORTED(rrecvfrom);
UNSUPPORTED(rrecvmsg);
UNSUPPORTED(rselect);
UNSUPPORTED(rsend);
UNSUPPORTED(rsendmsg);
UNSUPPORTED(rsendto);
UNSUPPORTED(rsetsockopt);
UNSUPPORTED(rshutdown);
UNSUPPORTED(rsocket);
UNSUPPORTED(rwrite);
UNSUPPORTED(rwritev);
IGNORED(verbs_init_cq);
UNSUPPORTED_PTR(verbs_open_device);
IGNORED(verbs_register_driver_34);
IGNORED(verbs_set_ops);
IGNORED(verbs_uninit_context);

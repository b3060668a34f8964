/* SPDX-License-Identifier: BSD-2-Clause */
/* The counters that the library keeps of this process, summed; read from the process's own mapping of them. */
#ifndef VKR_CONF_EVIDENCE_H
#define VKR_CONF_EVIDENCE_H

#include <stdbool.h>
#include <stdint.h>

struct conf_evidence {
	uint64_t conns_rdma, conns_tcp, bytes_in, bytes_out, immediates_in, immediates_out;
	uint64_t shared; /* open RDMA connections whose bytes go on through the kernel to other holders */
};

/* False: this process has no counters (the library is not loaded, or nothing was flagged). */
bool conf_evidence(struct conf_evidence *e);

#endif

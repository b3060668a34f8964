/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vkrdma-stat's view of the processes: copies of their counters, taken with pread() from maps that nothing is believed
 * of. Whatever a map contains, a snapshot has terminated strings and enumerations in range; numbers may be nonsense.
 */
#ifndef VKR_TOOLS_STAT_H
#define VKR_TOOLS_STAT_H

#include "stats.h"

#include <stdio.h>

/* In the order of the counters in struct vkr_conn_stats; the first STAT_TOTALS ones are those of struct vkr_totals. */
enum stat_value {
	STAT_BYTES_IN,
	STAT_BYTES_OUT,
	STAT_IMMEDIATES_IN,
	STAT_IMMEDIATES_OUT,
	STAT_SENDS_IN,
	STAT_SENDS_OUT,
	STAT_REFRESHES_IN,
	STAT_REFRESHES_OUT,
	STAT_STALLS,
	STAT_RINGS_IN,
	STAT_RINGS_OUT,
	STAT_CREDITS_IN,
	STAT_CREDITS_OUT,
	STAT_WAKES_IN,
	STAT_WAKES_OUT,
	STAT_TOTALS,
	STAT_MEM_MR = STAT_TOTALS,
	STAT_MEM_QUEUE,
	STAT_VALUES
};

enum stat_gauge {
	STAT_QPS,
	STAT_MRS,
	STAT_MR_BYTES,
	STAT_CQS,
	STAT_LIBRARY_FDS,
	STAT_WAKEUPS,
	STAT_CQ_POLLS,
	STAT_CQ_EVENTS,
	STAT_FALLBACKS,
	STAT_GAUGES
};

extern const char *const stat_value_names[STAT_VALUES];
extern const char *const stat_gauge_names[STAT_GAUGES];

struct stat_conn {
	uint32_t slot, generation; /* together they name one connection of the process */
	enum vkr_slot_state state;
	enum vkr_transport transport;
	enum vkr_role role;
	enum vkr_peer_kind peer_kind;
	int fd;
	int64_t since_ms;
	uint64_t value[STAT_VALUES];
	char local[64], peer[64]; /* printable; empty: unknown */
	char rule[73], reason[97];
};

struct stat_listener {
	int fd;
	bool rdma; /* RDMA and TCP; false: TCP alone */
	uint64_t accepted_rdma, accepted_tcp;
	char local[64];
	char rule[73], reason[97];
};

struct stat_process {
	int pid;
	int map_pid; /* as the process itself knows it: another number inside a PID namespace */
	bool soft;
	int64_t start_ms;
	uint64_t conns_rdma, conns_tcp, failed;
	uint64_t total[STAT_TOTALS]; /* closed and live connections */
	uint64_t gauge[STAT_GAUGES];
	char program[65], device[65];
	int n_listeners, n_conns;
	struct stat_listener *listeners;
	struct stat_conn *conns; /* ascending by slot */
};

struct stat_snapshot {
	int64_t time_ms; /* CLOCK_REALTIME */
	int n;
	struct stat_process *processes; /* ascending by pid */
	int denied;                     /* processes that we may not look into */
	int unreadable;                 /* maps of another version, or broken */
};

/* Fills p (but its pid) from an open map. 0; -EBADMSG: not a map; -EPROTO: a map of another version; -errno. On failure
 * nothing is allocated. */
int stat_map_read(int fd, struct stat_process *p);
void stat_process_free(struct stat_process *p);

/* Every process that has a map and may be read, or only `pid` if that is > 0. 0 or -errno. */
int stat_scan(int pid, struct stat_snapshot *s);
void stat_snapshot_free(struct stat_snapshot *s);

/* The same connection (or process) in an earlier snapshot, or NULL. */
const struct stat_process *stat_process_find(const struct stat_snapshot *s, const struct stat_process *p);
const struct stat_conn *stat_conn_find(const struct stat_process *p, const struct stat_conn *c);

const char *stat_state_name(enum vkr_slot_state s);
const char *stat_transport_name(enum vkr_transport t);
const char *stat_role_name(enum vkr_role r);
const char *stat_peer_name(enum vkr_peer_kind k);

void stat_json_print(FILE *out, const struct stat_snapshot *s, bool one_line);

/* `before` (may be NULL) is an earlier snapshot: it tells idle connections from busy ones and, with rates set, gives
 * the figures a second. At most max_rows lines of connections a process, the busiest first, if that is > 0. */
void stat_text_print(FILE *out, const struct stat_snapshot *s, const struct stat_snapshot *before, bool rates,
		     int max_rows);

#endif

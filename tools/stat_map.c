/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reading one map. Its owner may be hostile, dying, or writing at this moment: the file is never mapped (a shrinking
 * one would raise SIGBUS), every size is compared with ours, and each slot is copied before it is looked at.
 */
#include "stat.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK 64 /* slots read at once */

#define VALUES_END(type, last) (offsetof(type, last) + sizeof(vkr_counter))
_Static_assert(VALUES_END(struct vkr_conn_stats, mem_queue) - offsetof(struct vkr_conn_stats, bytes_in) ==
		   STAT_VALUES * sizeof(uint64_t),
	       "connection counters are in the order of enum stat_value");
_Static_assert(VALUES_END(struct vkr_totals, wakes_out) - offsetof(struct vkr_totals, bytes_in) ==
		   STAT_TOTALS * sizeof(uint64_t),
	       "totals are in the order of enum stat_value");
_Static_assert(VALUES_END(struct vkr_stats_header, fallbacks) - offsetof(struct vkr_stats_header, qps) ==
		   STAT_GAUGES * sizeof(uint64_t),
	       "gauges are in the order of enum stat_gauge");

const char *const stat_value_names[STAT_VALUES] = {
    "bytes_in",     "bytes_out",     "immediates_in", "immediates_out", "sends_in",  "sends_out",
    "refreshes_in", "refreshes_out", "stalls",        "rings_in",       "rings_out", "credits_in",
    "credits_out",  "wakes_in",      "wakes_out",     "mem_mr",         "mem_queue"};
const char *const stat_gauge_names[STAT_GAUGES] = {"qps",     "mrs",      "mr_bytes",  "cqs",      "library_fds",
						   "wakeups", "cq_polls", "cq_events", "fallbacks"};

const char *stat_state_name(enum vkr_slot_state s)
{
	static const char *const names[] = {"free", "connecting", "open", "closing"};

	return names[s];
}

const char *stat_transport_name(enum vkr_transport t)
{
	static const char *const names[] = {"none", "rdma", "tcp"};

	return names[t];
}

const char *stat_role_name(enum vkr_role r)
{
	return r == VKR_ROLE_ACCEPT ? "accept" : "connect";
}

const char *stat_peer_name(enum vkr_peer_kind k)
{
	static const char *const names[] = {"unknown", "shim", "native"};

	return names[k];
}

/* Printable ASCII only: it goes to terminals and into JSON. to has room for n + 1. */
static void text_take(char *to, const char *from, size_t n)
{
	size_t i;

	for (i = 0; i < n && from[i]; i++)
		to[i] = from[i] < ' ' || from[i] > '~' ? '?' : from[i];
	to[i] = '\0';
}

static void address_take(char *to, size_t size, const struct sockaddr_in6 *sa)
{
	char ip[INET6_ADDRSTRLEN] = "";

	to[0] = '\0';
	if (sa->sin6_family == AF_INET && inet_ntop(AF_INET, sa->sin6_addr.s6_addr + 12, ip, sizeof(ip)))
		snprintf(to, size, "%s:%u", ip, ntohs(sa->sin6_port));
	else if (sa->sin6_family == AF_INET6 && inet_ntop(AF_INET6, &sa->sin6_addr, ip, sizeof(ip)))
		snprintf(to, size, "[%s]:%u", ip, ntohs(sa->sin6_port));
}

static void conn_take(struct stat_conn *to, const struct vkr_conn_stats *c, uint32_t slot)
{
	uint32_t state = vkr_load((_Atomic uint32_t *)&c->state);

	to->slot = slot;
	to->generation = c->generation;
	to->state = state <= VKR_SLOT_CLOSING ? (enum vkr_slot_state)state : VKR_SLOT_OPEN;
	to->transport = c->transport <= VKR_TRANSPORT_TCP ? (enum vkr_transport)c->transport : VKR_TRANSPORT_NONE;
	to->role = c->role == VKR_ROLE_ACCEPT ? VKR_ROLE_ACCEPT : VKR_ROLE_CONNECT;
	to->peer_kind = c->peer_kind <= VKR_PEER_NATIVE ? (enum vkr_peer_kind)c->peer_kind : VKR_PEER_UNKNOWN;
	to->fd = c->fd;
	to->since_ms = vkr_max(c->since_ms, 0);
	memcpy(to->value, (const char *)c + offsetof(struct vkr_conn_stats, bytes_in), sizeof(to->value));
	address_take(to->local, sizeof(to->local), &c->local);
	address_take(to->peer, sizeof(to->peer), &c->peer);
	text_take(to->rule, c->rule, sizeof(c->rule));
	text_take(to->reason, c->reason, sizeof(c->reason));
}

static void listener_take(struct stat_listener *to, const struct vkr_listener_stats *l)
{
	to->fd = l->fd;
	to->rdma = l->transport == VKR_TRANSPORT_RDMA;
	to->accepted_rdma = vkr_load((vkr_counter *)&l->accepted_rdma);
	to->accepted_tcp = vkr_load((vkr_counter *)&l->accepted_tcp);
	address_take(to->local, sizeof(to->local), &l->local);
	text_take(to->rule, l->rule, sizeof(l->rule));
	text_take(to->reason, l->reason, sizeof(l->reason));
}

static int header_read(int fd, struct vkr_stats_header *h)
{
	ssize_t n = pread(fd, h, sizeof(*h), 0);

	if (n < 0)
		return -errno;
	if ((size_t)n < sizeof(*h) || h->magic != VKR_STATS_MAGIC)
		return -EBADMSG;
	if (h->version != VKR_STATS_VERSION || h->size_conn != sizeof(struct vkr_conn_stats) ||
	    h->size_listener != sizeof(struct vkr_listener_stats) || h->n_conns != VKR_STATS_CONNS ||
	    h->n_listeners != VKR_STATS_LISTENERS)
		return -EPROTO;
	return 0;
}

static void header_take(struct stat_process *p, const struct vkr_stats_header *h)
{
	p->map_pid = h->pid;
	p->soft = h->provider == 1;
	p->start_ms = vkr_max(h->start_ms, 0);
	text_take(p->program, h->program, sizeof(h->program));
	text_take(p->device, h->device, sizeof(h->device));
	memcpy(&p->conns_rdma, (const char *)&h->closed + offsetof(struct vkr_totals, conns_rdma), 8);
	memcpy(&p->conns_tcp, (const char *)&h->closed + offsetof(struct vkr_totals, conns_tcp), 8);
	memcpy(&p->failed, (const char *)&h->closed + offsetof(struct vkr_totals, failed), 8);
	memcpy(p->total, (const char *)&h->closed + offsetof(struct vkr_totals, bytes_in), sizeof(p->total));
	memcpy(p->gauge, (const char *)h + offsetof(struct vkr_stats_header, qps), sizeof(p->gauge));
}

static int listeners_read(int fd, struct stat_process *p, uint32_t high)
{
	struct vkr_listener_stats chunk[CHUNK];
	uint32_t n = vkr_min(high, (uint32_t)VKR_STATS_LISTENERS), i, k;
	off_t base = offsetof(struct vkr_stats_map, listeners);
	ssize_t got;

	p->n_listeners = 0;
	p->listeners = calloc(n ? n : 1, sizeof(*p->listeners));
	if (!p->listeners)
		return -ENOMEM;
	for (i = 0; i < n; i += CHUNK) {
		got = pread(fd, chunk, sizeof(chunk), base + (off_t)(i * sizeof(chunk[0])));
		if (got <= 0)
			break;
		for (k = 0; k < (size_t)got / sizeof(chunk[0]) && i + k < n; k++)
			if (vkr_load(&chunk[k].state) != VKR_SLOT_FREE)
				listener_take(&p->listeners[p->n_listeners++], &chunk[k]);
	}
	return 0;
}

static int conn_append(struct stat_process *p, int *room, const struct vkr_conn_stats *c, uint32_t slot)
{
	struct stat_conn *more;
	int i;

	if (p->n_conns == *room) {
		*room = *room ? *room * 2 : 64;
		more = realloc(p->conns, (size_t)*room * sizeof(*more));
		if (!more)
			return -ENOMEM;
		p->conns = more;
	}
	conn_take(&p->conns[p->n_conns], c, slot);
	for (i = 0; i < STAT_TOTALS; i++)
		p->total[i] += p->conns[p->n_conns].value[i];
	p->n_conns++;
	return 0;
}

static int conns_read(int fd, struct stat_process *p, uint32_t high)
{
	struct vkr_conn_stats chunk[CHUNK];
	uint32_t n = vkr_min(high, (uint32_t)VKR_STATS_CONNS), i, k;
	off_t base = offsetof(struct vkr_stats_map, conns);
	int rc = 0, room = 0;
	ssize_t got;

	p->n_conns = 0;
	p->conns = NULL;
	for (i = 0; i < n && rc == 0; i += CHUNK) {
		got = pread(fd, chunk, sizeof(chunk), base + (off_t)i * (off_t)sizeof(chunk[0]));
		if (got <= 0)
			break;
		for (k = 0; k < (size_t)got / sizeof(chunk[0]) && i + k < n && rc == 0; k++)
			if (vkr_load(&chunk[k].state) != VKR_SLOT_FREE)
				rc = conn_append(p, &room, &chunk[k], i + k);
	}
	return rc;
}

void stat_process_free(struct stat_process *p)
{
	free(p->listeners);
	free(p->conns);
	p->listeners = NULL;
	p->conns = NULL;
	p->n_listeners = p->n_conns = 0;
}

/*
 * A connection that ends between the header and its slot would be counted twice or not at all. Where `closed` has moved
 * meanwhile everything is read again, a few times: a busy process is then off by the odd connection.
 */
int stat_map_read(int fd, struct stat_process *p)
{
	struct vkr_stats_header h, after;
	struct stat st;
	int rc, tries;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EBADMSG;
	for (tries = 0; tries < 4; tries++) {
		memset(p, 0, sizeof(*p));
		rc = header_read(fd, &h);
		if (rc < 0)
			return rc;
		header_take(p, &h);
		rc = listeners_read(fd, p, vkr_load(&h.high_listener));
		if (rc == 0)
			rc = conns_read(fd, p, vkr_load(&h.high_conn));
		if (rc == 0)
			rc = header_read(fd, &after);
		if (rc < 0) {
			stat_process_free(p);
			return rc;
		}
		if (memcmp(&h.closed, &after.closed, sizeof(h.closed)) == 0 || tries == 3)
			break;
		stat_process_free(p);
	}
	return 0;
}

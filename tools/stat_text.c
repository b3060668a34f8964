/* SPDX-License-Identifier: BSD-2-Clause */
/* The human's view. */
#include "stat.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 13
#define CELL    104

/* Rows of cells, printed with each column as wide as its widest cell. */
struct table {
	int rows, room;
	bool right[COLUMNS]; /* numbers */
	char (*cells)[COLUMNS][CELL];
};

static VKR_PRINTF(4, 5) void table_set(struct table *t, int row, int column, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(t->cells[row][column], CELL, fmt, ap);
	va_end(ap);
}

/* The new row's index, or -1. */
static int table_row(struct table *t)
{
	void *more;

	if (t->rows == t->room) {
		t->room = t->room ? t->room * 2 : 32;
		more = realloc(t->cells, (size_t)t->room * sizeof(*t->cells));
		if (!more)
			return -1;
		t->cells = more;
	}
	memset(t->cells[t->rows], 0, sizeof(*t->cells));
	return t->rows++;
}

static void table_print(FILE *out, const struct table *t)
{
	int width[COLUMNS] = {0}, r, c, last;

	for (r = 0; r < t->rows; r++)
		for (c = 0; c < COLUMNS; c++)
			width[c] = vkr_max(width[c], (int)strlen(t->cells[r][c]));
	for (r = 0; r < t->rows; r++) {
		for (last = COLUMNS - 1; last > 0 && !t->cells[r][last][0]; last--)
			;
		for (c = 0; c <= last; c++) {
			if (t->right[c])
				fprintf(out, "  %*s", width[c], t->cells[r][c]);
			else
				fprintf(out, "  %-*s", c == last ? 0 : width[c], t->cells[r][c]);
		}
		fputc('\n', out);
	}
}

/* 1536 as "1.5K": binary multiples, 4 to 6 characters. */
static const char *scaled(char buf[16], double v)
{
	static const char units[] = " KMGTPE";
	int u = 0;

	while (v >= 1024 && u < 6) {
		v /= 1024;
		u++;
	}
	if (u == 0)
		snprintf(buf, 16, "%.0f", v);
	else
		snprintf(buf, 16, v < 100 ? "%.1f%c" : "%.0f%c", v, units[u]);
	return buf;
}

static const char *duration(char buf[32], int64_t ms)
{
	int64_t s = ms > 0 ? ms / 1000 : 0;

	if (s < 60)
		snprintf(buf, 32, "%" PRId64 "s", s);
	else if (s < 3600)
		snprintf(buf, 32, "%" PRId64 "m%02" PRId64 "s", s / 60, s % 60);
	else
		snprintf(buf, 32, "%" PRId64 "h%02" PRId64 "m", s / 3600, s / 60 % 60);
	return buf;
}

static double per_second(uint64_t now, uint64_t then, double seconds)
{
	return now >= then && seconds > 0 ? (double)(now - then) / seconds : 0;
}

/* One connection and how to show it. */
struct line {
	const struct stat_conn *conn, *before;
	double seconds; /* rates over this time; 0: plain counts */
	double weight;  /* bytes (a second) */
};

static double line_value(const struct line *l, int v)
{
	if (l->seconds == 0)
		return (double)l->conn->value[v];
	return per_second(l->conn->value[v], l->before ? l->before->value[v] : 0, l->seconds);
}

static void conn_row(struct table *t, const struct line *l)
{
	static const uint8_t shown[] = {STAT_BYTES_IN, STAT_BYTES_OUT, STAT_IMMEDIATES_IN, STAT_IMMEDIATES_OUT};
	const struct stat_conn *c = l->conn;
	int r = table_row(t);
	char buf[16];
	size_t i;

	if (r < 0)
		return;
	table_set(t, r, 0, "%s", c->local[0] ? c->local : "-");
	table_set(t, r, 1, "%s", c->peer[0] ? c->peer : "-");
	table_set(t, r, 2, "%s", stat_role_name(c->role));
	table_set(t, r, 3, "%s",
		  c->state == VKR_SLOT_OPEN ? stat_transport_name(c->transport) : stat_state_name(c->state));
	table_set(t, r, 4, "%s", c->peer_kind == VKR_PEER_UNKNOWN ? "-" : stat_peer_name(c->peer_kind));
	table_set(t, r, 12, "%s", c->reason);
	if (c->transport == VKR_TRANSPORT_TCP) {
		/* the kernel carries it: nothing is counted */
		for (i = 5; i <= 11; i++)
			table_set(t, r, (int)i, "-");
		return;
	}
	for (i = 0; i < sizeof(shown); i++)
		table_set(t, r, 5 + (int)i, "%s", scaled(buf, line_value(l, shown[i])));
	table_set(t, r, 9, "%s", scaled(buf, line_value(l, STAT_REFRESHES_IN) + line_value(l, STAT_REFRESHES_OUT)));
	table_set(t, r, 10, "%s", scaled(buf, line_value(l, STAT_STALLS)));
	table_set(t, r, 11, "%s", scaled(buf, (double)c->value[STAT_MEM_MR] + (double)c->value[STAT_MEM_QUEUE]));
}

static void conn_head(struct table *t, bool rates)
{
	static const char *const plain[COLUMNS] = {"LOCAL",  "PEER",   "ROLE",   "VIA",     "PEER IS",
						   "IN",     "OUT",    "IMM IN", "IMM OUT", "REFRESHES",
						   "STALLS", "MEMORY", "REASON"};
	static const char *const rate[COLUMNS] = {"LOCAL",   "PEER",   "ROLE",     "VIA",       "PEER IS",
						  "IN/s",    "OUT/s",  "IMM IN/s", "IMM OUT/s", "REFR/s",
						  "STALL/s", "MEMORY", "REASON"};
	int r = table_row(t), c;

	for (c = 0; r >= 0 && c < COLUMNS; c++)
		table_set(t, r, c, "%s", (rates ? rate : plain)[c]);
	for (c = 5; c <= 11; c++)
		t->right[c] = true;
}

static int by_weight(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	if (x->weight != y->weight)
		return x->weight < y->weight ? 1 : -1;
	return (x->conn->slot > y->conn->slot) - (x->conn->slot < y->conn->slot);
}

static void print_conns(FILE *out, const struct stat_process *p, const struct stat_process *before, double seconds,
			int max_rows)
{
	struct line *lines = calloc((size_t)p->n_conns + 1, sizeof(*lines));
	int i, n = max_rows > 0 ? vkr_min(max_rows, p->n_conns) : p->n_conns;
	struct table t = {0};

	if (!lines)
		return;
	for (i = 0; i < p->n_conns; i++) {
		lines[i].conn = &p->conns[i];
		lines[i].before = stat_conn_find(before, &p->conns[i]);
		lines[i].seconds = seconds;
		lines[i].weight = line_value(&lines[i], STAT_BYTES_IN) + line_value(&lines[i], STAT_BYTES_OUT);
	}
	if (max_rows > 0)
		qsort(lines, (size_t)p->n_conns, sizeof(*lines), by_weight);
	conn_head(&t, seconds > 0);
	for (i = 0; i < n; i++)
		conn_row(&t, &lines[i]);
	table_print(out, &t);
	if (n < p->n_conns)
		fprintf(out, "  ... and %d more connections\n", p->n_conns - n);
	free(t.cells);
	free(lines);
}

static void print_listeners(FILE *out, const struct stat_process *p)
{
	struct table t = {0};
	int i, r;

	for (i = 0; i < p->n_listeners; i++) {
		const struct stat_listener *l = &p->listeners[i];

		r = table_row(&t);
		if (r < 0)
			break;
		table_set(&t, r, 0, "listening on %s", l->local);
		table_set(&t, r, 1, "%s", l->rdma ? "rdma and tcp" : "tcp only");
		table_set(&t, r, 2, "accepted %" PRIu64 " rdma, %" PRIu64 " tcp", l->accepted_rdma, l->accepted_tcp);
		table_set(&t, r, 3, "rule %s", l->rule);
		table_set(&t, r, 4, "%s", l->reason);
	}
	table_print(out, &t);
	free(t.cells);
}

static void print_totals(FILE *out, const struct stat_process *p)
{
	const uint64_t *v = p->total;
	char in[16], outgoing[16];

	fprintf(out,
		"  since start: %" PRIu64 " rdma and %" PRIu64 " tcp connections, %" PRIu64 " failed, %" PRIu64
		" fell back to tcp\n",
		p->conns_rdma, p->conns_tcp, p->failed, p->gauge[STAT_FALLBACKS]);
	fprintf(out,
		"  by rdma: %s in (%" PRIu64 " immediates), %s out (%" PRIu64 " immediates), sends %" PRIu64 "/%" PRIu64
		", refreshes %" PRIu64 "/%" PRIu64 ", stalls %" PRIu64 ", credits %" PRIu64 "/%" PRIu64
		", wake requests %" PRIu64 "/%" PRIu64 "\n",
		scaled(in, (double)v[STAT_BYTES_IN]), v[STAT_IMMEDIATES_IN],
		scaled(outgoing, (double)v[STAT_BYTES_OUT]), v[STAT_IMMEDIATES_OUT], v[STAT_SENDS_IN],
		v[STAT_SENDS_OUT], v[STAT_REFRESHES_IN], v[STAT_REFRESHES_OUT], v[STAT_STALLS], v[STAT_CREDITS_IN],
		v[STAT_CREDITS_OUT], v[STAT_WAKES_IN], v[STAT_WAKES_OUT]);
}

static void print_gauges(FILE *out, const struct stat_process *p, const struct stat_process *before, double seconds)
{
	const uint64_t *g = p->gauge;
	char buf[16];

	fprintf(out,
		"  now: %" PRIu64 " QPs, %" PRIu64 " MRs (%s), %" PRIu64 " CQs, %" PRIu64 " library fds; wake-ups ",
		g[STAT_QPS], g[STAT_MRS], scaled(buf, (double)g[STAT_MR_BYTES]), g[STAT_CQS], g[STAT_LIBRARY_FDS]);
	if (seconds > 0 && before)
		fprintf(out, "%.0f/s, CQ polls %.0f/s, CQ events %.0f/s\n",
			per_second(g[STAT_WAKEUPS], before->gauge[STAT_WAKEUPS], seconds),
			per_second(g[STAT_CQ_POLLS], before->gauge[STAT_CQ_POLLS], seconds),
			per_second(g[STAT_CQ_EVENTS], before->gauge[STAT_CQ_EVENTS], seconds));
	else
		fprintf(out, "%" PRIu64 ", CQ polls %" PRIu64 ", CQ events %" PRIu64 "\n", g[STAT_WAKEUPS],
			g[STAT_CQ_POLLS], g[STAT_CQ_EVENTS]);
}

/* A connection is idle if no byte went through it since the earlier snapshot. */
static void print_memory(FILE *out, const struct stat_process *p, const struct stat_process *before)
{
	double mr = 0, queue = 0, mr_idle = 0, queue_idle = 0;
	char a[16], b[16], c[16];
	int i, n = 0, idle = 0;

	for (i = 0; i < p->n_conns; i++) {
		const struct stat_conn *now = &p->conns[i], *then = stat_conn_find(before, now);

		if (now->transport != VKR_TRANSPORT_RDMA || now->state != VKR_SLOT_OPEN)
			continue;
		n++;
		mr += (double)now->value[STAT_MEM_MR];
		queue += (double)now->value[STAT_MEM_QUEUE];
		if (!then || then->value[STAT_BYTES_IN] != now->value[STAT_BYTES_IN] ||
		    then->value[STAT_BYTES_OUT] != now->value[STAT_BYTES_OUT])
			continue;
		idle++;
		mr_idle += (double)now->value[STAT_MEM_MR];
		queue_idle += (double)now->value[STAT_MEM_QUEUE];
	}
	if (n)
		fprintf(out, "  memory: %s a connection (MRs %s, queues %s), mean of %d open rdma connections\n",
			scaled(a, (mr + queue) / n), scaled(b, mr / n), scaled(c, queue / n), n);
	if (idle)
		fprintf(out, "  memory: %s an idle connection (MRs %s, queues %s), mean of %d idle rdma connections\n",
			scaled(a, (mr_idle + queue_idle) / idle), scaled(b, mr_idle / idle),
			scaled(c, queue_idle / idle), idle);
}

static void print_process(FILE *out, const struct stat_process *p, const struct stat_process *before, int64_t now_ms,
			  double seconds, int max_rows)
{
	char up[32];

	fprintf(out, "%s  pid %d  provider %s%s%s  up %s\n", p->program, p->pid, p->soft ? "soft" : "verbs",
		p->device[0] ? ", device " : "", p->device, duration(up, now_ms - p->start_ms));
	print_listeners(out, p);
	if (p->n_conns)
		print_conns(out, p, before, seconds, max_rows);
	print_totals(out, p);
	print_gauges(out, p, before, seconds);
	print_memory(out, p, before);
}

void stat_text_print(FILE *out, const struct stat_snapshot *s, const struct stat_snapshot *before, bool rates,
		     int max_rows)
{
	double seconds = rates && before ? (double)(s->time_ms - before->time_ms) / 1000 : 0;
	int i;

	for (i = 0; i < s->n; i++) {
		if (i)
			fputc('\n', out);
		print_process(out, &s->processes[i], stat_process_find(before, &s->processes[i]), s->time_ms, seconds,
			      max_rows);
	}
	if (!s->n)
		fprintf(out, "no process with a flagged listener or connection was found\n");
	if (s->denied)
		fprintf(out, "(not looked at, for lack of permission: %d; try as root)\n", s->denied);
	if (s->unreadable)
		fprintf(out, "(counters of another version, or broken: %d)\n", s->unreadable);
}

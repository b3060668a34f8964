/* SPDX-License-Identifier: BSD-2-Clause */
/* The machine's view; vkrdma-stat(1) documents every key. */
#include "stat.h"

#include <inttypes.h>

/* A writer that puts commas and line ends where they belong. */
struct json {
	FILE *out;
	bool one_line;
	bool first; /* nothing in the present object or array yet */
	int depth;
};

static void json_break(struct json *j)
{
	if (!j->one_line)
		fprintf(j->out, "\n%*s", j->depth * 2, "");
}

static void json_next(struct json *j, const char *key)
{
	if (!j->first)
		fputc(',', j->out);
	json_break(j);
	j->first = false;
	if (key)
		fprintf(j->out, "\"%s\":%s", key, j->one_line ? "" : " ");
}

static void json_open(struct json *j, const char *key, char c)
{
	if (j->depth)
		json_next(j, key);
	fputc(c, j->out);
	j->depth++;
	j->first = true;
}

static void json_close(struct json *j, char c)
{
	j->depth--;
	if (!j->first)
		json_break(j);
	fputc(c, j->out);
	j->first = false;
}

/* Snapshots hold printable ASCII only. */
static void json_text(struct json *j, const char *key, const char *s)
{
	json_next(j, key);
	fputc('"', j->out);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fputc('\\', j->out);
		fputc(*s, j->out);
	}
	fputc('"', j->out);
}

static void json_number(struct json *j, const char *key, uint64_t v)
{
	json_next(j, key);
	fprintf(j->out, "%" PRIu64, v);
}

static void json_signed(struct json *j, const char *key, int64_t v)
{
	json_next(j, key);
	fprintf(j->out, "%" PRId64, v);
}

static void print_listener(struct json *j, const struct stat_listener *l)
{
	json_open(j, NULL, '{');
	json_text(j, "local", l->local);
	json_text(j, "transport", l->rdma ? "rdma" : "tcp");
	json_text(j, "reason", l->reason);
	json_text(j, "rule", l->rule);
	json_signed(j, "fd", l->fd);
	json_number(j, "accepted_rdma", l->accepted_rdma);
	json_number(j, "accepted_tcp", l->accepted_tcp);
	json_close(j, '}');
}

static void print_conn(struct json *j, const struct stat_conn *c)
{
	int i;

	json_open(j, NULL, '{');
	json_text(j, "local", c->local);
	json_text(j, "peer", c->peer);
	json_text(j, "role", stat_role_name(c->role));
	json_text(j, "transport", stat_transport_name(c->transport));
	json_text(j, "reason", c->reason);
	json_text(j, "rule", c->rule);
	json_text(j, "state", stat_state_name(c->state));
	json_text(j, "peer_kind", stat_peer_name(c->peer_kind));
	json_signed(j, "fd", c->fd);
	json_signed(j, "since", c->since_ms);
	for (i = 0; i < STAT_VALUES; i++)
		json_number(j, stat_value_names[i], c->value[i]);
	json_close(j, '}');
}

/* Mean memory of the open RDMA connections; 0 if there is none. */
static uint64_t memory_mean(const struct stat_process *p)
{
	uint64_t sum = 0;
	int i, n = 0;

	for (i = 0; i < p->n_conns; i++) {
		if (p->conns[i].transport != VKR_TRANSPORT_RDMA || p->conns[i].state != VKR_SLOT_OPEN)
			continue;
		sum += p->conns[i].value[STAT_MEM_MR] + p->conns[i].value[STAT_MEM_QUEUE];
		n++;
	}
	return n ? sum / (uint64_t)n : 0;
}

static void print_process(struct json *j, const struct stat_process *p)
{
	int i;

	json_open(j, NULL, '{');
	json_signed(j, "pid", p->pid);
	json_text(j, "program", p->program);
	json_text(j, "provider", p->soft ? "soft" : "verbs");
	json_text(j, "device", p->device);
	json_signed(j, "since", p->start_ms);
	json_open(j, "listeners", '[');
	for (i = 0; i < p->n_listeners; i++)
		print_listener(j, &p->listeners[i]);
	json_close(j, ']');
	json_open(j, "connections", '[');
	for (i = 0; i < p->n_conns; i++)
		print_conn(j, &p->conns[i]);
	json_close(j, ']');
	json_open(j, "totals", '{');
	json_number(j, "conns_rdma", p->conns_rdma);
	json_number(j, "conns_tcp", p->conns_tcp);
	json_number(j, "failed", p->failed);
	for (i = 0; i < STAT_TOTALS; i++)
		json_number(j, stat_value_names[i], p->total[i]);
	for (i = STAT_WAKEUPS; i < STAT_GAUGES; i++)
		json_number(j, stat_gauge_names[i], p->gauge[i]);
	json_close(j, '}');
	json_open(j, "gauges", '{');
	for (i = 0; i < STAT_WAKEUPS; i++)
		json_number(j, stat_gauge_names[i], p->gauge[i]);
	json_number(j, "mem_per_rdma_connection", memory_mean(p));
	json_close(j, '}');
	json_close(j, '}');
}

void stat_json_print(FILE *out, const struct stat_snapshot *s, bool one_line)
{
	struct json j = {.out = out, .one_line = one_line};
	int i;

	json_open(&j, NULL, '{');
	json_signed(&j, "time", s->time_ms);
	json_open(&j, "processes", '[');
	for (i = 0; i < s->n; i++)
		print_process(&j, &s->processes[i]);
	json_close(&j, ']');
	json_signed(&j, "denied", s->denied);
	json_signed(&j, "unreadable", s->unreadable);
	json_close(&j, '}');
	fputc('\n', out);
}

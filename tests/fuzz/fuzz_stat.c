/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * vkrdma-stat's reader. An input is a map without its holes: the header, then four listeners, then connections; one
 * that ends early is a short file.
 */
#include "fuzz.h"

#include "stat.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUZZ_LISTENERS 4

static size_t part(const uint8_t **data, size_t *size, size_t want)
{
	size_t n = vkr_min(want, *size);

	*data += n;
	*size -= n;
	return n;
}

/* Writes one part at its place in the file. */
static void lay(int fd, const uint8_t **data, size_t *size, size_t want, off_t at)
{
	const uint8_t *from = *data;
	size_t n = part(data, size, want);

	FUZZ_CHECK(pwrite(fd, from, n, at) == (ssize_t)n);
}

static void check_text(const char *s, size_t room)
{
	FUZZ_CHECK(memchr(s, '\0', room));
	for (; *s; s++)
		FUZZ_CHECK(*s >= ' ' && *s <= '~');
}

static void check_process(const struct stat_process *p)
{
	int i;

	check_text(p->program, sizeof(p->program));
	check_text(p->device, sizeof(p->device));
	FUZZ_CHECK(p->n_listeners >= 0 && p->n_listeners <= VKR_STATS_LISTENERS);
	FUZZ_CHECK(p->n_conns >= 0 && p->n_conns <= VKR_STATS_CONNS);
	for (i = 0; i < p->n_listeners; i++) {
		check_text(p->listeners[i].local, sizeof(p->listeners[i].local));
		check_text(p->listeners[i].rule, sizeof(p->listeners[i].rule));
		check_text(p->listeners[i].reason, sizeof(p->listeners[i].reason));
	}
	for (i = 0; i < p->n_conns; i++) {
		const struct stat_conn *c = &p->conns[i];

		check_text(c->local, sizeof(c->local));
		check_text(c->peer, sizeof(c->peer));
		check_text(c->rule, sizeof(c->rule));
		check_text(c->reason, sizeof(c->reason));
		FUZZ_CHECK(c->state > VKR_SLOT_FREE && c->state <= VKR_SLOT_CLOSING);
		FUZZ_CHECK(c->transport <= VKR_TRANSPORT_TCP && c->role <= VKR_ROLE_ACCEPT);
		FUZZ_CHECK(c->peer_kind <= VKR_PEER_NATIVE);
		FUZZ_CHECK(i == 0 || c->slot > c[-1].slot);
	}
}

/* Both views print it; the JSON's brackets are even outside strings. */
static void check_views(struct stat_process *p)
{
	struct stat_snapshot s = {.time_ms = 1000, .n = 1, .processes = p}, before = s;
	char *out = NULL, *at;
	size_t size = 0;
	FILE *f = open_memstream(&out, &size);
	bool in_string = false;
	int depth = 0;

	FUZZ_CHECK(f);
	stat_json_print(f, &s, true);
	FUZZ_CHECK(fflush(f) == 0);
	for (at = out; *at; at++) {
		if (in_string && *at == '\\')
			at++;
		else if (*at == '"')
			in_string = !in_string;
		else if (!in_string)
			depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
	}
	FUZZ_CHECK(depth == 0 && !in_string);
	before.time_ms = 0;
	stat_text_print(f, &s, &before, true, 3);
	stat_text_print(f, &s, NULL, false, 0);
	FUZZ_CHECK(fclose(f) == 0);
	free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int fd = -1;
	struct stat_process p;
	int rc;

	if (fd < 0)
		fd = memfd_create("fuzz", MFD_CLOEXEC);
	FUZZ_CHECK(fd >= 0 && ftruncate(fd, 0) == 0);
	lay(fd, &data, &size, sizeof(struct vkr_stats_header), 0);
	lay(fd, &data, &size, FUZZ_LISTENERS * sizeof(struct vkr_listener_stats),
	    offsetof(struct vkr_stats_map, listeners));
	lay(fd, &data, &size, size, offsetof(struct vkr_stats_map, conns));
	rc = stat_map_read(fd, &p);
	FUZZ_CHECK(rc == 0 || rc == -EBADMSG || rc == -EPROTO);
	if (rc < 0)
		return 0;
	p.pid = 1;
	check_process(&p);
	check_views(&p);
	stat_process_free(&p);
	return 0;
}

static void seed_conn(struct vkr_conn_stats *c, unsigned i)
{
	memset(c, 0, sizeof(*c));
	vkr_store(&c->state, 1 + i % 3);
	c->transport = (uint8_t)(i % 3);
	c->role = (uint8_t)(i % 2);
	c->peer_kind = (uint8_t)(i % 3);
	c->local.sin6_family = i % 2 ? AF_INET : AF_INET6;
	c->peer = c->local;
	strcpy(c->rule, "*");
	strcpy(c->reason, i % 3 == 2 ? "no \"device\"" : "");
	vkr_store(&c->bytes_in, 1u << i);
	vkr_store(&c->mem_mr, UINT64_MAX);
}

/* Seed n has n listeners and n connections. */
size_t fuzz_seed(unsigned n, uint8_t *out)
{
	static struct vkr_stats_header h;
	static struct vkr_listener_stats l[FUZZ_LISTENERS];
	static struct vkr_conn_stats c;
	size_t size = 0;
	unsigned i;

	if (n > FUZZ_LISTENERS)
		return 0;
	memset(&h, 0, sizeof(h));
	memset(l, 0, sizeof(l));
	h.magic = VKR_STATS_MAGIC;
	h.version = VKR_STATS_VERSION;
	h.size_conn = sizeof(struct vkr_conn_stats);
	h.size_listener = sizeof(struct vkr_listener_stats);
	h.n_conns = VKR_STATS_CONNS;
	h.n_listeners = VKR_STATS_LISTENERS;
	strcpy(h.program, "fuzz");
	vkr_store(&h.high_listener, n);
	vkr_store(&h.high_conn, n);
	for (i = 0; i < n; i++) {
		vkr_store(&l[i].state, VKR_SLOT_OPEN);
		l[i].transport = VKR_TRANSPORT_RDMA;
	}
	memcpy(out, &h, sizeof(h));
	size += sizeof(h);
	memcpy(out + size, l, sizeof(l));
	size += sizeof(l);
	for (i = 0; i < n; i++, size += sizeof(c)) {
		seed_conn(&c, i);
		memcpy(out + size, &c, sizeof(c));
	}
	return size;
}

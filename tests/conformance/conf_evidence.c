/* SPDX-License-Identifier: BSD-2-Clause */
#include "conf.h"
#include "conf_evidence.h"
#include "stats.h"

#include <dirent.h>

/* The mapping is found in /proc/self/maps rather than through the descriptor: a test may have closed every number. */
static struct vkr_stats_map *find_map(void)
{
	struct vkr_stats_map *map = NULL;
	unsigned long from, offset;
	char line[512];
	FILE *f = fopen("/proc/self/maps", "re");

	while (f && !map && fgets(line, sizeof(line), f))
		if (strstr(line, "vkrdma-stats") && sscanf(line, "%lx-%*x %*s %lx", &from, &offset) == 2 && offset == 0)
			map = (struct vkr_stats_map *)from; /* NOLINT(performance-no-int-to-ptr) */
	if (f)
		fclose(f);
	return map;
}

bool conf_evidence(struct conf_evidence *e)
{
	struct vkr_stats_map *map = find_map();
	uint32_t n;

	memset(e, 0, sizeof(*e));
	if (!map)
		return false;
	CONF_EQ(map->header.magic, VKR_STATS_MAGIC);
	CONF_EQ(map->header.version, VKR_STATS_VERSION);
	CONF_EQ(map->header.pid, getpid());
	e->conns_rdma = vkr_load(&map->header.closed.conns_rdma);
	e->conns_tcp = vkr_load(&map->header.closed.conns_tcp);
	e->bytes_in = vkr_load(&map->header.closed.bytes_in);
	e->bytes_out = vkr_load(&map->header.closed.bytes_out);
	e->immediates_in = vkr_load(&map->header.closed.immediates_in);
	e->immediates_out = vkr_load(&map->header.closed.immediates_out);
	n = vkr_load(&map->header.high_conn);
	for (uint32_t i = 0; i < n && i < VKR_STATS_CONNS; i++) {
		struct vkr_conn_stats *c = &map->conns[i];

		if (vkr_load_acq(&c->state) == VKR_SLOT_FREE)
			continue;
		e->bytes_in += vkr_load(&c->bytes_in);
		e->bytes_out += vkr_load(&c->bytes_out);
		e->immediates_in += vkr_load(&c->immediates_in);
		e->immediates_out += vkr_load(&c->immediates_out);
		e->shared += c->transport == VKR_TRANSPORT_RDMA && c->reason[0];
	}
	return true;
}

bool conf_carried(void)
{
	const char *v = getenv("CONF_EXPECT_RDMA");

	return v && !strcmp(v, "1");
}

uint64_t conf_conns_rdma(void)
{
	struct conf_evidence e;

	return conf_evidence(&e) ? e.conns_rdma : 0;
}

uint64_t conf_shared(void)
{
	struct conf_evidence e;

	return conf_evidence(&e) ? e.shared : 0;
}

static int no_evidence(const char *what, const struct conf_evidence *e)
{
	fprintf(stderr, "no evidence of RDMA: %s (rdma %llu, tcp %llu, immediates out %llu in %llu, bytes out %llu)\n",
		what, (unsigned long long)e->conns_rdma, (unsigned long long)e->conns_tcp,
		(unsigned long long)e->immediates_out, (unsigned long long)e->immediates_in,
		(unsigned long long)e->bytes_out);
	return 1;
}

/* For the test bed's table. */
static void note_proof(const struct conf_evidence *e)
{
	const char *path = getenv("BED_PROOF");
	FILE *f = path ? fopen(path, "ae") : NULL;

	if (!f)
		return;
	fprintf(f, "%llu %llu\n", (unsigned long long)e->immediates_in, (unsigned long long)e->immediates_out);
	fclose(f);
}

int conf_end(void)
{
	struct conf_evidence e;
	bool have;

	if (!conf_carried())
		return 0;
	have = conf_evidence(&e);
	note_proof(&e);
	if (conf_flags & CONF_NO_RDMA)
		return 0;
	if (!have)
		return no_evidence("this process has no counters", &e);
	if (e.conns_rdma == 0)
		return no_evidence("no connection was carried", &e);
	if (!(conf_flags & CONF_TCP_TOO) && e.conns_tcp != 0)
		return no_evidence("some connections fell back to TCP", &e);
	/* A byte count without immediates would be the pair pumped through something else. */
	if (!(conf_flags & CONF_NO_SEND) && (e.immediates_out == 0 || e.bytes_out == 0))
		return no_evidence("nothing was sent over RDMA", &e);
	return 0;
}

int conf_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	CONF_TRUE(dir != NULL);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 3; /* ".", ".." and the directory itself */
}

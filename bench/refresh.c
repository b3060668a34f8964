/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * refresh HOST PORT tcp|rdma KEY COUNT DEPTH WORK_US: the latency of each of COUNT GETs of one key, DEPTH outstanding,
 * with WORK_US microseconds of computing after each reply; one line of nanoseconds each, in order from the first byte
 * of the connection on. Linked with the libvalkey of a native Valkey (bench/refresh.py), which is a native RDMA client
 * as well.
 */
#include "bench.h"

#include <valkey/rdma.h>
#include <valkey/valkey.h>

static void fail(const char *what, const valkeyContext *c)
{
	fprintf(stderr, "refresh: %s: %s\n", what, c ? c->errstr : "no context");
	exit(1);
}

static valkeyContext *open_connection(const char *host, int port, int rdma)
{
	valkeyOptions options = {0};
	valkeyContext *c;

	if (rdma) {
		if (valkeyInitiateRdma() != VALKEY_OK)
			fail("RDMA", NULL);
		VALKEY_OPTIONS_SET_RDMA(&options, host, port);
	} else {
		VALKEY_OPTIONS_SET_TCP(&options, host, port);
	}
	c = valkeyConnectWithOptions(&options);
	if (!c || c->err)
		fail("connect", c);
	return c;
}

static void compute(int64_t ns)
{
	int64_t end = bench_now() + ns;

	while (ns && bench_now() < end)
		;
}

int main(int argc, char **argv)
{
	int count, depth, sent = 0, i;
	int64_t *started, *took;
	valkeyContext *c;
	valkeyReply *reply;

	if (argc != 8) {
		fprintf(stderr, "usage: refresh HOST PORT tcp|rdma KEY COUNT DEPTH WORK_US\n");
		return 2;
	}
	count = atoi(argv[5]);
	depth = atoi(argv[6]);
	started = bench_buffer(sizeof(*started) * (size_t)count);
	took = bench_buffer(sizeof(*took) * (size_t)count);
	c = open_connection(argv[1], atoi(argv[2]), strcmp(argv[3], "rdma") == 0);
	for (i = 0; i < count; i++) {
		for (; sent < count && sent < i + depth; sent++) {
			started[sent] = bench_now();
			if (valkeyAppendCommand(c, "GET %s", argv[4]) != VALKEY_OK)
				fail("send", c);
		}
		if (valkeyGetReply(c, (void **)&reply) != VALKEY_OK)
			fail("reply", c);
		took[i] = bench_now() - started[i];
		if (reply->type != VALKEY_REPLY_STRING)
			fail("no value", c);
		freeReplyObject(reply);
		compute(atoi(argv[7]) * 1000ll);
	}
	for (i = 0; i < count; i++)
		printf("%lld\n", (long long)took[i]);
	valkeyFree(c);
	return 0;
}

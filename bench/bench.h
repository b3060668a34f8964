/* SPDX-License-Identifier: BSD-2-Clause */
/* What the two ping-pong programs share: the clock, the round counter, the output. */
#ifndef BENCH_H
#define BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BENCH_SAMPLES (1u << 20)

struct bench_rounds {
	int64_t warm_until, until; /* ns; rounds before warm_until are not counted */
	uint64_t rounds, wanted;   /* wanted: 0, or a fixed number of rounds */
	uint32_t *sample;          /* ns, the last BENCH_SAMPLES */
};

static inline void bench_fail(const char *what)
{
	perror(what);
	exit(1);
}

static inline void *bench_buffer(size_t size)
{
	char *p = aligned_alloc(4096, (size + 4096) / 4096 * 4096);

	if (!p)
		bench_fail("memory");
	memset(p, 'x', size);
	return p;
}

static inline int64_t bench_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

/* how: seconds ("1.5"), or a number of rounds ("2000r", for counting instructions). */
static inline void bench_start(struct bench_rounds *r, const char *how)
{
	double seconds = atof(how);

	r->rounds = 0;
	r->wanted = how[strlen(how) - 1] == 'r' ? strtoull(how, NULL, 10) : 0;
	r->sample = malloc(BENCH_SAMPLES * sizeof(*r->sample));
	if (!r->sample)
		bench_fail("memory");
	r->warm_until = bench_now() + (r->wanted ? 0 : (int64_t)(seconds * 1e8)); /* a tenth */
	r->until = r->warm_until + (int64_t)(seconds * 1e9);
}

static inline int bench_more(const struct bench_rounds *r)
{
	return r->wanted ? r->rounds < r->wanted : bench_now() < r->until;
}

static inline void bench_round(struct bench_rounds *r, int64_t ns)
{
	if (!r->wanted && bench_now() < r->warm_until)
		return;
	r->sample[r->rounds++ % BENCH_SAMPLES] = ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

static int bench_order(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static inline void bench_print(struct bench_rounds *r, const char *kind, const char *mode, size_t size)
{
	uint64_t n = r->rounds < BENCH_SAMPLES ? r->rounds : BENCH_SAMPLES;
	double seconds = (double)(bench_now() - r->warm_until) / 1e9;

	if (!n) {
		fprintf(stderr, "no round trip was made\n");
		exit(1);
	}
	qsort(r->sample, n, sizeof(*r->sample), bench_order);
	printf("{\"kind\": \"%s\", \"mode\": \"%s\", \"size\": %zu, \"rounds\": %llu, \"mean_us\": %.3f, \"p50_us\": "
	       "%.3f, \"p99_us\": %.3f, \"p999_us\": %.3f}\n",
	       kind, mode, size, (unsigned long long)r->rounds, seconds * 1e6 / (double)r->rounds,
	       r->sample[n / 2] / 1e3, r->sample[n * 99 / 100] / 1e3, r->sample[n * 999 / 1000] / 1e3);
	fflush(stdout);
}

/* Stays until standard input ends, so that the counters can be read. */
static inline void bench_hold(void)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
}

#endif

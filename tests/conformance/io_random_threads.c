/* SPDX-License-Identifier: BSD-2-Clause */
/* Both directions at once, four threads, chunks of random size through random calls: every byte in its place. */
#include "conf_io.h"

#define TOTAL (24u << 20)
#define CHUNK 70000u

struct job {
	int fd;
	uint32_t seed, rng;
};

static size_t chunk(uint32_t *rng, uint64_t left)
{
	uint32_t kind = conf_rand(rng) % 4, r = conf_rand(rng);
	size_t n = kind == 0 ? 1 + r % 16 : kind == 1 ? 1 + r % 1500 : 1 + r % CHUNK;

	return n < left ? n : (size_t)left;
}

static void *sender(void *p)
{
	struct job *j = p;
	char *buf = malloc(CHUNK);

	for (uint64_t off = 0; off < TOTAL;) {
		size_t n = chunk(&j->rng, TOTAL - off), done = 0;
		const struct conf_writer *w = &conf_writers[conf_rand(&j->rng) % conf_n_writers];

		conf_fill(buf, n, j->seed, off);
		while (done < n) {
			ssize_t k = w->fn(j->fd, buf + done, n - done);

			conf_note("%s %zu bytes at %llu, seed %u", w->name, n, (unsigned long long)off, j->seed);
			CONF_GE(k, 1);
			done += (size_t)k;
		}
		off += n;
	}
	free(buf);
	return NULL;
}

static void *receiver(void *p)
{
	struct job *j = p;
	char *buf = malloc(CHUNK);

	for (uint64_t off = 0; off < TOTAL;) {
		size_t n = chunk(&j->rng, TOTAL - off);
		const struct conf_reader *r = &conf_readers[conf_rand(&j->rng) % conf_n_readers];
		ssize_t k = r->fn(j->fd, buf, n);

		conf_note("%s %zu bytes at %llu, seed %u", r->name, n, (unsigned long long)off, j->seed);
		CONF_GE(k, 1);
		CONF_VERIFY(buf, (size_t)k, j->seed, off);
		off += (uint64_t)k;
	}
	free(buf);
	return NULL;
}

CONF_TEST(CONF_LONG)
{
	struct job jobs[4];
	struct conf_thread t[4];
	int fd[2];

	conf_pair(fd);
	for (int i = 0; i < 4; i++) {
		/* 0 sends on the connecting side to 1; 2 sends on the accepting side to 3. */
		jobs[i] = (struct job){.fd = fd[i == 1 || i == 2], .seed = i < 2 ? 11 : 22, .rng = (uint32_t)i + 7};
		conf_thread_start(&t[i], i % 2 ? receiver : sender, &jobs[i]);
	}
	for (int i = 0; i < 4; i++)
		conf_thread_join(&t[i]);
	conf_close2(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Several threads block in read on one socket: each byte goes to exactly one of them, and EOF to all. */
#include "conf.h"

#define THREADS 4
#define BYTES   2000

static int fd[2];
static _Atomic int sum, eofs;

static void *reader(void *arg)
{
	ssize_t k;
	char c;

	(void)arg;
	while ((k = CONF_OK(read(fd[1], &c, 1))) == 1)
		atomic_fetch_add(&sum, c);
	atomic_fetch_add(&eofs, 1);
	return NULL;
}

CONF_TEST(0)
{
	struct conf_thread t[THREADS];
	uint32_t rng = 2;
	int want = 0;

	conf_pair(fd);
	for (int i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], reader, NULL);
	for (int i = 0; i < BYTES; i++) {
		char c = (char)(conf_rand(&rng) % 100);

		want += c;
		conf_write_all(fd[0], &c, 1);
	}
	CONF_OK(close(fd[0]));
	for (int i = 0; i < THREADS; i++)
		conf_thread_join(&t[i]);
	CONF_EQ(sum, want);
	CONF_EQ(eofs, THREADS);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Several threads write records to one socket, blocking: small ones are never torn apart. */
#include "conf.h"

#define THREADS 4
#define RECORDS 2000
#define SIZE    64

static int fd[2];

static void *writer(void *arg)
{
	char rec[SIZE];

	memset(rec, 'a' + (int)(intptr_t)arg, SIZE);
	for (int i = 0; i < RECORDS; i++)
		CONF_EQ(send(fd[0], rec, SIZE, 0), SIZE);
	return NULL;
}

CONF_TEST(0)
{
	struct conf_thread t[THREADS];
	int count[THREADS] = {0};
	char rec[SIZE];

	conf_pair(fd);
	for (int i = 0; i < THREADS; i++)
		conf_thread_start(&t[i], writer, (void *)(intptr_t)i);
	for (int i = 0; i < THREADS * RECORDS; i++) {
		conf_read_all(fd[1], rec, SIZE);
		for (int k = 1; k < SIZE; k++)
			CONF_EQ(rec[k], rec[0]);
		CONF_LE(rec[0], 'a' + THREADS - 1);
		count[rec[0] - 'a']++;
	}
	for (int i = 0; i < THREADS; i++) {
		conf_thread_join(&t[i]);
		CONF_EQ(count[i], RECORDS);
	}
}

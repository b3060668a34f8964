/* SPDX-License-Identifier: BSD-2-Clause */
/* fork again and again, as BGSAVE, while other threads move data on carried streams: every byte right, no hang. */
#include "conf.h"

#define PAIRS 3
#define FORKS 25

static int fd[PAIRS][2];
static _Atomic bool stop;

static void *sender(void *arg)
{
	int i = (int)(intptr_t)arg;
	char buf[9000];
	uint64_t off = 0;
	uint32_t rng = (uint32_t)i + 1;

	while (!atomic_load(&stop)) {
		size_t n = 1 + conf_rand(&rng) % sizeof(buf);

		conf_fill(buf, n, (uint32_t)i, off);
		conf_write_all(fd[i][0], buf, n);
		off += n;
	}
	CONF_OK(shutdown(fd[i][0], SHUT_WR));
	return NULL;
}

static void *receiver(void *arg)
{
	int i = (int)(intptr_t)arg;
	static __thread char buf[20000];
	uint64_t off = 0;
	ssize_t k;

	while ((k = CONF_OK(read(fd[i][1], buf, sizeof(buf)))) > 0) {
		CONF_VERIFY(buf, (size_t)k, (uint32_t)i, off);
		off += (uint64_t)k;
	}
	return NULL;
}

CONF_TEST(CONF_LONG)
{
	struct conf_thread t[2 * PAIRS];
	int status;

	for (int i = 0; i < PAIRS; i++)
		conf_pair(fd[i]);
	for (int i = 0; i < PAIRS; i++) {
		conf_thread_start(&t[2 * i], sender, (void *)(intptr_t)i);
		conf_thread_start(&t[2 * i + 1], receiver, (void *)(intptr_t)i);
	}
	for (int i = 0; i < FORKS; i++) {
		pid_t pid = (pid_t)CONF_OK(fork());

		conf_note("fork %d", i);
		if (pid == 0) {
			void *p = malloc(100000); /* the child is a normal process */

			memset(p, 1, 100000);
			free(p);
			if (i % 3 == 0)
				closefrom(3);
			_exit(0);
		}
		CONF_EQ(waitpid(pid, &status, 0), pid);
		CONF_EQ(status, 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 2 * PAIRS; i++)
		conf_thread_join(&t[i]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A timer signal every 500 us during echo traffic: EINTR is the only visible effect, no byte is lost or doubled. */
#include "conf.h"

#define TOTAL (2u << 20)

static int fd[2];

static void *echo(void *arg)
{
	static char buf[20000];
	size_t sum = 0;

	(void)arg;
	while (sum < TOTAL) {
		ssize_t k = read(fd[1], buf, sizeof(buf));

		if (k < 0) {
			CONF_EQ(errno, EINTR);
			continue;
		}
		conf_write_all(fd[1], buf, (size_t)k);
		sum += (size_t)k;
	}
	return NULL;
}

CONF_TEST(0)
{
	struct sigevent sev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct itimerspec its = {{0, 500000}, {0, 500000}};
	static char out[50000], in[50000];
	struct conf_thread t;
	uint64_t off = 0;
	uint32_t rng = 4;
	timer_t timer;

	conf_pair(fd);
	conf_catch(SIGUSR1, 0);
	CONF_OK(timer_create(CLOCK_MONOTONIC, &sev, &timer));
	conf_thread_start(&t, echo, NULL);
	CONF_OK(timer_settime(timer, 0, &its, NULL));
	while (off < TOTAL) {
		size_t n = 1 + conf_rand(&rng) % sizeof(out);

		n = n < TOTAL - off ? n : TOTAL - off;
		conf_fill(out, n, 2, off);
		conf_write_all(fd[0], out, n);
		conf_read_all(fd[0], in, n);
		CONF_VERIFY(in, n, 2, off);
		off += n;
	}
	its = (struct itimerspec){0};
	CONF_OK(timer_settime(timer, 0, &its, NULL));
	conf_thread_join(&t);
	CONF_GE(conf_caught, 10);
	CONF_OK(timer_delete(timer));
	conf_close2(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A client that writes requests and reads large answers late never hangs: readiness comes from state, not from events.
 */
#include "conf.h"

#define REQUESTS 60
#define ANSWER   300000u

static int fd[2];

static void *server(void *arg)
{
	char *answer = malloc(ANSWER);
	uint32_t n = 0;

	(void)arg;
	for (int i = 0; i < REQUESTS; i++) {
		conf_read_all(fd[1], &n, sizeof(n));
		conf_fill(answer, ANSWER, n, 0);
		conf_write_all(fd[1], answer, ANSWER);
	}
	free(answer);
	return NULL;
}

CONF_TEST(0)
{
	char *in = malloc(ANSWER);
	uint32_t asked = 0;
	int ep = conf_epoll();
	struct conf_thread t;
	size_t have = 0;

	conf_pair(fd);
	conf_nonblock(fd[0], true);
	conf_ep_add(ep, fd[0], EPOLLIN | EPOLLOUT | EPOLLET);
	conf_thread_start(&t, server, NULL);
	for (uint32_t answered = 0; answered < REQUESTS;) {
		ssize_t k;

		/* All questions as early as they go; one bounded read a wake-up; sleep only at EAGAIN for both. */
		while (asked < REQUESTS && write(fd[0], &asked, sizeof(asked)) == sizeof(asked))
			asked++;
		k = read(fd[0], in + have, ANSWER - have < 7000 ? ANSWER - have : 7000);
		if (k < 0) {
			struct epoll_event ev;

			CONF_EQ(errno, EAGAIN);
			conf_note("asked %u answered %u have %zu", asked, answered, have);
			CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
			continue;
		}
		CONF_GE(k, 1);
		have += (size_t)k;
		if (have == ANSWER) {
			CONF_VERIFY(in, ANSWER, answered, 0);
			answered++;
			have = 0;
		}
	}
	conf_thread_join(&t);
	free(in);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Forked workers accept on one inherited listener: every client is served, whoever takes it. */
#include "conf.h"

#define WORKERS 3
#define CLIENTS 12

static int listener;

static void worker(void *arg)
{
	(void)arg;
	for (;;) {
		int s = accept(listener, NULL, NULL);
		char buf[4];

		if (s < 0)
			_exit(0);
		conf_read_all(s, buf, 4);
		if (memcmp(buf, "quit", 4) == 0)
			_exit(0);
		conf_write_all(s, buf, 4);
		close(s);
	}
}

CONF_TEST(0)
{
	pid_t pid[WORKERS];
	char buf[4];
	int c;

	listener = conf_listener(AF_INET, 16);
	for (int i = 0; i < WORKERS; i++)
		pid[i] = conf_fork(worker, NULL);
	for (int i = 0; i < CLIENTS; i++) {
		c = conf_dial(listener);
		conf_write_all(c, "ping", 4);
		conf_read_all(c, buf, 4);
		conf_read_eof(c);
		CONF_OK(close(c));
	}
	for (int i = 0; i < WORKERS; i++) {
		c = conf_dial(listener);
		conf_write_all(c, "quit", 4);
	}
	for (int i = 0; i < WORKERS; i++)
		conf_join(pid[i]);
	/* Both ends of each connection were this process's. */
	if (conf_carried())
		CONF_EQ(conf_conns_rdma(), 2 * (CLIENTS + WORKERS));
}

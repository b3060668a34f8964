/* SPDX-License-Identifier: BSD-2-Clause */
/* An error path that closes twice while another thread opens: the second close is EBADF or hits the other's number,
 * exactly as in the kernel; the stream is closed once and everything else stays sound. */
#include "conf.h"

#define ROUNDS 200

static _Atomic bool stop;

static void *opener(void *arg)
{
	(void)arg;
	while (!atomic_load(&stop)) {
		int fd = open("/dev/null", O_RDWR);

		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void each(int a, int b)
{
	CONF_OK(close(a));
	CONF_ERR(close(a), EBADF);
	CONF_ERR(close(a), EBADF);
	conf_read_eof(b);
	CONF_OK(close(b));
	CONF_ERR(close(-1), EBADF);
	CONF_ERR(close(100000), EBADF);
}

CONF_TEST(0)
{
	struct conf_thread t;
	int fd[2], l = conf_listener(AF_INET, 8);

	conf_each_role(each);
	conf_thread_start(&t, opener, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		fd[0] = conf_dial(l);
		fd[1] = (int)CONF_OK(accept(l, NULL, NULL));
		conf_write_all(fd[0], "x", 1);
		CONF_OK(close(fd[0]));
		close(fd[0]);
		conf_drain(fd[1], 1);
		conf_read_eof(fd[1]);
		CONF_OK(close(fd[1]));
	}
	atomic_store(&stop, true);
	conf_thread_join(&t);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

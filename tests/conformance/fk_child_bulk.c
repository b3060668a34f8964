/* SPDX-License-Identifier: BSD-2-Clause */
/* A child sends and receives megabytes on an inherited stream, faster and slower than the peer: every byte arrives in
 * order, and who is not read from has to wait. */
#include "conf.h"
#include "conf_evidence.h"

#define SIZE (24u << 20) /* more than all buffers on the way */

static int fd[2], go[2];
static char buf[SIZE];

static void child(void *arg)
{
	char c;

	(void)arg;
	CONF_OK(close(fd[0]));
	conf_fill(buf, SIZE, 1, 0);
	conf_write_all(fd[1], buf, SIZE);
	CONF_EQ(read(go[0], &c, 1), 1);
	memset(buf, 0, SIZE);
	conf_read_all(fd[1], buf, SIZE);
	CONF_VERIFY(buf, SIZE, 2, 0);
	_exit(0);
}

CONF_TEST(0)
{
	struct conf_evidence e;
	size_t done = 0;
	ssize_t n;
	pid_t pid;

	conf_pair(fd);
	conf_small_buffers(fd[0], fd[1]);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(pipe(go));
	pid = conf_fork(child, NULL);
	conf_process_asleep(pid);
	conf_read_all(fd[0], buf, SIZE);
	CONF_VERIFY(buf, SIZE, 1, 0);
	conf_fill(buf, SIZE, 2, 0);
	do {
		n = send(fd[0], buf + done, SIZE - done, MSG_DONTWAIT);
		done += n > 0 ? (size_t)n : 0;
	} while (n > 0 || conf_poll1(fd[0], POLLOUT, 3 * CONF_QUIET_MS));
	CONF_LE(done, SIZE / 2);
	CONF_EQ(write(go[1], "g", 1), 1);
	conf_write_all(fd[0], buf + done, SIZE - done);
	conf_join(pid);
	if (conf_carried()) {
		CONF_TRUE(conf_evidence(&e));
		CONF_GE(e.bytes_out, 2 * SIZE);
		CONF_EQ(e.shared, 1);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* close_range over carried descriptors (and over a library's own): they are gone, the peers see EOF, others live on. */
#include "conf.h"

#include <linux/close_range.h>

#define N 6

CONF_TEST(0)
{
	int keep[2], fd[N][2], moved[2 * N], n = 0;

	conf_pair(keep);
	for (int i = 0; i < N; i++) {
		conf_pair(fd[i]);
		conf_exchange(fd[i][0], fd[i][1]);
		moved[n] = (int)CONF_OK(dup2(fd[i][0], 400 + i));
		CONF_OK(close(fd[i][0]));
		n++;
	}
	CONF_OK(close_range(400, 400 + N / 2 - 1, 0));
	for (int i = 0; i < N / 2; i++) {
		CONF_ERR(fcntl(moved[i], F_GETFD), EBADF);
		conf_read_eof(fd[i][1]);
	}
	CONF_OK(close_range(400, 400 + N - 1, CLOSE_RANGE_CLOEXEC));
	for (int i = N / 2; i < N; i++) {
		CONF_EQ(fcntl(moved[i], F_GETFD), FD_CLOEXEC);
		conf_exchange(moved[i], fd[i][1]);
	}
	CONF_ERR(close_range(10, 5, 0), EINVAL);
	CONF_ERR(close_range(10, 20, 0x800), EINVAL);
	/* Everything above: what a library keeps up there must survive it. */
	CONF_OK(close_range(400, ~0u, 0));
	for (int i = N / 2; i < N; i++)
		conf_read_eof(fd[i][1]);
	conf_exchange(keep[0], keep[1]);
	conf_pair(fd[0]);
	conf_exchange(fd[0][0], fd[0][1]);
	CONF_OK(dup2(fd[0][0], 400));
	CONF_OK(close(fd[0][0]));
	CONF_OK(syscall(SYS_close_range, 400, ~0u, 0));
	conf_read_eof(fd[0][1]);
	conf_exchange(keep[1], keep[0]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* dup2 over a carried number closes that stream; over it a plain file, another carried one, itself; and swaps. */
#include "conf.h"

static void each(int a, int b)
{
	int p[2], fd[2], spare;
	char buf[4];

	/* A pipe over a carried number. */
	CONF_OK(pipe(p));
	conf_exchange(a, b);
	CONF_EQ(dup2(p[0], a), a);
	conf_read_eof(b);
	conf_write_all(p[1], "pipe", 4);
	conf_read_all(a, buf, 4);
	CONF_EQ(memcmp(buf, "pipe", 4), 0);
	CONF_ERR(getsockopt(a, SOL_SOCKET, SO_TYPE, buf, &(socklen_t){4}), ENOTSOCK);
	CONF_OK(close(b));

	/* A carried one over a plain number, and over another carried one. */
	conf_pair(fd);
	CONF_EQ(dup2(fd[0], a), a);
	conf_exchange(a, fd[1]);
	CONF_OK(close(fd[0]));
	conf_exchange(fd[1], a);
	CONF_EQ(dup2(a, fd[1]), fd[1]);
	/* The accepting end is gone: its peer, now under two numbers, sees that. */
	conf_read_eof(a);
	conf_read_eof(fd[1]);
	conf_close2(a, fd[1]);

	/* Swap two streams' numbers. */
	conf_pair(fd);
	spare = (int)CONF_OK(dup(fd[0]));
	CONF_OK(dup2(fd[1], fd[0]));
	CONF_OK(dup2(spare, fd[1]));
	CONF_OK(close(spare));
	conf_exchange(fd[0], fd[1]);
	conf_close2(fd[0], fd[1]);
	conf_close2(p[0], p[1]);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

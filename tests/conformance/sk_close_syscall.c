/* SPDX-License-Identifier: BSD-2-Clause */
/* Node closes with syscall(SYS_close, fd): the peer reads EOF, the number is free and the reused one is a plain fd. */
#include "conf.h"

static void each(int a, int b)
{
	int file;
	char buf[4];

	conf_exchange(a, b);
	CONF_OK(syscall(SYS_close, a));
	conf_read_eof(b);
	CONF_ERR(read(a, buf, 1), EBADF);
	CONF_ERR(syscall(SYS_close, a), EBADF);
	file = (int)CONF_OK(open("/dev/zero", O_RDWR));
	if (file != a)
		CONF_EQ(dup2(file, a), a);
	memset(buf, 1, 4);
	CONF_EQ(read(a, buf, 4), 4);
	CONF_EQ(buf[3], 0);
	CONF_EQ(write(a, buf, 4), 4);
	if (file != a)
		CONF_OK(close(file));
	CONF_OK(syscall(SYS_close, b));
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

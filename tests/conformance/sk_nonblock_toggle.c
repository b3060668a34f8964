/* SPDX-License-Identifier: BSD-2-Clause */
/* O_NONBLOCK by fcntl and by FIONBIO, on and off: seen by F_GETFL, by every dup, and obeyed at once. */
#include "conf.h"

static int reader_fd;

static void *reader(void *arg)
{
	static char c;

	(void)arg;
	return (void *)read(reader_fd, &c, 1);
}

static void blocks(int a, int b)
{
	struct conf_thread t;

	reader_fd = b;
	conf_thread_start(&t, reader, NULL);
	conf_thread_asleep(&t);
	conf_write_all(a, "x", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
}

static void each(int a, int b)
{
	int d = (int)CONF_OK(dup(b)), on = 1, off = 0;
	char c;

	blocks(a, b);
	CONF_OK(ioctl(b, FIONBIO, &on));
	CONF_EQ(fcntl(d, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
	CONF_ERR(read(b, &c, 1), EAGAIN);
	CONF_ERR(read(d, &c, 1), EAGAIN);
	CONF_OK(ioctl(d, FIONBIO, &off));
	CONF_EQ(fcntl(b, F_GETFL) & O_NONBLOCK, 0);
	blocks(a, b);
	conf_nonblock(d, true);
	CONF_ERR(read(b, &c, 1), EAGAIN);
	CONF_OK(fcntl(b, F_SETFL, O_RDWR));
	CONF_EQ(fcntl(d, F_GETFL) & O_NONBLOCK, 0);
	blocks(a, d);
	CONF_OK(ioctl(b, FIOCLEX));
	CONF_EQ(fcntl(b, F_GETFD), FD_CLOEXEC);
	CONF_EQ(fcntl(d, F_GETFD), 0);
	CONF_OK(ioctl(b, FIONCLEX));
	CONF_EQ(fcntl(b, F_GETFD), 0);
	CONF_OK(close(d));
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_RCVTIMEO: every way to read gives EAGAIN after at least that time, data in time is delivered, 0 is for ever. */
#include "conf_io.h"

static int fd_reader;

static void *read_one(void *arg)
{
	char c;

	(void)arg;
	return (void *)read(fd_reader, &c, 1);
}

static void each(int a, int b)
{
	struct timeval tv = {.tv_usec = 60000}, zero = {0}, got;
	struct conf_thread t;
	socklen_t len = sizeof(got);
	char buf[16];

	CONF_OK(getsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	CONF_EQ(got.tv_sec * 1000000 + got.tv_usec, 0);
	CONF_OK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	CONF_OK(getsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &got, &len));
	CONF_EQ(len, sizeof(got));
	CONF_EQ(got.tv_sec * 1000000 + got.tv_usec, 60000);
	for (size_t i = 0; i < conf_n_readers; i++) {
		int64_t from = conf_ns();

		conf_note("%s", conf_readers[i].name);
		CONF_ERR(conf_readers[i].fn(b, buf, sizeof(buf)), EAGAIN);
		CONF_GE(conf_ns() - from, 60000000 - CONF_JIFFY_NS);
		CONF_LE(conf_ns() - from, 3000000000);
	}
	conf_write_all(a, "ab", 2);
	CONF_EQ(read(b, buf, 2), 2);
	/* MSG_WAITALL cut short by the timeout gives what there is. */
	conf_write_all(a, "cd", 2);
	CONF_EQ(recv(b, buf, 16, MSG_WAITALL), 2);
	CONF_OK(setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &zero, sizeof(zero)));
	fd_reader = b;
	conf_thread_start(&t, read_one, NULL);
	conf_thread_asleep(&t);
	conf_write_all(a, "e", 1);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

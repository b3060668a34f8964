/* SPDX-License-Identifier: BSD-2-Clause */
/* A blocking MSG_PEEK waits for the first byte, and MSG_PEEK|MSG_WAITALL for all of them, which then are still there.
 */
#include "conf.h"

static int reader_fd;

static void *peek(void *flags)
{
	static char buf[8];

	return (void *)recv(reader_fd, buf, 8, (int)(intptr_t)flags);
}

static void each(int a, int b)
{
	struct conf_thread t;
	char buf[16];

	reader_fd = b;
	conf_thread_start(&t, peek, (void *)(intptr_t)MSG_PEEK);
	conf_thread_asleep(&t);
	conf_write_all(a, "abc", 3);
	CONF_EQ((intptr_t)conf_thread_join(&t), 3);
	conf_thread_start(&t, peek, (void *)(intptr_t)(MSG_PEEK | MSG_WAITALL));
	conf_thread_asleep(&t);
	conf_write_all(a, "defgh", 5);
	CONF_EQ((intptr_t)conf_thread_join(&t), 8);
	CONF_EQ(recv(b, buf, 16, 0), 8);
	CONF_EQ(memcmp(buf, "abcdefgh", 8), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

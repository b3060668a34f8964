/* SPDX-License-Identifier: BSD-2-Clause */
/* Vectors: none is 0, 1024 work, 1025 and negative are EINVAL (EMSGSIZE for messages), empty members are skipped. */
#include "conf.h"

#include <limits.h>

static void limits(int a, int b)
{
	static struct iovec iov[1025];
	static char buf[1025];
	volatile int minus = -1; /* gcc would warn of a constant */
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 1025};

	for (int i = 0; i < 1025; i++)
		iov[i] = (struct iovec){buf + i, 1};
	CONF_EQ(writev(a, iov, 0), 0);
	CONF_EQ(readv(b, iov, 0), 0);
	CONF_ERR(writev(a, iov, minus), EINVAL);
	CONF_ERR(readv(b, iov, minus), EINVAL);
	CONF_ERR(writev(a, iov, 1025), EINVAL);
	CONF_ERR(readv(b, iov, 1025), EINVAL);
	CONF_ERR(sendmsg(a, &m, 0), EMSGSIZE);
	CONF_ERR(recvmsg(b, &m, 0), EMSGSIZE);
	conf_fill(buf, 1024, 2, 0);
	CONF_EQ(writev(a, iov, 1024), 1024);
	memset(buf, 0, sizeof(buf));
	conf_wait_inq(b, 1024);
	CONF_EQ(readv(b, iov, 1024), 1024);
	CONF_VERIFY(buf, 1024, 2, 0);
	iov[1].iov_len = (size_t)SSIZE_MAX + 1;
	CONF_ERR(writev(a, iov, 2), EINVAL);
	CONF_ERR(readv(b, iov, 2), EINVAL);
}

static void empty_members(int a, int b)
{
	char out[] = "abcdef", in[8] = "";
	struct iovec w[5] = {{out, 1}, {NULL, 0}, {out + 1, 3}, {out, 0}, {out + 4, 2}};
	struct iovec r[4] = {{NULL, 0}, {in, 2}, {in, 0}, {in + 2, 6}};
	struct iovec none[3] = {{NULL, 0}, {out, 0}, {NULL, 0}};

	CONF_EQ(writev(a, w, 5), 6);
	conf_wait_inq(b, 6);
	CONF_EQ(readv(b, none, 3), 0);
	CONF_EQ(readv(b, r, 4), 6);
	CONF_EQ(memcmp(in, "abcdef", 6), 0);
	CONF_EQ(writev(a, none, 3), 0);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_QUIET_MS), 0);
}

static void each(int a, int b)
{
	limits(a, b);
	empty_members(a, b);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Bad pointers to the vectors and message headers themselves, and to what ioctl writes: EFAULT. */
#include "conf.h"

static void each(int a, int b)
{
	struct msghdr m = {.msg_iov = (struct iovec *)0x1000, .msg_iovlen = 1};

	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
	CONF_ERR(writev(a, (struct iovec *)0x1000, 1), EFAULT);
	CONF_ERR(readv(b, (struct iovec *)0x1000, 1), EFAULT);
	CONF_ERR(recvmsg(b, (struct msghdr *)0x1000, MSG_DONTWAIT), EFAULT);
	CONF_ERR(sendmsg(a, (struct msghdr *)0x1000, 0), EFAULT);
	CONF_ERR(recvmsg(b, &m, MSG_DONTWAIT), EFAULT);
	CONF_ERR(sendmsg(a, &m, 0), EFAULT);
	CONF_ERR(recvmmsg(b, (struct mmsghdr *)0x1000, 1, MSG_DONTWAIT, NULL), EFAULT);
	CONF_ERR(sendmmsg(a, (struct mmsghdr *)0x1000, 1, 0), EFAULT);
	CONF_ERR(ioctl(b, FIONREAD, (int *)0x1000), EFAULT);
	CONF_ERR(ioctl(b, FIONBIO, (int *)0x1000), EFAULT);
	conf_drain(b, 1);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

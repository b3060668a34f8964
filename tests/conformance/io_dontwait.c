/* SPDX-License-Identifier: BSD-2-Clause */
/* MSG_DONTWAIT on blocking sockets: one call, through every call that takes flags, and the socket stays blocking. */
#include "conf.h"

static void each(int a, int b)
{
	char buf[16];
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct mmsghdr mm = {.msg_hdr = m};
	size_t total;

	CONF_ERR(recv(b, buf, 16, MSG_DONTWAIT), EAGAIN);
	CONF_ERR(recvfrom(b, buf, 16, MSG_DONTWAIT, NULL, NULL), EAGAIN);
	CONF_ERR(recvmsg(b, &m, MSG_DONTWAIT), EAGAIN);
	CONF_ERR(recvmmsg(b, &mm, 1, MSG_DONTWAIT, NULL), EAGAIN);
	conf_small_buffers(a, b);
	total = conf_stuff(a);
	CONF_ERR(send(a, buf, 16, MSG_DONTWAIT), EAGAIN);
	CONF_ERR(sendto(a, buf, 16, MSG_DONTWAIT, NULL, 0), EAGAIN);
	CONF_ERR(sendmsg(a, &m, MSG_DONTWAIT), EAGAIN);
	CONF_ERR(sendmmsg(a, &mm, 1, MSG_DONTWAIT), EAGAIN);
	CONF_EQ(fcntl(a, F_GETFL) & O_NONBLOCK, 0);
	CONF_EQ(fcntl(b, F_GETFL) & O_NONBLOCK, 0);
	conf_drain(b, total);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

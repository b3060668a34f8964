/* SPDX-License-Identifier: BSD-2-Clause */
/* recvmsg and recvfrom on a connected TCP socket: no address, no control data, no flags; sendmsg with an empty vector
 * is 0; an address given to sendto is ignored. */
#include "conf.h"

static void receive(int a, int b)
{
	char buf[8], control[64];
	struct sockaddr_storage ss;
	struct iovec iov = {buf, sizeof(buf)};
	struct msghdr m = {.msg_name = &ss,
			   .msg_namelen = sizeof(ss),
			   .msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control,
			   .msg_controllen = sizeof(control),
			   .msg_flags = 0x7777};
	socklen_t len = sizeof(ss);

	conf_write_all(a, "abc", 3);
	CONF_EQ(recvmsg(b, &m, 0), 3);
	CONF_EQ(m.msg_namelen, 0);
	CONF_EQ(m.msg_controllen, 0);
	CONF_EQ(m.msg_flags, 0);
	conf_write_all(a, "def", 3);
	CONF_EQ(recvfrom(b, buf, 8, 0, (struct sockaddr *)&ss, &len), 3);
	CONF_EQ(len, 0);
}

static void transmit(int a, int b)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(0x7f000001)}};
	struct msghdr m = {0};
	char buf[8];

	CONF_EQ(sendmsg(a, &m, 0), 0);
	CONF_EQ(sendto(a, "xyz", 3, 0, (struct sockaddr *)&sin, sizeof(sin)), 3);
	conf_read_all(b, buf, 3);
	CONF_EQ(memcmp(buf, "xyz", 3), 0);
}

static void each(int a, int b)
{
	receive(a, b);
	transmit(a, b);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

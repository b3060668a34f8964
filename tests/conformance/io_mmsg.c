/* SPDX-License-Identifier: BSD-2-Clause */
/* recvmmsg and sendmmsg of several messages on a stream: WAITFORONE, the timeout, partial results, EAGAIN after some.
 */
#include "conf.h"

static void make(struct mmsghdr *v, struct iovec *iov, char *buf, unsigned n, size_t each)
{
	memset(v, 0, n * sizeof(*v));
	for (unsigned i = 0; i < n; i++) {
		iov[i] = (struct iovec){buf + i * each, each};
		v[i].msg_hdr.msg_iov = &iov[i];
		v[i].msg_hdr.msg_iovlen = 1;
	}
}

static void each(int a, int b)
{
	struct mmsghdr v[4];
	struct iovec iov[4];
	char out[40], in[40];
	struct timespec zero = {0}, bad = {.tv_nsec = 2000000000};

	conf_fill(out, 40, 1, 0);
	make(v, iov, out, 4, 10);
	CONF_EQ(sendmmsg(a, v, 4, 0), 4);
	for (int i = 0; i < 4; i++)
		CONF_EQ(v[i].msg_len, 10);
	conf_wait_inq(b, 40);
	make(v, iov, in, 4, 10);
	CONF_EQ(recvmmsg(b, v, 4, 0, NULL), 4);
	CONF_EQ(v[3].msg_len, 10);
	CONF_VERIFY(in, 40, 1, 0);

	/* Data for two and a half: then a non-blocking call stops, with WAITFORONE too. */
	for (int i = 0; i < 2; i++) {
		conf_write_all(a, out, 25);
		conf_wait_inq(b, 25);
		CONF_EQ(recvmmsg(b, v, 4, i ? MSG_WAITFORONE : MSG_DONTWAIT, NULL), 3);
		CONF_EQ(v[2].msg_len, 5);
		CONF_VERIFY(in, 25, 1, 0);
	}
	/* The timeout is looked at after each message only; zero means: stop after the first. */
	conf_write_all(a, out, 25);
	conf_wait_inq(b, 25);
	CONF_EQ(recvmmsg(b, v, 4, 0, &zero), 1);
	CONF_EQ(recvmmsg(b, v, 4, MSG_DONTWAIT, NULL), 2);
	CONF_ERR(recvmmsg(b, v, 4, MSG_DONTWAIT, &bad), EINVAL);
	CONF_ERR(recvmmsg(b, v, 4, MSG_DONTWAIT, NULL), EAGAIN);
	CONF_EQ(recvmmsg(b, v, 0, MSG_DONTWAIT, NULL), 0);
	CONF_EQ(sendmmsg(a, v, 0, 0), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

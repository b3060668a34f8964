/* SPDX-License-Identifier: BSD-2-Clause */
/* MSG_WAITALL waits for the whole, over many small writes and more than any buffer; EOF cuts it short; DONTWAIT wins.
 */
#include "conf.h"

#define BIG (3u << 20)

struct job {
	int fd;
	char *buf;
	size_t n;
	bool by_msg;
};

static void *reader(void *p)
{
	struct job *j = p;
	struct iovec iov[2] = {{j->buf, j->n / 3}, {j->buf + j->n / 3, j->n - j->n / 3}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

	return (void *)(j->by_msg ? recvmsg(j->fd, &m, MSG_WAITALL) : recv(j->fd, j->buf, j->n, MSG_WAITALL));
}

static void each(int a, int b)
{
	char *in = malloc(BIG), *out = malloc(BIG);
	struct job j = {.fd = b, .buf = in, .n = 30};
	struct conf_thread t;

	conf_fill(out, BIG, 1, 0);
	conf_thread_start(&t, reader, &j);
	for (int i = 0; i < 2; i++) {
		conf_thread_asleep(&t);
		conf_write_all(a, out + 10 * i, 10);
	}
	conf_thread_asleep(&t);
	conf_write_all(a, out + 20, 12);
	CONF_EQ((intptr_t)conf_thread_join(&t), 30);
	CONF_VERIFY(in, 30, 1, 0);
	CONF_EQ(recv(b, in, 2, MSG_WAITALL), 2);

	j.n = BIG;
	for (int m = 0; m < 2; m++) {
		j.by_msg = m;
		conf_thread_start(&t, reader, &j);
		conf_write_all(a, out, BIG);
		CONF_EQ((intptr_t)conf_thread_join(&t), BIG);
		CONF_VERIFY(in, BIG, 1, 0);
	}

	CONF_ERR(recv(b, in, 5, MSG_WAITALL | MSG_DONTWAIT), EAGAIN);
	conf_write_all(a, "abc", 3);
	conf_wait_inq(b, 3);
	CONF_EQ(recv(b, in, 5, MSG_WAITALL | MSG_DONTWAIT), 3);
	j.n = 100;
	conf_thread_start(&t, reader, &j);
	conf_write_all(a, "tail", 4);
	conf_thread_asleep(&t);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_EQ((intptr_t)conf_thread_join(&t), 4);
	CONF_EQ(recv(b, in, 5, MSG_WAITALL), 0);
	free(in);
	free(out);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

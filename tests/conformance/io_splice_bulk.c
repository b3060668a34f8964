/* SPDX-License-Identifier: BSD-2-Clause */
/* Megabytes spliced from a socket through a pipe and on to another socket, as a proxy does, with a full pipe and a full
 * socket in the way; a non-blocking end says EAGAIN and loses nothing. */
#include "conf.h"

#define SIZE (3u << 20)

static void *writer(void *p)
{
	char *data = malloc(SIZE);

	conf_fill(data, SIZE, 7, 0);
	conf_write_all(*(int *)p, data, SIZE);
	CONF_OK(shutdown(*(int *)p, SHUT_WR));
	free(data);
	return NULL;
}

static void *reader(void *p)
{
	char *data = malloc(SIZE);

	conf_read_all(*(int *)p, data, SIZE);
	CONF_VERIFY(data, SIZE, 7, 0);
	free(data);
	return NULL;
}

static void relay(int in, int out)
{
	size_t moved = 0;
	ssize_t k, n;
	int p[2];

	CONF_OK(pipe(p));
	for (;;) {
		n = (ssize_t)CONF_OK(splice(in, NULL, p[1], NULL, 1 << 20, SPLICE_F_MOVE | SPLICE_F_NONBLOCK));
		if (!n)
			break;
		for (; n; n -= k) {
			k = (ssize_t)CONF_OK(splice(p[0], NULL, out, NULL, (size_t)n, SPLICE_F_MOVE));
			CONF_GE(k, 1);
			moved += (size_t)k;
		}
	}
	CONF_EQ(moved, SIZE);
	conf_close2(p[0], p[1]);
}

/* The pipe full, the socket full: EAGAIN, and what was in it is still there. */
static void full(int a, int b)
{
	char buf[64] = "";
	size_t held;
	int p[2];

	CONF_OK(pipe2(p, O_NONBLOCK));
	conf_write_all(a, "kept", 4);
	conf_wait_inq(b, 4);
	while (write(p[1], buf, sizeof(buf)) > 0)
		;
	CONF_EQ(errno, EAGAIN);
	CONF_ERR(splice(b, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK), EAGAIN);
	conf_read_all(b, buf, 4);
	CONF_EQ(memcmp(buf, "kept", 4), 0);
	conf_small_buffers(a, b);
	conf_nonblock(a, true);
	held = conf_stuff(a);
	CONF_ERR(splice(p[0], NULL, a, NULL, 100, SPLICE_F_NONBLOCK), EAGAIN);
	CONF_EQ(read(p[0], buf, sizeof(buf)), sizeof(buf));
	conf_drain(b, held);
	conf_close2(p[0], p[1]);
	conf_close2(a, b);
}

CONF_TEST(CONF_LONG)
{
	int from[2], to[2];
	struct conf_thread w, r;

	conf_pair(from);
	conf_pair(to);
	conf_thread_start(&w, writer, &from[0]);
	conf_thread_start(&r, reader, &to[1]);
	relay(from[1], to[0]);
	conf_thread_join(&w);
	conf_thread_join(&r);
	conf_close2(from[0], from[1]);
	conf_close2(to[0], to[1]);
	conf_each_role(full);
}

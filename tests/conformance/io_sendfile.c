/* SPDX-License-Identifier: BSD-2-Clause */
/* sendfile from a file: offset kept or moved, short at the end of the file, large, to a full socket EAGAIN; and never
 * from a socket. */
#include "conf.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

#define SIZE (5u << 20)

static void *receiver(void *p)
{
	char *in = malloc(SIZE);

	conf_read_all(*(int *)p, in, SIZE);
	CONF_VERIFY(in, SIZE, 1, 0);
	free(in);
	return NULL;
}

static void each(int a, int b)
{
	int file = (int)CONF_OK(memfd_create("conf", 0));
	char *data = malloc(SIZE), in[200];
	struct conf_thread t;
	off_t off = 100;
	off64_t off64 = 0;
	ssize_t k;

	conf_fill(data, SIZE, 1, 0);
	conf_write_all(file, data, SIZE);
	CONF_EQ(sendfile(a, file, &off, 50), 50);
	CONF_EQ(off, 150);
	CONF_EQ(lseek(file, 0, SEEK_CUR), SIZE);
	conf_read_all(b, in, 50);
	CONF_VERIFY(in, 50, 1, 100);
	CONF_OK(lseek(file, 10, SEEK_SET));
	CONF_EQ(sendfile(a, file, NULL, 20), 20);
	CONF_EQ(lseek(file, 0, SEEK_CUR), 30);
	conf_read_all(b, in, 20);
	CONF_VERIFY(in, 20, 1, 10);
	off = SIZE - 7;
	CONF_EQ(sendfile(a, file, &off, 100), 7);
	CONF_EQ(sendfile(a, file, &off, 100), 0);
	conf_read_all(b, in, 7);
	CONF_VERIFY(in, 7, 1, SIZE - 7);

	conf_thread_start(&t, receiver, &b);
	CONF_EQ(sendfile64(a, file, &off64, SIZE), SIZE);
	CONF_EQ(off64, SIZE);
	conf_thread_join(&t);

	conf_small_buffers(a, b);
	conf_nonblock(a, true);
	off = 0;
	k = CONF_OK(sendfile(a, file, &off, SIZE));
	CONF_EQ(off, k);
	k += (ssize_t)conf_stuff(a);
	CONF_ERR(sendfile(a, file, &off, SIZE), EAGAIN);
	conf_drain(b, (size_t)k);
	CONF_ERR(sendfile(a, -1, &off, 1), EBADF);
	CONF_ERR(sendfile(file, b, NULL, 1), EINVAL);
	off = -1;
	CONF_ERR(sendfile(a, file, &off, 1), EINVAL);
	conf_exchange(a, b);
	CONF_OK(close(file));
	free(data);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* What makes no sense on a socket fails as on TCP: lseek, pread, pwrite ESPIPE; fsync, ftruncate EINVAL, and so on. */
#include "conf.h"

static void each(int a, int b)
{
	struct iovec iov = {NULL, 0};
	char buf[4];

	CONF_ERR(lseek(a, 0, SEEK_CUR), ESPIPE);
	CONF_ERR(pread(a, buf, 1, 0), ESPIPE);
	CONF_ERR(pwrite(a, buf, 1, 0), ESPIPE);
	CONF_ERR(preadv(a, &iov, 1, 0), ESPIPE);
	CONF_ERR(preadv2(a, &iov, 1, 0, 0), ESPIPE);
	CONF_ERR(pwritev2(a, &iov, 1, 0, 0), ESPIPE);
	CONF_ERR(fsync(a), EINVAL);
	CONF_ERR(ftruncate(a, 0), EINVAL);
	CONF_ERR(fchdir(a), ENOTDIR);
	CONF_EQ(isatty(a), 0);
	CONF_EQ(errno, ENOTTY);
	CONF_ERR(ioctl(a, 0x5401 /* TCGETS */, buf), ENOTTY);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

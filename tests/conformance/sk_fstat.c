/* SPDX-License-Identifier: BSD-2-Clause */
/* A carried socket is a socket: S_IFSOCK for fstat, fstatat, statx and /proc, isfdtype; fcntl's other commands work. */
#include "conf.h"

int isfdtype(int fd, int type);

static void each(int a, int b)
{
	struct stat st;
	struct statx sx;
	char path[64], link[64];
	ssize_t k;

	CONF_OK(fstat(a, &st));
	CONF_TRUE(S_ISSOCK(st.st_mode));
	CONF_OK(fstatat(a, "", &st, AT_EMPTY_PATH));
	CONF_TRUE(S_ISSOCK(st.st_mode));
	CONF_OK(statx(a, "", AT_EMPTY_PATH, STATX_TYPE, &sx));
	CONF_TRUE(S_ISSOCK(sx.stx_mode));
	CONF_EQ(isfdtype(a, S_IFSOCK), 1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", a);
	k = CONF_OK(readlink(path, link, sizeof(link) - 1));
	link[k] = 0;
	CONF_EQ(strncmp(link, "socket:[", 8), 0);
	CONF_OK(fcntl(a, F_SETOWN, getpid()));
	CONF_EQ(fcntl(a, F_GETOWN), getpid());
	CONF_EQ(sockatmark(a), 0);
	CONF_ERR(fcntl(a, 9999), EINVAL);
	conf_exchange(a, b);
	conf_close2(a, b);
	CONF_ERR(fstat(a, &st), EBADF);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* What the timeout options accept and answer: EDOM, EINVAL for a short value, negative is zero, kept before connect. */
#include "conf.h"

static int64_t get(int fd, int opt)
{
	struct timeval tv = {-1, -1};
	socklen_t len = sizeof(tv);

	CONF_OK(getsockopt(fd, SOL_SOCKET, opt, &tv, &len));
	return tv.tv_sec * 1000000 + tv.tv_usec;
}

static void each_opt(int fd, int opt)
{
	struct timeval tv = {.tv_usec = 1000000};

	CONF_ERR(setsockopt(fd, SOL_SOCKET, opt, &tv, sizeof(tv)), EDOM);
	tv = (struct timeval){.tv_sec = 2, .tv_usec = 500000};
	CONF_ERR(setsockopt(fd, SOL_SOCKET, opt, &tv, 8), EINVAL);
	CONF_OK(setsockopt(fd, SOL_SOCKET, opt, &tv, sizeof(tv)));
	CONF_EQ(get(fd, opt), 2500000);
	tv = (struct timeval){.tv_sec = -1};
	CONF_OK(setsockopt(fd, SOL_SOCKET, opt, &tv, sizeof(tv)));
	CONF_EQ(get(fd, opt), 0);
}

static void each(int a, int b)
{
	each_opt(a, SO_RCVTIMEO);
	each_opt(a, SO_SNDTIMEO);
	conf_exchange(a, b);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	struct timeval tv = {.tv_usec = 80000};
	int l = conf_listener(AF_INET, 1), fd = conf_bound(AF_INET), s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	int64_t from;
	char c;

	conf_each_role(each);
	each_opt(fd, SO_RCVTIMEO);
	CONF_OK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	CONF_OK(connect(fd, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EQ(get(fd, SO_RCVTIMEO), 80000);
	from = conf_ns();
	CONF_ERR(read(fd, &c, 1), EAGAIN);
	CONF_GE(conf_ns() - from, 80000000 - CONF_JIFFY_NS);
	conf_exchange(fd, s);
}

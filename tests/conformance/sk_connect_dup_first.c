/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket that was dup'ed before it connects: every number of it is the connection. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), s;
	int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), d = (int)CONF_OK(dup(c));
	int e = (int)CONF_OK(fcntl(c, F_DUPFD_CLOEXEC, 100));
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	CONF_OK(connect(d, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_exchange(d, s);
	conf_exchange(e, s);
	CONF_EQ(fcntl(c, F_GETFD), 0);
	CONF_EQ(fcntl(e, F_GETFD), FD_CLOEXEC);
	conf_close2(c, d);
	conf_exchange(s, e);
	CONF_OK(close(e));
	conf_read_eof(s);
	CONF_OK(close(s));
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* SOCK_NONBLOCK and SOCK_CLOEXEC at socket() and accept4() stay right after the connection is made, and are carried. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4);
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	for (int i = 0; i < 4; i++) {
		int type = (i & 1 ? SOCK_NONBLOCK : 0) | (i & 2 ? SOCK_CLOEXEC : 0), s;
		int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | type, IPPROTO_TCP));

		conf_note("flags %d", i);
		if (i & 1) {
			CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
			CONF_EVENTS(conf_poll1(c, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
		} else {
			CONF_OK(connect(c, (struct sockaddr *)&ss, len));
		}
		s = (int)CONF_OK(accept4(l, NULL, NULL, type));
		for (int j = 0; j < 2; j++) {
			int fd = j ? s : c;

			CONF_EQ(fcntl(fd, F_GETFL) & (O_NONBLOCK | O_ACCMODE), O_RDWR | (i & 1 ? O_NONBLOCK : 0));
			CONF_EQ(fcntl(fd, F_GETFD), i & 2 ? FD_CLOEXEC : 0);
			CONF_OK(fcntl(fd, F_SETFD, i & 2 ? 0 : FD_CLOEXEC));
			CONF_EQ(fcntl(fd, F_GETFD), i & 2 ? 0 : FD_CLOEXEC);
		}
		conf_exchange(c, s);
		conf_close2(c, s);
	}
	CONF_ERR(accept4(l, NULL, NULL, O_APPEND), EINVAL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* UDP, AF_UNIX listeners and socketpairs go on as ever beside a carried pair. */
#include "conf.h"

#include <sys/un.h>

CONF_TEST(0)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t len = sizeof(sin), ulen;
	int fd[2], sp[2], u = (int)CONF_OK(socket(AF_INET, SOCK_DGRAM, 0)), l, c, s;
	char buf[8];

	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	CONF_OK(bind(u, (struct sockaddr *)&sin, sizeof(sin)));
	CONF_OK(getsockname(u, (struct sockaddr *)&sin, &len));
	CONF_EQ(sendto(u, "udp", 3, 0, (struct sockaddr *)&sin, sizeof(sin)), 3);
	CONF_EQ(recvfrom(u, buf, 8, 0, (struct sockaddr *)&sin, &len), 3);
	for (int type = 0; type < 2; type++) {
		CONF_OK(socketpair(AF_UNIX, type ? SOCK_DGRAM : SOCK_STREAM, 0, sp));
		conf_exchange(sp[0], sp[1]);
		conf_close2(sp[0], sp[1]);
	}
	/* Abstract name: nothing to clean up. */
	ulen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			   (size_t)snprintf(un.sun_path + 1, 60, "conf-%d", getpid()));
	l = (int)CONF_OK(socket(AF_UNIX, SOCK_STREAM, 0));
	CONF_OK(bind(l, (struct sockaddr *)&un, ulen));
	CONF_OK(listen(l, 1));
	c = (int)CONF_OK(socket(AF_UNIX, SOCK_STREAM, 0));
	CONF_OK(connect(c, (struct sockaddr *)&un, ulen));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_exchange(fd[1], fd[0]);
}

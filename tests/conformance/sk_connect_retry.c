/* SPDX-License-Identifier: BSD-2-Clause */
/* After a refused connect the same socket connects elsewhere. */
#include "conf.h"

CONF_TEST(CONF_TCP_TOO)
{
	struct sockaddr_in sin;
	struct sockaddr_storage ss;
	int l = conf_listener(AF_INET, 1), fd[2], c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s;
	socklen_t len = conf_name(l, &ss);

	conf_dead_addr(&sin);
	CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), ECONNREFUSED);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);
	/* Evidence: the retried one may stay with the transport of its first attempt. */
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

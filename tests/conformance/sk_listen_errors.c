/* SPDX-License-Identifier: BSD-2-Clause */
/* Two sockets on one port: EADDRINUSE at bind or listen; a second listen is fine; listen binds by itself; bad
 * arguments. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), m = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), c, s, one = 1, p[2];
	struct sockaddr_storage ss;
	struct sockaddr_in six = {.sin_family = AF_INET6};
	socklen_t len = conf_name(l, &ss);

	CONF_ERR(bind(m, (struct sockaddr *)&ss, len), EADDRINUSE);
	CONF_OK(setsockopt(m, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CONF_ERR(bind(m, (struct sockaddr *)&ss, len), EADDRINUSE);
	CONF_OK(close(m));
	CONF_OK(listen(l, 5));
	CONF_OK(listen(l, 0));
	CONF_OK(listen(l, -1));
	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);

	m = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_OK(listen(m, 4));
	CONF_NE(conf_port(m), 0);
	CONF_ERR(bind(m, (struct sockaddr *)&ss, len), EINVAL);
	CONF_OK(close(m));
	CONF_ERR(listen(-1, 1), EBADF);
	CONF_OK(pipe(p));
	CONF_ERR(listen(p[0], 1), ENOTSOCK);
	m = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_ERR(bind(m, (struct sockaddr *)&six, sizeof(six)), EAFNOSUPPORT);
	CONF_ERR(bind(m, (struct sockaddr *)&ss, 4), EINVAL);
	CONF_ERR(bind(m, (struct sockaddr *)0x1000, len), EFAULT);
	CONF_ERR(accept(m, NULL, NULL), EINVAL);
	CONF_ERR(connect(l, (struct sockaddr *)&ss, len), EISCONN);
	CONF_ERR(send(l, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_ERR(recv(l, &one, 1, 0), ENOTCONN);
}

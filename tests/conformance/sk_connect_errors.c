/* SPDX-License-Identifier: BSD-2-Clause */
/* Arguments of connect that fail: short length EINVAL, foreign family EAFNOSUPPORT, EBADF, ENOTSOCK, listener.
 */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(1), .sin6_addr = IN6ADDR_LOOPBACK_INIT};

	CONF_ERR(connect(c, (struct sockaddr *)&ss, 8), EINVAL);
	CONF_ERR(connect(c, (struct sockaddr *)&ss, 1), EINVAL);
	CONF_ERR(connect(c, (struct sockaddr *)&ss, 4096), EINVAL);
	CONF_ERR(connect(c, (struct sockaddr *)&six, sizeof(six)), EAFNOSUPPORT);
	CONF_ERR(connect(-1, (struct sockaddr *)&ss, len), EBADF);
	CONF_ERR(connect((int)CONF_OK(open("/dev/null", O_RDWR)), (struct sockaddr *)&ss, len), ENOTSOCK);
	CONF_ERR(connect(l, (struct sockaddr *)&ss, len), EISCONN);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_exchange(c, s);
}

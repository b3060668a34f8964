/* SPDX-License-Identifier: BSD-2-Clause */
/* A second connect on a connected socket is EISCONN, blocking or not, on both ends, and after the peer has closed;
 * after a shutdown also for one whose first connect was in progress. */
#include "conf.h"

static void each(int a, int b)
{
	struct sockaddr_in sin;
	socklen_t len = sizeof(sin);

	CONF_OK(getpeername(a, (struct sockaddr *)&sin, &len));
	for (int i = 0; i < 2; i++) {
		CONF_ERR(connect(a, (struct sockaddr *)&sin, len), EISCONN);
		conf_nonblock(a, true);
	}
	CONF_ERR(listen(a, 1), EINVAL);
	CONF_ERR(bind(a, (struct sockaddr *)&sin, len), EINVAL);
	conf_exchange(a, b);
	CONF_OK(close(b));
	CONF_STATE(a, POLLIN | POLLOUT | POLLRDHUP);
	CONF_ERR(connect(a, (struct sockaddr *)&sin, len), EISCONN);
	CONF_OK(close(a));
}

static void after_shutdown(void)
{
	struct sockaddr_storage ss;
	int l = conf_listener(AF_INET, 4), c, s;
	socklen_t len = conf_name(l, &ss);

	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EINPROGRESS);
	CONF_STATE(c, POLLOUT);
	CONF_OK(shutdown(c, SHUT_WR));
	CONF_ERR(connect(c, (struct sockaddr *)&ss, len), EISCONN);
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_read_eof(s);
	conf_close2(c, s);
	CONF_OK(close(l));
}

CONF_TEST(0)
{
	after_shutdown();
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A second connect on a connected socket is EISCONN, blocking or not, on both ends, and after the peer has closed. */
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

CONF_TEST(0)
{
	conf_each_role(each);
}

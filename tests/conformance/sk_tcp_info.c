/* SPDX-License-Identifier: BSD-2-Clause */
/* TCP_INFO: ESTABLISHED, CLOSE_WAIT after the peer's FIN, FIN_WAIT2 after ours, LISTEN; short buffers are truncated. */
#include "conf.h"

static int state(int fd)
{
	struct tcp_info ti;
	socklen_t len = sizeof(ti);

	memset(&ti, 0xff, sizeof(ti));
	CONF_OK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &ti, &len));
	CONF_GE(len, 1);
	return ti.tcpi_state;
}

static void each(int a, int b)
{
	struct tcp_info ti;
	socklen_t len = 1;

	conf_exchange(a, b);
	CONF_EQ(state(a), TCP_ESTABLISHED);
	CONF_EQ(state(b), TCP_ESTABLISHED);
	memset(&ti, 0xff, sizeof(ti));
	CONF_OK(getsockopt(a, IPPROTO_TCP, TCP_INFO, &ti, &len));
	CONF_EQ(len, 1);
	CONF_EQ(ti.tcpi_state, TCP_ESTABLISHED);
	CONF_EQ(ti.tcpi_ca_state, 0xff);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLRDHUP);
	CONF_UNTIL(state(b) == TCP_CLOSE_WAIT);
	CONF_UNTIL(state(a) == TCP_FIN_WAIT2);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), fresh = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));

	CONF_EQ(state(l), TCP_LISTEN);
	CONF_EQ(state(fresh), TCP_CLOSE);
	conf_close2(l, fresh);
	conf_each_role(each);
}

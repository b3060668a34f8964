/* SPDX-License-Identifier: BSD-2-Clause */
/* I/O on a socket that never connected: reads ENOTCONN, writes EPIPE with SIGPIPE, shutdown ENOTCONN, poll OUT HUP. */
#include "conf_io.h"

CONF_TEST(CONF_NO_RDMA)
{
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char buf[4];

	conf_catch(SIGPIPE, 0);
	for (size_t i = 0; i < conf_n_readers; i++) {
		conf_note("%s", conf_readers[i].name);
		CONF_ERR(conf_readers[i].fn(fd, buf, 4), ENOTCONN);
	}
	for (size_t i = 0; i < conf_n_writers; i++) {
		conf_note("%s", conf_writers[i].name);
		conf_caught = 0;
		CONF_ERR(conf_writers[i].fn(fd, "x", 1), EPIPE);
		CONF_EQ(conf_caught, 1);
	}
	CONF_ERR(shutdown(fd, SHUT_WR), ENOTCONN);
	CONF_STATE(fd, POLLOUT | POLLHUP);
	CONF_OK(close(fd));
}

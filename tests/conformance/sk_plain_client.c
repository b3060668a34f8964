/* SPDX-License-Identifier: BSD-2-Clause */
/* One listener serves a client without the library (TCP) and clients with it, at the same time, in any order. */
#include "conf.h"

int conf_plain(const char *arg, int port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char buf[8];

	sin.sin_addr.s_addr = conf_addr4();
	CONF_OK(connect(fd, (struct sockaddr *)&sin, sizeof(sin)));
	conf_write_all(fd, arg, 5);
	conf_read_all(fd, buf, 5);
	conf_write_all(fd, buf, 5);
	conf_read_eof(fd);
	return memcmp(buf, "reply", 5) != 0;
}

CONF_TEST(CONF_TCP_TOO)
{
	int l = conf_listener(AF_INET, 8), ep = conf_epoll(), plain = 0, carried = 0;
	uint64_t rdma = conf_conns_rdma();

	conf_ep_add(ep, l, EPOLLIN);
	for (int i = 0; i < 3; i++) {
		pid_t pid = conf_spawn_plain("plain", conf_port(l));
		int c = conf_dial(l);

		conf_write_all(c, "flags", 5);
		for (int k = 0; k < 2; k++) {
			char buf[8];
			int s;

			CONF_EP_EXPECT(ep, l, EPOLLIN);
			s = (int)CONF_OK(accept(l, NULL, NULL));
			conf_read_all(s, buf, 5);
			conf_write_all(s, "reply", 5);
			if (memcmp(buf, "plain", 5) == 0) {
				conf_read_all(s, buf, 5);
				plain++;
			} else {
				conf_read_all(c, buf, 5);
				carried++;
			}
			CONF_OK(close(s));
		}
		CONF_OK(close(c));
		conf_join(pid);
	}
	CONF_EQ(plain, 3);
	CONF_EQ(carried, 3);
	/* Each carried connection has two ends in this process. */
	if (conf_carried())
		CONF_EQ(conf_conns_rdma() - rdma, 6);
}

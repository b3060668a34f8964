/* SPDX-License-Identifier: BSD-2-Clause */
/* A socket in two epoll sets, then a blocking connect: both sets report it afterwards, with its data, and DEL works. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 1), ep[2] = {conf_epoll(), conf_epoll()}, s;
	int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);

	conf_ep_add(ep[0], c, EPOLLIN);
	conf_ep_add(ep[1], c, EPOLLIN | EPOLLOUT | EPOLLET);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_EP_EXPECT(ep[1], c, EPOLLOUT);
	CONF_EP_QUIET(ep[0]);
	conf_write_all(s, "x", 1);
	CONF_EP_EXPECT(ep[0], c, EPOLLIN);
	CONF_EP_EXPECT(ep[1], c, EPOLLIN | EPOLLOUT);
	CONF_EP_QUIET(ep[1]);
	CONF_OK(epoll_ctl(ep[0], EPOLL_CTL_DEL, c, NULL));
	CONF_EP_QUIET(ep[0]);
	CONF_ERR(epoll_ctl(ep[0], EPOLL_CTL_DEL, c, NULL), ENOENT);
	conf_drain(c, 1);
	conf_exchange(c, s);
	conf_close2(c, s);
	conf_close2(ep[0], ep[1]);
}

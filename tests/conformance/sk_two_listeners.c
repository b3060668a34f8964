/* SPDX-License-Identifier: BSD-2-Clause */
/* Two listeners in one process, IPv4 and IPv6 on the same port: each gets its own. */
#include "conf.h"

CONF_TEST(0)
{
	int l4 = conf_listener(AF_INET, 4), l6 = (int)CONF_OK(socket(AF_INET6, SOCK_STREAM, 0)), one = 1;
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = conf_addr6()};
	int c4, c6, s4, s6;

	CONF_OK(setsockopt(l6, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one)));
	six.sin6_port = htons((uint16_t)conf_port(l4));
	if (bind(l6, (struct sockaddr *)&six, sizeof(six)) < 0)
		conf_skip("no IPv6 address, or the port is taken there: %m");
	CONF_OK(listen(l6, 4));
	c6 = conf_dial(l6);
	c4 = conf_dial(l4);
	s4 = (int)CONF_OK(accept(l4, NULL, NULL));
	s6 = (int)CONF_OK(accept(l6, NULL, NULL));
	conf_exchange(c4, s4);
	conf_exchange(c6, s6);
	conf_close2(c4, s4);
	conf_close2(c6, s6);
}

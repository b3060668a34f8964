/* SPDX-License-Identifier: BSD-2-Clause */
/* getsockname and getpeername agree across the two ends: IPv4, IPv6, and IPv4 through an IPv6 listener (mapped). */
#include "conf.h"

static void same(const struct sockaddr_storage *a, socklen_t alen, const struct sockaddr_storage *b, socklen_t blen)
{
	CONF_EQ(alen, blen);
	CONF_EQ(a->ss_family, b->ss_family);
	if (a->ss_family == AF_INET) {
		const struct sockaddr_in *x = (const void *)a, *y = (const void *)b;

		CONF_EQ(x->sin_addr.s_addr, y->sin_addr.s_addr);
		CONF_EQ(x->sin_port, y->sin_port);
	} else {
		const struct sockaddr_in6 *x = (const void *)a, *y = (const void *)b;

		CONF_EQ(memcmp(&x->sin6_addr, &y->sin6_addr, 16), 0);
		CONF_EQ(x->sin6_port, y->sin6_port);
	}
}

static socklen_t peer(int fd, struct sockaddr_storage *ss)
{
	socklen_t len = sizeof(*ss);

	memset(ss, 0, sizeof(*ss));
	CONF_OK(getpeername(fd, (struct sockaddr *)ss, &len));
	return len;
}

static void family(int af)
{
	struct sockaddr_storage la, an, n, p;
	socklen_t alen = sizeof(an), llen, nlen, plen;
	int l = conf_listener(af, 1), c, s;

	conf_note("family %d", af);
	llen = conf_name(l, &la);
	c = conf_dial(l);
	s = (int)CONF_OK(accept(l, (struct sockaddr *)&an, &alen));
	nlen = conf_name(c, &n);
	plen = peer(c, &p);
	same(&p, plen, &la, llen);
	same(&an, alen, &n, nlen);
	plen = peer(s, &p);
	same(&p, plen, &n, nlen);
	nlen = conf_name(s, &n);
	same(&n, nlen, &la, llen);
	CONF_NE(conf_port(c), 0);
	CONF_NE(conf_port(c), conf_port(l));
	conf_exchange(c, s);
	conf_close2(c, s);
	CONF_OK(close(l));
}

static void mapped(void)
{
	struct sockaddr_in6 any = {.sin6_family = AF_INET6}, an, n6;
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr = {conf_addr4()}}, n4, p4;
	socklen_t len = sizeof(an);
	int l = (int)CONF_OK(socket(AF_INET6, SOCK_STREAM, 0)), off = 0, c, s;

	conf_note("mapped");
	CONF_OK(setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)));
	CONF_OK(bind(l, (struct sockaddr *)&any, sizeof(any)));
	CONF_OK(listen(l, 1));
	v4.sin_port = htons((uint16_t)conf_port(l));
	c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	CONF_OK(connect(c, (struct sockaddr *)&v4, sizeof(v4)));
	s = (int)CONF_OK(accept(l, (struct sockaddr *)&an, &len));
	CONF_EQ(len, sizeof(an));
	CONF_EQ(an.sin6_family, AF_INET6);
	CONF_TRUE(IN6_IS_ADDR_V4MAPPED(&an.sin6_addr));
	len = sizeof(n4);
	CONF_OK(getsockname(c, (struct sockaddr *)&n4, &len));
	CONF_EQ(len, sizeof(n4));
	CONF_EQ(n4.sin_port, an.sin6_port);
	CONF_EQ(memcmp(&an.sin6_addr.s6_addr[12], &n4.sin_addr, 4), 0);
	len = sizeof(p4);
	CONF_OK(getpeername(c, (struct sockaddr *)&p4, &len));
	CONF_EQ(p4.sin_port, v4.sin_port);
	CONF_EQ(p4.sin_addr.s_addr, v4.sin_addr.s_addr);
	len = sizeof(n6);
	CONF_OK(getsockname(s, (struct sockaddr *)&n6, &len));
	CONF_TRUE(IN6_IS_ADDR_V4MAPPED(&n6.sin6_addr));
	CONF_EQ(n6.sin6_port, v4.sin_port);
	conf_exchange(c, s);
	conf_close2(c, s);

	/* The same from an IPv6 socket that connects to the mapped address. */
	any.sin6_port = v4.sin_port;
	any.sin6_addr = (struct in6_addr){.s6_addr = {[10] = 0xff, [11] = 0xff}};
	memcpy(&any.sin6_addr.s6_addr[12], &v4.sin_addr, 4);
	c = (int)CONF_OK(socket(AF_INET6, SOCK_STREAM, 0));
	CONF_OK(connect(c, (struct sockaddr *)&any, sizeof(any)));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	len = sizeof(n6);
	CONF_OK(getpeername(c, (struct sockaddr *)&n6, &len));
	CONF_EQ(len, sizeof(n6));
	CONF_EQ(memcmp(&n6.sin6_addr, &any.sin6_addr, 16), 0);
	conf_exchange(c, s);
	conf_close2(c, s);
	CONF_OK(close(l));
}

CONF_TEST(0)
{
	family(AF_INET);
	family(AF_INET6);
	mapped();
}

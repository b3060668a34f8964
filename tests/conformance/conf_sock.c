/* SPDX-License-Identifier: BSD-2-Clause */
#include "conf.h"

in_addr_t conf_addr4(void)
{
	const char *s = getenv("CONF_ADDR4");
	struct in_addr addr = {htonl(INADDR_LOOPBACK)};

	if (s)
		CONF_EQ(inet_pton(AF_INET, s, &addr), 1);
	return addr.s_addr;
}

struct in6_addr conf_addr6(void)
{
	const char *s = getenv("CONF_ADDR6");
	struct in6_addr addr = in6addr_loopback;

	if (s)
		CONF_EQ(inet_pton(AF_INET6, s, &addr), 1);
	return addr;
}

static socklen_t local(int family, struct sockaddr_storage *ss)
{
	memset(ss, 0, sizeof(*ss));
	ss->ss_family = (sa_family_t)family;
	if (family == AF_INET6) {
		((struct sockaddr_in6 *)ss)->sin6_addr = conf_addr6();
		return sizeof(struct sockaddr_in6);
	}
	((struct sockaddr_in *)ss)->sin_addr.s_addr = conf_addr4();
	return sizeof(struct sockaddr_in);
}

int conf_bound(int family)
{
	struct sockaddr_storage ss;
	socklen_t len = local(family, &ss);
	int fd = (int)CONF_OK(socket(family, SOCK_STREAM, 0));

	if (bind(fd, (struct sockaddr *)&ss, len) < 0) {
		if (family == AF_INET6 && errno == EADDRNOTAVAIL)
			conf_skip("no IPv6 address here");
		conf_fail(CONF_WHERE, "bind: %m");
	}
	return fd;
}

int conf_listener(int family, int backlog)
{
	int fd = conf_bound(family);

	CONF_OK(listen(fd, backlog));
	return fd;
}

socklen_t conf_name(int fd, struct sockaddr_storage *ss)
{
	socklen_t len = sizeof(*ss);

	memset(ss, 0, sizeof(*ss));
	CONF_OK(getsockname(fd, (struct sockaddr *)ss, &len));
	return len;
}

int conf_port(int fd)
{
	struct sockaddr_storage ss;

	conf_name(fd, &ss);
	return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
					      : ((struct sockaddr_in *)&ss)->sin_port);
}

int conf_dial(int listener)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(listener, &ss);
	int fd = (int)CONF_OK(socket(ss.ss_family, SOCK_STREAM, 0));

	CONF_OK(connect(fd, (struct sockaddr *)&ss, len));
	return fd;
}

int conf_dial_nb(int listener)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(listener, &ss), elen = sizeof(int);
	int fd = (int)CONF_OK(socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0)), err = -1;

	CONF_ERR(connect(fd, (struct sockaddr *)&ss, len), EINPROGRESS);
	CONF_EVENTS(conf_poll1(fd, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
	CONF_OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &elen));
	CONF_EQ(err, 0);
	return fd;
}

void conf_pair_of(int family, int fd[2])
{
	int l = conf_listener(family, 4);

	fd[0] = conf_dial(l);
	fd[1] = (int)CONF_OK(accept(l, NULL, NULL));
	CONF_OK(close(l));
}

void conf_pair(int fd[2])
{
	conf_pair_of(AF_INET, fd);
}

void conf_nonblock(int fd, bool on)
{
	int flags = (int)CONF_OK(fcntl(fd, F_GETFL));

	CONF_OK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void conf_each_role(void (*fn)(int a, int b))
{
	int fd[2];

	conf_note("a connects, b accepts");
	conf_pair(fd);
	fn(fd[0], fd[1]);
	conf_note("a accepts, b connects");
	conf_pair(fd);
	fn(fd[1], fd[0]);
}

void conf_close2(int a, int b)
{
	CONF_OK(close(a));
	CONF_OK(close(b));
}

void conf_dead_addr(struct sockaddr_in *sin)
{
	struct sockaddr_storage ss;
	int fd = conf_bound(AF_INET);

	conf_name(fd, &ss);
	memcpy(sin, &ss, sizeof(*sin));
	CONF_OK(close(fd));
}

/* ---- data */

static inline uint8_t pattern(uint32_t seed, uint64_t offset)
{
	uint64_t x = (offset + seed) * 0x9e3779b97f4a7c15ull;

	return (uint8_t)(x >> 56);
}

void conf_fill(void *buf, size_t n, uint32_t seed, uint64_t offset)
{
	for (size_t i = 0; i < n; i++)
		((uint8_t *)buf)[i] = pattern(seed, offset + i);
}

void conf_verify(const char *file, int line, const void *buf, size_t n, uint32_t seed, uint64_t offset)
{
	const uint8_t *p = buf;

	for (size_t i = 0; i < n; i++)
		if (p[i] != pattern(seed, offset + i))
			conf_fail(file, line, "byte %llu of the stream (%zu of %zu here) is 0x%02x, expected 0x%02x",
				  (unsigned long long)(offset + i), i, n, p[i], pattern(seed, offset + i));
}

void conf_write_all(int fd, const void *buf, size_t n)
{
	const char *p = buf;

	while (n) {
		ssize_t k = write(fd, p, n);

		if (k < 0 && errno == EAGAIN) {
			CONF_NE(conf_poll1(fd, POLLOUT, CONF_PATIENCE_MS), 0);
			continue;
		}
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			conf_fail(CONF_WHERE, "write(%d, %zu bytes) = %zd %s", fd, n, k, strerrorname_np(errno));
		p += k;
		n -= (size_t)k;
	}
}

void conf_read_all(int fd, void *buf, size_t n)
{
	char *p = buf;

	while (n) {
		ssize_t k = read(fd, p, n);

		if (k < 0 && errno == EAGAIN) {
			CONF_NE(conf_poll1(fd, POLLIN, CONF_PATIENCE_MS), 0);
			continue;
		}
		if (k < 0 && errno == EINTR)
			continue;
		if (k <= 0)
			conf_fail(CONF_WHERE, "read(%d, %zu bytes) = %zd %s", fd, n, k,
				  k ? strerrorname_np(errno) : "end of the stream");
		p += k;
		n -= (size_t)k;
	}
}

void conf_read_eof(int fd)
{
	char c;

	CONF_NE(conf_poll1(fd, POLLIN, CONF_PATIENCE_MS), 0);
	CONF_EQ(read(fd, &c, 1), 0);
}

void conf_exchange(int a, int b)
{
	char buf[8] = "";

	conf_write_all(a, "ping", 4);
	conf_read_all(b, buf, 4);
	CONF_EQ(memcmp(buf, "ping", 4), 0);
	conf_write_all(b, "reply", 5);
	conf_read_all(a, buf, 5);
	CONF_EQ(memcmp(buf, "reply", 5), 0);
}

size_t conf_stuff(int fd)
{
	static const char junk[65536];
	size_t total = 0;
	int refused = 0;

	/*
	 * What is on its way may make a little room once more, less than OUT needs, and a receiver may delay its
	 * acknowledgement by 40 ms: full is refused twice, well apart.
	 */
	while (refused < 2) {
		ssize_t k = send(fd, junk, sizeof(junk), MSG_DONTWAIT);

		if (k > 0) {
			total += (size_t)k;
			refused = 0;
			continue;
		}
		CONF_EQ(k, -1);
		CONF_EQ(errno, EAGAIN);
		refused++;
		if (conf_poll1(fd, POLLOUT, refused < 2 ? 3 * CONF_QUIET_MS : 0))
			refused = 0;
	}
	return total;
}

void conf_small_buffers(int a, int b)
{
	int size = 65536;

	CONF_OK(setsockopt(a, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	CONF_OK(setsockopt(a, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
	CONF_OK(setsockopt(b, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
	CONF_OK(setsockopt(b, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
}

size_t conf_drain(int fd, size_t n)
{
	static __thread char junk[65536];
	size_t left = n;

	while (left) {
		size_t k = left < sizeof(junk) ? left : sizeof(junk);

		conf_read_all(fd, junk, k);
		left -= k;
	}
	return n;
}

void conf_wait_inq(int fd, int n)
{
	int64_t end = conf_ms() + CONF_PATIENCE_MS;
	int have = -1;

	for (;;) {
		CONF_OK(ioctl(fd, FIONREAD, &have));
		if (have == n)
			return;
		if (conf_ms() > end)
			conf_fail(CONF_WHERE, "FIONREAD says %d, expected %d", have, n);
		conf_pause();
	}
}

/* ---- readiness */

uint32_t conf_poll1(int fd, short events, int timeout_ms)
{
	struct pollfd p = {.fd = fd, .events = events};
	int n = (int)CONF_OK(poll(&p, 1, timeout_ms));

	CONF_EQ(n, p.revents != 0);
	return (uint16_t)p.revents;
}

void conf_wait_state(const char *file, int line, int fd, uint32_t want)
{
	int64_t end = conf_ms() + CONF_PATIENCE_MS;
	uint32_t got;

	while ((got = conf_poll1(fd, POLLIN | POLLPRI | POLLOUT | POLLRDHUP, 0)) != want) {
		if (conf_ms() > end)
			conf_check_events(file, line, got, want);
		conf_pause();
	}
}

int conf_epoll(void)
{
	return (int)CONF_OK(epoll_create1(EPOLL_CLOEXEC));
}

void conf_ep_add(int ep, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	CONF_OK(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev));
}

void conf_ep_mod(int ep, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	CONF_OK(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &ev));
}

void conf_ep_expect(const char *file, int line, int ep, int fd, uint32_t want)
{
	struct epoll_event ev[4];
	int n = epoll_wait(ep, ev, 4, CONF_PATIENCE_MS);

	if (n != 1)
		conf_fail(file, line, "epoll_wait = %d, expected 1 event of fd %d", n, fd);
	if (ev[0].data.fd != fd)
		conf_fail(file, line, "epoll_wait reports fd %d, expected fd %d", ev[0].data.fd, fd);
	conf_check_events(file, line, ev[0].events, want);
}

void conf_ep_quiet(const char *file, int line, int ep)
{
	struct epoll_event ev[4];
	char text[64] = "";
	int n = epoll_wait(ep, ev, 4, CONF_QUIET_MS);

	if (n > 0)
		snprintf(text, sizeof(text), ": fd %d events 0x%x", ev[0].data.fd, ev[0].events);
	if (n != 0)
		conf_fail(file, line, "epoll_wait = %d, expected silence%s", n, text);
}

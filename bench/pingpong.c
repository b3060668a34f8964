/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ping-pong over sockets, plain TCP or under the shim: the program does not know.
 *
 *   pingpong server HOST PORT                         serves one connection (sizes come from the client), then leaves
 *   pingpong client HOST PORT SIZE SECONDS|ROUNDSr [MODE]     MODE: block (default), epoll, poll (epoll_wait with
 * timeout 0)
 *
 * A round trip is SIZE bytes there and SIZE bytes back. Prints one JSON object: rounds, seconds, mean, p50, p99 (us).
 */
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int ep = -1;
static int spin;

static void wait_readable(void)
{
	struct epoll_event ev;
	int n;

	do {
		n = epoll_wait(ep, &ev, 1, spin ? 0 : -1);
	} while (n == 0 || (n < 0 && errno == EINTR));
	if (n < 0)
		bench_fail("epoll_wait");
}

static void read_all(int fd, char *buf, size_t len)
{
	size_t have = 0;
	ssize_t n;

	while (have < len) {
		if (ep >= 0)
			wait_readable();
		n = read(fd, buf + have, len - have);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			bench_fail("read");
		have += (size_t)n;
	}
}

static void write_all(int fd, const char *buf, size_t len)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = write(fd, buf + done, len - done);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n < 0)
			bench_fail("write");
		done += (size_t)n;
	}
}

static struct sockaddr_in address(const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};

	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1)
		bench_fail("address");
	return sa;
}

static void use(int fd, const char *mode)
{
	struct epoll_event ev = {.events = EPOLLIN};
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!strcmp(mode, "block"))
		return;
	spin = !strcmp(mode, "poll");
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	ep = epoll_create1(EPOLL_CLOEXEC);
	if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0)
		bench_fail("epoll");
}

/* The client's first 64 bytes say the size and the mode. */
static int serve(const char *host, const char *port)
{
	struct sockaddr_in sa = address(host, port);
	int one = 1, fd, ls = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char head[64], *buf;
	size_t size;
	ssize_t n;

	setsockopt(ls, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(ls, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(ls, 1) < 0)
		bench_fail("listen");
	printf("listening\n");
	fflush(stdout);
	fd = accept(ls, NULL, NULL);
	if (fd < 0)
		bench_fail("accept");
	read_all(fd, head, sizeof(head));
	head[63] = 0;
	size = strtoull(head, NULL, 10);
	buf = bench_buffer(size);
	use(fd, strchr(head, ' ') + 1);
	for (;;) {
		if (ep >= 0)
			wait_readable();
		n = read(fd, buf, 1);
		if (n < 0 && errno == EAGAIN)
			continue;
		if (n <= 0)
			return 0;
		read_all(fd, buf + 1, size - 1);
		write_all(fd, buf, size);
	}
}

static int drive(const char *host, const char *port, size_t size, const char *how, const char *mode)
{
	struct sockaddr_in sa = address(host, port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char head[64] = {0}, *buf = bench_buffer(size);
	struct bench_rounds r;
	int64_t t;

	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		bench_fail("connect");
	snprintf(head, sizeof(head), "%zu %s", size, mode);
	write_all(fd, head, sizeof(head));
	use(fd, mode);
	bench_start(&r, how);
	while (bench_more(&r)) {
		t = bench_now();
		write_all(fd, buf, size);
		read_all(fd, buf, size);
		bench_round(&r, bench_now() - t);
	}
	bench_print(&r, "sockets", mode, size);
	bench_hold();
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && !strcmp(argv[1], "server"))
		return serve(argv[2], argv[3]);
	if (argc >= 6 && !strcmp(argv[1], "client"))
		return drive(argv[2], argv[3], strtoull(argv[4], NULL, 10), argv[5], argc > 6 ? argv[6] : "block");
	fprintf(stderr,
		"usage: pingpong server HOST PORT | client HOST PORT SIZE SECONDS|ROUNDSr [block|epoll|poll]\n");
	return 2;
}

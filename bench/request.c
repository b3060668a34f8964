/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One client of a Valkey or Redis server, one request at a time, over TCP or under the shim: the program does not know.
 *
 *   request HOST PORT set|get SIZE SECONDS|ROUNDSr      write, epoll_wait and read, as event loops do
 *
 * Prints one JSON object: rounds, mean, p50, p99, p99.9 (us). valkey-benchmark's own percentiles go in steps of 8 us.
 */
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static int fd, ep;

static void send_all(const char *buf, size_t len)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = write(fd, buf + done, len - done);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			bench_fail("write");
		done += n > 0 ? (size_t)n : 0;
	}
}

static void wait_readable(void)
{
	struct epoll_event ev;
	int n;

	do {
		n = epoll_wait(ep, &ev, 1, -1);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		bench_fail("epoll_wait");
}

static void receive(char *buf, size_t len)
{
	size_t have = 0;
	ssize_t n;

	while (have < len) {
		wait_readable();
		n = read(fd, buf + have, len - have);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0)
			bench_fail("read");
		have += (size_t)n;
	}
}

/* One request and its whole reply, which must begin as it should. */
static void ask(const char *request, size_t len, char *reply, size_t expected, const char *begins)
{
	send_all(request, len);
	receive(reply, expected);
	if (strncmp(reply, begins, strlen(begins)) != 0) {
		fprintf(stderr, "request: the server answered %.40s\n", reply);
		exit(1);
	}
}

static void open_connection(const char *host, const char *port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	struct epoll_event ev = {.events = EPOLLIN};
	int one = 1;

	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (inet_pton(AF_INET, host, &sa.sin_addr) != 1 || fd < 0 ||
	    connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		bench_fail("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	ep = epoll_create1(EPOLL_CLOEXEC);
	if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0)
		bench_fail("epoll");
}

int main(int argc, char **argv)
{
	static const char get[] = "*2\r\n$3\r\nGET\r\n$9\r\nbench:key\r\n";
	size_t size, head, set_len, value;
	char *set, *reply, begins[32];
	struct bench_rounds r;
	int64_t t;

	if (argc != 6 || (strcmp(argv[3], "set") != 0 && strcmp(argv[3], "get") != 0)) {
		fprintf(stderr, "usage: request HOST PORT set|get SIZE SECONDS|ROUNDSr\n");
		return 2;
	}
	size = strtoull(argv[4], NULL, 10);
	set = bench_buffer(size + 128);
	reply = bench_buffer(size + 128);
	head = (size_t)sprintf(set, "*3\r\n$3\r\nSET\r\n$9\r\nbench:key\r\n$%zu\r\n", size);
	memset(set + head, 'x', size);
	memcpy(set + head + size, "\r\n", 2);
	set_len = head + size + 2;
	value = (size_t)sprintf(begins, "$%zu\r\n", size);
	open_connection(argv[1], argv[2]);
	ask(set, set_len, reply, 5, "+OK\r\n");
	bench_start(&r, argv[5]);
	while (bench_more(&r)) {
		t = bench_now();
		if (argv[3][0] == 's')
			ask(set, set_len, reply, 5, "+OK\r\n");
		else
			ask(get, sizeof(get) - 1, reply, value + size + 2, begins);
		bench_round(&r, bench_now() - t);
	}
	bench_print(&r, "request", argv[3], size);
	bench_hold();
	return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A well-behaved client on plain sockets, run under the shim: steady HOST PORT. It sends PING and waits for PONG, again
 * and again, and prints every 100 ms "window COUNT P50 P99 MAX" (microseconds). Commands on standard input:
 *
 *   beside PORT   opens one more connection, sends PING there and reads whatever comes, beside the steady one; prints
 *                 "beside connected", "beside ended ERRNO BYTES" (0: end of file) or "beside failed ERRNO"
 *   drop          closes that connection ("beside dropped BYTES")
 *   end of file   leaves, exit 0
 *
 * Exit 1: the steady connection failed.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define WINDOW_NS  100000000ll
#define MAX_SAMPLE 200000

static const char *host;
static int ep, steady_fd, beside_fd = -1;
static uint64_t beside_bytes;
static int64_t sent_at, window_end;
static uint32_t samples[MAX_SAMPLE];
static unsigned n_samples;

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void say(const char *what, long a, long b)
{
	printf(what, a, b);
	fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void window(int64_t now)
{
	if (now < window_end)
		return;
	window_end = now + WINDOW_NS;
	if (!n_samples) {
		printf("window 0 0 0 0\n");
	} else {
		qsort(samples, n_samples, sizeof(samples[0]), by_value);
		printf("window %u %u %u %u\n", n_samples, samples[n_samples / 2], samples[n_samples * 99ull / 100],
		       samples[n_samples - 1]);
	}
	fflush(stdout);
	n_samples = 0;
}

static int dial(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET, host, &sa.sin_addr);
	if (fd < 0 || (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 && errno != EINPROGRESS)) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	return fd;
}

static void watch(int op, int fd, uint32_t events)
{
	struct epoll_event ev = {.events = events, .data.fd = fd};

	if (epoll_ctl(ep, op, fd, &ev) < 0) {
		perror("epoll_ctl");
		exit(2);
	}
}

/* ------------------------------------------------------------------ the steady connection */

static void steady_ask(void)
{
	sent_at = now_ns();
	if (write(steady_fd, "PING\r\n", 6) != 6) {
		perror("steady write");
		exit(1);
	}
}

static void steady_answer(void)
{
	static char reply[7];
	static size_t have;
	ssize_t n = read(steady_fd, reply + have, sizeof(reply) - have);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0) {
		fprintf(stderr, "steady read: %s\n", n ? strerror(errno) : "end of file");
		exit(1);
	}
	have += (size_t)n;
	if (have < sizeof(reply))
		return;
	have = 0;
	if (memcmp(reply, "+PONG\r\n", sizeof(reply))) {
		fprintf(stderr, "steady: wrong bytes\n");
		exit(1);
	}
	if (n_samples < MAX_SAMPLE)
		samples[n_samples++] = (uint32_t)((now_ns() - sent_at) / 1000);
	steady_ask();
}

static void steady_connect(int port)
{
	int err = 0;
	socklen_t len = sizeof(err);
	struct epoll_event ev;

	steady_fd = dial(port);
	if (steady_fd < 0) {
		perror("steady connect");
		exit(1);
	}
	watch(EPOLL_CTL_ADD, steady_fd, EPOLLOUT);
	while (epoll_wait(ep, &ev, 1, 10000) < 0 && errno == EINTR)
		;
	if (getsockopt(steady_fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0 || err) {
		fprintf(stderr, "steady connect: %s\n", strerror(err));
		exit(1);
	}
	watch(EPOLL_CTL_MOD, steady_fd, EPOLLIN);
	steady_ask();
}

/* ------------------------------------------------------------------ the connection beside it */

static void beside_close(const char *what, long why)
{
	close(beside_fd);
	beside_fd = -1;
	say(what, why, (long)beside_bytes);
}

static void beside_open(int port)
{
	if (beside_fd >= 0)
		close(beside_fd);
	beside_bytes = 0;
	beside_fd = dial(port);
	if (beside_fd < 0) {
		say("beside failed %ld\n", errno, 0);
		return;
	}
	watch(EPOLL_CTL_ADD, beside_fd, EPOLLOUT);
}

static void beside_event(uint32_t events)
{
	static char buf[65536];
	int err = 0;
	socklen_t len = sizeof(err);
	ssize_t n;

	if (events & EPOLLOUT) {
		getsockopt(beside_fd, SOL_SOCKET, SO_ERROR, &err, &len);
		if (err) {
			beside_close("beside failed %ld %ld\n", err);
			return;
		}
		say("beside connected\n", 0, 0);
		watch(EPOLL_CTL_MOD, beside_fd, EPOLLIN);
		if (write(beside_fd, "PING\r\n", 6) < 0 && errno != EAGAIN)
			beside_close("beside ended %ld %ld\n", errno);
		return;
	}
	n = read(beside_fd, buf, sizeof(buf));
	if (n > 0)
		beside_bytes += (uint64_t)n;
	else if (n == 0 || errno != EAGAIN)
		beside_close("beside ended %ld %ld\n", n ? errno : 0);
}

static void command(void)
{
	static char line[64];
	static size_t have;
	ssize_t n = read(0, line + have, 1);

	if (n <= 0)
		exit(0);
	if (line[have] != '\n') {
		have = have < sizeof(line) - 2 ? have + 1 : 0;
		return;
	}
	line[have] = 0;
	have = 0;
	if (!strncmp(line, "beside ", 7))
		beside_open(atoi(line + 7));
	else if (!strcmp(line, "drop") && beside_fd >= 0)
		beside_close("beside dropped %ld %ld\n", 0);
}

int main(int argc, char **argv)
{
	struct epoll_event ev[8];
	int i, n;

	if (argc != 3)
		return 2;
	host = argv[1];
	ep = epoll_create1(EPOLL_CLOEXEC);
	steady_connect(atoi(argv[2]));
	watch(EPOLL_CTL_ADD, 0, EPOLLIN);
	window_end = now_ns() + WINDOW_NS;
	for (;;) {
		n = epoll_wait(ep, ev, 8, 200);
		if (n < 0 && errno != EINTR)
			return 2;
		for (i = 0; i < n; i++) {
			if (ev[i].data.fd == steady_fd)
				steady_answer();
			else if (ev[i].data.fd == 0)
				command();
			else if (ev[i].data.fd == beside_fd)
				beside_event(ev[i].events);
		}
		window(now_ns());
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many connections to a server that answers PING (Valkey, Redis), over TCP or under the shim: the program does not
 * know.
 *
 *   conns hold HOST PORT COUNT           opens COUNT connections, each with a PING, and keeps them. A line "probe N" on
 *                                        standard input: N PINGs on the first one. Leaves when standard input ends.
 *   conns churn HOST PORT COUNT          connect and close, COUNT times, one after another
 *   conns request HOST PORT COUNT        connect, PING and its reply, close
 *
 * Prints one JSON object for each: how many, how many a second, p50, p99 and p99.9 of one (us).
 */
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>

static struct sockaddr_in server;

static int open_one(void)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof(server)) < 0)
		bench_fail("connect");
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void ping(int fd)
{
	static const char question[] = "PING\r\n", answer[] = "+PONG\r\n";
	char got[sizeof(answer)];
	size_t have = 0;
	ssize_t n;

	if (write(fd, question, sizeof(question) - 1) != sizeof(question) - 1)
		bench_fail("write");
	while (have < sizeof(answer) - 1) {
		n = read(fd, got + have, sizeof(answer) - 1 - have);
		if (n <= 0)
			bench_fail("read");
		have += (size_t)n;
	}
	if (memcmp(got, answer, sizeof(answer) - 1) != 0) {
		fprintf(stderr, "not an answer to PING\n");
		exit(1);
	}
}

static void report(uint32_t *took, size_t n, int64_t ns)
{
	qsort(took, n, sizeof(*took), bench_order);
	printf("{\"count\": %zu, \"per_second\": %.1f, \"p50_us\": %.3f, \"p99_us\": %.3f, \"p999_us\": %.3f}\n", n,
	       (double)n * 1e9 / (double)ns, took[n / 2] / 1e3, took[n * 99 / 100] / 1e3, took[n * 999 / 1000] / 1e3);
	fflush(stdout);
}

static void measure(uint32_t *took, size_t n, void (*one)(size_t i))
{
	int64_t start = bench_now(), before = start, now = start;
	size_t i;

	for (i = 0; i < n; i++) {
		one(i);
		now = bench_now();
		took[i] = now - before < UINT32_MAX ? (uint32_t)(now - before) : UINT32_MAX;
		before = now;
	}
	report(took, n, now - start);
}

static int *held;

static void hold_one(size_t i)
{
	held[i] = open_one();
	ping(held[i]);
}

static void probe_one(size_t i)
{
	(void)i;
	ping(held[0]);
}

static void churn_one(size_t i)
{
	(void)i;
	close(open_one());
}

static void request_one(size_t i)
{
	int fd = open_one();

	(void)i;
	ping(fd);
	close(fd);
}

static size_t number(const char *text)
{
	size_t n = strtoull(text, NULL, 10);

	if (n < 1 || n > BENCH_SAMPLES) {
		fprintf(stderr, "%s: not a number from 1 to %u\n", text, BENCH_SAMPLES);
		exit(2);
	}
	return n;
}

static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		bench_fail("getrlimit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
		bench_fail("setrlimit");
}

int main(int argc, char **argv)
{
	uint32_t *took = bench_buffer(BENCH_SAMPLES * sizeof(*took));
	char line[64];

	if (argc != 5) {
		fprintf(stderr, "usage: conns hold|churn|request HOST PORT COUNT\n");
		return 2;
	}
	server.sin_family = AF_INET;
	server.sin_port = htons((uint16_t)atoi(argv[3]));
	if (inet_pton(AF_INET, argv[2], &server.sin_addr) != 1)
		bench_fail("address");
	raise_limit();
	if (!strcmp(argv[1], "churn")) {
		measure(took, number(argv[4]), churn_one);
		bench_hold(); /* its counters can be read until then */
		return 0;
	}
	if (!strcmp(argv[1], "request")) {
		measure(took, number(argv[4]), request_one);
		bench_hold();
		return 0;
	}
	if (strcmp(argv[1], "hold") != 0) {
		fprintf(stderr, "conns: %s: hold, churn or request\n", argv[1]);
		return 2;
	}
	held = bench_buffer(number(argv[4]) * sizeof(*held));
	measure(took, number(argv[4]), hold_one);
	while (fgets(line, sizeof(line), stdin))
		if (!strncmp(line, "probe ", 6))
			measure(took, number(line + 6), probe_one);
	return 0;
}

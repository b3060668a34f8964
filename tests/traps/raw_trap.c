/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer on raw verbs that does, legally or nearly so, what the traps of docs/native-peers.md are about.
 *
 *   raw_trap client HOST PORT resize FROM TO   advertises a buffer of FROM bytes, then one of TO bytes
 *   raw_trap client|server HOST PORT length N  advertises N bytes, whatever there is
 *   raw_trap client HOST PORT early            advertises a second buffer while the first has room
 *   raw_trap client HOST PORT tardy MS         advertises its buffer only after MS, and says what comes then
 *   raw_trap server HOST PORT late MS          allows no RNR retry, and posts its receives only after MS
 *   raw_trap server HOST PORT leave            accepts and disconnects
 *
 * Prints "listening" (server), facts, and "outcome: alive | dead | refused"; then it keeps the connection until the
 * end of its standard input.
 */
#include "rawpeer.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rawpeer p;
static const char ask[] = "*1\r\n$4\r\nPING\r\n", answer[] = "+PONG\r\n";
#define ANSWER (sizeof(answer) - 1)

static uint64_t num(const char *text)
{
	return strtoull(text, NULL, 0);
}

static void say(const char *text)
{
	puts(text);
	fflush(stdout);
}

static void outcome(void)
{
	say(p.refused ? "outcome: refused" : p.dead ? "outcome: dead" : "outcome: alive");
}

static void advertise(uint64_t addr, uint32_t len)
{
	rp_message(&p, 3, addr, len, p.ring_mr->rkey);
}

/* True when one more reply has come. */
static bool ping(void)
{
	return rp_data(&p, ask, sizeof(ask) - 1) && rp_wait_bytes(&p, p.bytes_in + ANSWER, 3000);
}

static void start(uint32_t len)
{
	advertise((uintptr_t)p.ring, len);
	rp_wait(&p, &p.registers, 1, 5000);
}

static void run_resize(char **arg)
{
	start((uint32_t)num(arg[0]));
	printf("first %d\n", ping());
	advertise((uintptr_t)p.ring, (uint32_t)num(arg[1]));
	printf("second %d\n", ping());
}

static void run_length(char **arg)
{
	start((uint32_t)num(arg[0]));
	rp_pump(&p, 1000);
}

static unsigned answers_at(const uint8_t *at)
{
	unsigned n = 0;

	while (!memcmp(at + n * ANSWER, answer, ANSWER))
		n++;
	return n;
}

/*
 * A question and its answer, a new buffer while the old one has room, a question: the immediates of the answers are alike.
 * The first answer is waited for: a slow server would read the news of the buffer before the question.
 */
static void run_early(char **arg)
{
	uint32_t half = RP_RING / 2;

	(void)arg;
	start(half);
	printf("first %d\n", ping());
	advertise((uintptr_t)p.ring + half, half);
	printf("second %d\n", ping());
	printf("in-old %u\nin-new %u\n", answers_at(p.ring), answers_at(p.ring + half));
}

static void run_tardy(char **arg)
{
	rp_pump(&p, (int)num(arg[0]));
	advertise((uintptr_t)p.ring, RP_RING);
	rp_wait_bytes(&p, 1, 3000);
	printf("heard %.*s\n", (int)strcspn((char *)p.ring, "\r\n"), p.ring);
}

/* The client speaks first; each PING is answered. */
static void serve_length(char **arg)
{
	start((uint32_t)num(arg[0]));
	if (rp_wait_bytes(&p, 1, 3000))
		rp_data(&p, answer, ANSWER);
	rp_pump(&p, 500);
}

static void serve_late(char **arg)
{
	unsigned i;
	bool asked;

	rp_pump(&p, (int)num(arg[0]));
	p.no_receives = false;
	for (i = 0; i < RP_RECVS; i++)
		rp_post_recv(&p, i);
	rp_register(&p);
	asked = rp_wait_bytes(&p, 1, 3000);
	printf("asked %d\n", asked);
	fflush(stdout);
	if (asked && rp_wait(&p, &p.registers, 1, 5000)) {
		rp_data(&p, answer, ANSWER);
		rp_pump(&p, 500);
	}
}

static void serve_leave(char **arg)
{
	(void)arg;
	rp_pump(&p, 100); /* a libvalkey that finds both events at once waits for the first for ever */
	rdma_disconnect(p.id);
	rp_pump(&p, 500);
}

static const struct {
	const char *role, *name;
	int args;
	void (*run)(char **arg);
} cases[] = {
    {"client", "resize", 2, run_resize}, {"client", "length", 1, run_length},   {"client", "early", 0, run_early},
    {"client", "tardy", 1, run_tardy},   {"server", "length", 1, serve_length}, {"server", "late", 1, serve_late},
    {"server", "leave", 0, serve_leave},
};

static void hold(void)
{
	char byte;

	fcntl(STDIN_FILENO, F_SETFL, fcntl(STDIN_FILENO, F_GETFL) | O_NONBLOCK);
	while (read(STDIN_FILENO, &byte, 1) < 0 && !p.dead)
		rp_pump(&p, 50);
}

int main(int argc, char **argv)
{
	size_t i, n = sizeof(cases) / sizeof(cases[0]);

	for (i = 0; i < n && argc >= 5; i++)
		if (!strcmp(cases[i].role, argv[1]) && !strcmp(cases[i].name, argv[4]) && argc == 5 + cases[i].args)
			break;
	if (argc < 5 || i == n)
		return 2;
	if (!strcmp(argv[1], "server")) {
		p.no_receives = p.no_rnr_retry = !strcmp(argv[4], "late");
		rp_listen(&p, argv[2], argv[3]);
		say("listening");
		rp_request_wait(&p);
		rp_accept(&p, NULL, 0, 5000);
	} else {
		rp_connect(&p, argv[2], argv[3], NULL, 0, 5000);
	}
	if (p.established && !p.dead)
		cases[i].run(argv + 5);
	outcome();
	hold();
	_exit(0);
}

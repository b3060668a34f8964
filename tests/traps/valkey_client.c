/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A client written against libvalkey, the library inside the native tools; the same program speaks native RDMA and,
 * as an ordinary TCP program, through the shim.
 *
 *   valkey_client rdma|tcp HOST PORT tiny N           N commands, each a write of its own, no reply read meanwhile
 *   valkey_client rdma|tcp HOST PORT sleepy MS        a command, MS without any call, a command
 *   valkey_client rdma|tcp HOST PORT subscribe N      subscribes, no call until another line comes, then takes N
 * messages valkey_client rdma|tcp HOST PORT leave N          N commands in writes of their own, then closes at once
 *   valkey_client rdma|tcp HOST PORT burst N          N times over: a connection, a command, the close
 *   valkey_client rdma|tcp HOST PORT event            writes while a reply has come, then polls the descriptor
 *   valkey_client rdma|tcp HOST PORT fetch KEY MS     GET KEY and QUIT in one write; MS later everything that comes
 *   valkey_client rdma|tcp HOST PORT slow KEY N       GET KEY N times, every piece of a reply awaited for a while
 *   valkey_client rdma|tcp HOST PORT held KEY MS      the same, but for MS just before it first waits for the reply
 *   valkey_client rdma|tcp HOST PORT first            reads before anything was asked
 *
 * Says "connected" and waits for a line on its standard input before it does anything else. Then what the case has to
 * say, and "done" with the number of replies and the library's error. It stays, to be looked at, until its standard
 * input ends.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <valkey/rdma.h>
#include <valkey/valkey.h>

static valkeyContext *c;
static long replies;
static long hold_up_ms; /* the scheduler's doing: so long before the next poll() of the library */

static void say(const char *text)
{
	puts(text);
	fflush(stdout);
}

static void pause_ms(long ms)
{
	struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	while (nanosleep(&ts, &ts))
		;
}

/* The end of the input, or of a line of it. */
static void hold(int line)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		if (line && byte == '\n')
			break;
}

/* libvalkey's poll() goes through here. */
int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	static int (*next)(struct pollfd *, nfds_t, int);
	long ms = hold_up_ms;

	if (!next)
		next = (int (*)(struct pollfd *, nfds_t, int))dlsym(RTLD_NEXT, "poll");
	hold_up_ms = 0;
	if (ms)
		pause_ms(ms);
	return next(fds, n, timeout);
}

/* Everything appended so far, as far as it goes. */
static int flush(void)
{
	int done = 0;

	while (!done)
		if (valkeyBufferWrite(c, &done) != VALKEY_OK)
			return 0;
	return 1;
}

static valkeyReply *take(void)
{
	void *r = NULL;

	if (valkeyGetReply(c, &r) != VALKEY_OK)
		return NULL;
	replies++;
	return r;
}

static int ping(void)
{
	valkeyReply *r = valkeyCommand(c, "PING");
	int ok = r && r->type == VALKEY_REPLY_STATUS;

	replies += ok;
	freeReplyObject(r);
	return ok;
}

/* Slow enough for completions to be seen between two writes: what is tested is the receiver. */
static long write_each(long n)
{
	long i;

	for (i = 0; i < n; i++) {
		valkeyAppendCommand(c, "INCR trap");
		if (!flush())
			break;
		if (i % 64 == 63)
			pause_ms(1);
	}
	return i;
}

static void run_tiny(long n)
{
	long sent = write_each(n), i;
	valkeyReply *r;

	printf("sent %ld\n", sent);
	fflush(stdout);
	for (i = 0; i < sent; i++) {
		r = take();
		if (!r)
			break;
		freeReplyObject(r);
	}
}

static void run_sleepy(long ms)
{
	ping();
	say("asleep");
	pause_ms(ms);
	ping();
}

static void run_subscribe(long n)
{
	valkeyReply *r = valkeyCommand(c, "SUBSCRIBE trap");

	freeReplyObject(r);
	if (!r)
		return;
	say("subscribed");
	hold(1);
	while (replies < n) {
		r = take();
		if (!r)
			break;
		freeReplyObject(r);
	}
}

static void run_event(void)
{
	struct pollfd f = {.fd = c->fd, .events = POLLIN};
	static const char half[] = "*2\r\n$4\r\nECHO\r\n$3\r\nab";
	int n;

	ping();
	valkeyAppendCommand(c, "PING");
	flush();
	pause_ms(300); /* the reply has come */
	valkeyAppendFormattedCommand(c, half, sizeof(half) - 1);
	flush();
	n = poll(&f, 1, 1000); /* a keepalive, each 3 s, would be an event too */
	printf("readable %d\n", n > 0);
	fflush(stdout);
	freeReplyObject(take());
}

static void run_fetch(const char *key, long ms, int held)
{
	valkeyReply *r;

	valkeyAppendCommand(c, "GET %s", key);
	valkeyAppendCommand(c, "QUIT");
	if (!flush())
		return;
	say("asked");
	if (held)
		hold_up_ms = ms;
	else
		pause_ms(ms);
	r = take();
	printf("fetched %zu\n", r ? r->len : 0);
	fflush(stdout);
	freeReplyObject(r);
}

static void run_slow(const char *key, long n)
{
	struct pollfd f = {.fd = c->fd, .events = POLLIN};
	uint64_t sum = 0;
	valkeyReply *r;
	size_t at;
	void *got;
	long i;

	for (i = 0; i < n; i++) {
		valkeyAppendCommand(c, "GET %s", key);
		if (!flush())
			return;
		for (got = NULL; !got;) {
			poll(&f, 1, 5);
			pause_ms(1);
			if (valkeyBufferRead(c) != VALKEY_OK || valkeyGetReplyFromReader(c, &got) != VALKEY_OK)
				return;
		}
		r = got;
		replies++;
		for (at = 0; at < r->len; at++)
			sum = sum * 31 + (unsigned char)r->str[at];
		freeReplyObject(r);
	}
	printf("sum %016llx\n", (unsigned long long)sum);
	fflush(stdout);
}

static void run_first(void)
{
	valkeyReply *r = take();

	printf("first %s\n", r && r->str ? r->str : "nothing");
	fflush(stdout);
	freeReplyObject(r);
}

static int open_connection(int rdma, const char *host, int port)
{
	static int initiated;
	struct timeval limit = {.tv_sec = 10};
	valkeyOptions o = {0};

	if (rdma) {
		if (!initiated && valkeyInitiateRdma() != VALKEY_OK)
			return 0;
		initiated = 1;
		VALKEY_OPTIONS_SET_RDMA(&o, host, port);
	} else {
		VALKEY_OPTIONS_SET_TCP(&o, host, port);
	}
	o.connect_timeout = &limit;
	o.command_timeout = &limit;
	c = valkeyConnectWithOptions(&o);
	return c && !c->err;
}

static void run_burst(int rdma, const char *host, int port, long n)
{
	long i;

	for (i = 0; i < n; i++) {
		valkeyAppendCommand(c, "INCR trap");
		flush();
		valkeyFree(c);
		if (!open_connection(rdma, host, port))
			break;
	}
	printf("sent %ld\n", i);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	const char *what = argc > 4 ? argv[4] : "", *word = argc > 5 ? argv[5] : "";
	long n = atol(word), m = argc > 6 ? atol(argv[6]) : 0;

	if (argc < 5)
		return 2;
	if (!open_connection(!strcmp(argv[1], "rdma"), argv[2], atoi(argv[3]))) {
		printf("refused %s\n", c ? c->errstr : "");
		return 1;
	}
	say("connected");
	hold(1);
	if (!strcmp(what, "tiny"))
		run_tiny(n);
	else if (!strcmp(what, "sleepy"))
		run_sleepy(n);
	else if (!strcmp(what, "subscribe"))
		run_subscribe(n);
	else if (!strcmp(what, "leave"))
		printf("sent %ld\n", write_each(n));
	else if (!strcmp(what, "burst"))
		run_burst(!strcmp(argv[1], "rdma"), argv[2], atoi(argv[3]), n);
	else if (!strcmp(what, "event"))
		run_event();
	else if (!strcmp(what, "fetch") || !strcmp(what, "held"))
		run_fetch(word, m, !strcmp(what, "held"));
	else if (!strcmp(what, "slow"))
		run_slow(word, m);
	else if (!strcmp(what, "first"))
		run_first();
	else
		return 2;
	if (!strcmp(what, "leave")) {
		valkeyFree(c);
		c = NULL;
	}
	printf("done %ld %s\n", replies, c && c->err ? (*c->errstr ? c->errstr : "an error without words") : "ok");
	fflush(stdout);
	hold(0);
	return 0;
}

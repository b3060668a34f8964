/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connections one after another, small and bulk, with a program that takes errors as they come: what arrives is what
 * was sent, and in the end no descriptor and no memory is left over, whatever has failed.
 */
#include "conf.h"

#include <malloc.h>

#define ROUNDS      60 /* a phase */
#define SMALL       6000
#define BULK        400000
#define SLACK_FDS   12
#define SLACK_BYTES 65536

static int lost, lacked, done;

static bool known(int err)
{
	bool lack = err == ENOMEM || err == ENOBUFS || err == EMFILE || err == ENFILE;
	bool loss = err == ECONNRESET || err == EPIPE || err == ETIMEDOUT || err == ENOTCONN;

	lacked += lack;
	lost += loss;
	return lack || loss;
}

struct flow {
	int fd;
	size_t n;
	uint32_t seed;
};

/* True: all went, or the connection is lost in a way that a program may be told of. */
static void *write_flow(void *arg)
{
	static __thread char buf[BULK];
	struct flow *f = arg;
	size_t at = 0;
	ssize_t k;

	conf_fill(buf, f->n, f->seed, 0);
	while (at < f->n) {
		k = send(f->fd, buf + at, f->n - at, MSG_NOSIGNAL);
		if (k < 0) {
			if (!known(errno))
				conf_fail(CONF_WHERE, "send: %s", strerrorname_np(errno));
			shutdown(f->fd, SHUT_RDWR); /* the reader need not wait */
			return NULL;
		}
		at += (size_t)k;
	}
	return f;
}

static bool read_flow(int fd, size_t n, uint32_t seed)
{
	static char buf[BULK];
	size_t at = 0;
	ssize_t k;

	while (at < n) {
		k = recv(fd, buf + at, n - at, 0);
		if (k < 0 && !known(errno))
			conf_fail(CONF_WHERE, "recv: %s", strerrorname_np(errno));
		if (k <= 0) {
			lost += k == 0;
			return false;
		}
		CONF_VERIFY(buf + at, (size_t)k, seed, at);
		at += (size_t)k;
	}
	return true;
}

static bool flow(int from, int to, size_t n, uint32_t seed)
{
	struct flow f = {from, n, seed};
	struct conf_thread t;
	bool ok;

	conf_thread_start(&t, write_flow, &f);
	ok = read_flow(to, n, seed);
	if (!ok)
		shutdown(to, SHUT_RDWR);
	return conf_thread_join(&t) && ok;
}

static void round_of(int l, uint32_t seed)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	int a = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), b;
	size_t n = seed % 8 ? SMALL : BULK;

	if (connect(a, (struct sockaddr *)&ss, len) < 0) {
		CONF_TRUE(known(errno));
		CONF_OK(close(a));
		return;
	}
	b = accept(l, NULL, NULL);
	if (b < 0) {
		CONF_TRUE(known(errno));
		CONF_OK(close(a)); /* the connection waits in the queue: it is taken and dropped */
		b = accept(l, NULL, NULL);
		if (b >= 0)
			CONF_OK(close(b));
		return;
	}
	if (flow(a, b, n, seed) && flow(b, a, n, seed + 1))
		done++;
	conf_close2(a, b);
}

CONF_TEST(CONF_TCP_TOO | CONF_LONG)
{
	int fds = 0, l;
	size_t bytes = 0;

	for (uint32_t i = 0; i < 4 * ROUNDS; i++) {
		if (i == 2 * ROUNDS) { /* pools and queues have their size */
			fds = conf_count_fds();
			bytes = mallinfo2().uordblks;
		}
		conf_note("round %u, %d lost, %d lacked, %d done", i, lost, lacked, done);
		l = conf_listener(AF_INET, 8); /* one that was refused at the last is left alone for a while */
		round_of(l, 1 + 2 * i);
		CONF_OK(close(l));
	}
	CONF_GE(done, ROUNDS);
	CONF_UNTIL(conf_count_fds() <= fds + SLACK_FDS);
	CONF_UNTIL(mallinfo2().uordblks <= bytes + SLACK_BYTES);
	fprintf(stderr, "%d done, %d lost, %d lacked; %d descriptors, then %d; %zu bytes, then %zu\n", done, lost,
		lacked, fds, conf_count_fds(), bytes, mallinfo2().uordblks);
}

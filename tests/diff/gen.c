/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A sequence from a seed. The generator keeps a rough idea of what each slot is, so that most operations make sense;
 * one in twenty takes any slot. What the operations do in fact only the worker knows.
 */
#include "diff.h"

#include <string.h>

enum what { NOTHING, STREAM, LISTENER, SET };

struct gen {
	uint64_t state;
	struct diff_script *s;
	uint8_t what[DIFF_SLOTS];
	bool nonblock[DIFF_SLOTS];
	int waiting; /* connections that nobody has accepted */
};

static uint32_t next(struct gen *g)
{
	g->state ^= g->state >> 12;
	g->state ^= g->state << 25;
	g->state ^= g->state >> 27;
	return (uint32_t)((g->state * 0x2545F4914F6CDD1Dull) >> 32);
}

static uint32_t below(struct gen *g, uint32_t n)
{
	return next(g) % n;
}

static bool chance(struct gen *g, uint32_t percent)
{
	return below(g, 100) < percent;
}

/* A slot of the kind, or (rarely, or where there is none) any. */
static uint8_t slot(struct gen *g, enum what kind)
{
	uint8_t found[DIFF_SLOTS];
	uint32_t n = 0, first = kind == SET ? DIFF_SOCKETS : 0, last = kind == SET ? DIFF_SLOTS : DIFF_SOCKETS;

	for (uint32_t i = first; i < last; i++)
		if (g->what[i] == kind)
			found[n++] = (uint8_t)i;
	if (n && (kind == NOTHING || !chance(g, 3)))
		return found[below(g, n)];
	return (uint8_t)(chance(g, 90) ? first + below(g, last - first) : below(g, DIFF_SLOTS));
}

static struct diff_op *add(struct gen *g, enum diff_kind kind)
{
	struct diff_op *op = &g->s->op[g->s->n++];

	memset(op, 0, sizeof(*op));
	op->kind = (uint8_t)kind;
	return op;
}

static void made(struct gen *g, uint8_t slot, enum what what, bool nonblock)
{
	g->what[slot] = (uint8_t)what;
	g->nonblock[slot] = nonblock;
}

static uint8_t some_thread(struct gen *g)
{
	return (uint8_t)(1 + below(g, DIFF_THREADS));
}

static int32_t size(struct gen *g)
{
	switch (below(g, 8)) {
	case 0:
		return 0;
	case 1:
	case 2:
		return 1 + (int32_t)below(g, 4);
	case 3:
		return 1 + (int32_t)below(g, 6000);
	default:
		return 1 + (int32_t)below(g, 300);
	}
}

static void gen_pair(struct gen *g)
{
	uint8_t a = slot(g, NOTHING), b = slot(g, NOTHING);
	struct diff_op *op;

	if (a == b || a >= DIFF_SOCKETS || b >= DIFF_SOCKETS || g->what[a] || g->what[b])
		return;
	op = add(g, DIFF_PAIR);
	op->a = a;
	op->b = b;
	made(g, a, STREAM, false);
	made(g, b, STREAM, false);
}

static void gen_connect(struct gen *g)
{
	uint8_t a = slot(g, NOTHING), b = slot(g, LISTENER);
	struct diff_op *op;

	if (g->what[a] || a >= DIFF_SOCKETS || g->waiting > 5)
		return;
	op = add(g, chance(g, 60) ? DIFF_CONNECT : DIFF_DIAL);
	if (op->kind == DIFF_DIAL)
		op->thread = some_thread(g);
	else
		op->n = chance(g, 40);
	op->a = a;
	op->b = b;
	made(g, a, STREAM, op->kind == DIFF_CONNECT && !op->n);
	g->waiting++;
}

static void gen_accept(struct gen *g)
{
	static const uint32_t flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
	uint8_t a = slot(g, NOTHING), b = slot(g, LISTENER);
	struct diff_op *op;

	if (g->what[a] || a >= DIFF_SOCKETS)
		return;
	op = add(g, DIFF_ACCEPT);
	op->a = a;
	op->b = b;
	op->flags = flags[below(g, 4)];
	op->thread = (uint8_t)(g->nonblock[b] && chance(g, 50) ? 0 : some_thread(g));
	made(g, a, STREAM, op->flags & SOCK_NONBLOCK);
	g->waiting -= g->waiting > 0;
}

static void gen_write(struct gen *g)
{
	static const uint8_t kinds[] = {DIFF_SEND, DIFF_WRITE, DIFF_WRITEV, DIFF_SENDMSG, DIFF_SENDMMSG};
	struct diff_op *op = add(g, kinds[below(g, DIFF_ARRAY_SIZE(kinds))]);

	op->a = slot(g, STREAM);
	op->n = size(g);
	op->thread = (uint8_t)(chance(g, 25) ? some_thread(g) : 0);
	if (strchr(diff_calls[op->kind].args, 'm'))
		op->flags = (chance(g, 40) ? MSG_NOSIGNAL : 0u) | (chance(g, 30) ? MSG_DONTWAIT : 0u);
}

static void gen_read(struct gen *g)
{
	static const uint8_t kinds[] = {DIFF_RECV, DIFF_RECV, DIFF_READ, DIFF_READV, DIFF_RECVMSG, DIFF_RECVMMSG};
	struct diff_op *op = add(g, kinds[below(g, DIFF_ARRAY_SIZE(kinds))]);
	bool flags = strchr(diff_calls[op->kind].args, 'm');

	op->a = slot(g, STREAM);
	op->n = chance(g, 50) ? 8000 : size(g);
	op->thread = (uint8_t)(chance(g, 45) ? some_thread(g) : 0);
	if (!flags)
		return;
	op->flags =
	    (chance(g, 20) ? MSG_PEEK : 0u) | (chance(g, 15) ? MSG_WAITALL : 0u) | (chance(g, 10) ? MSG_TRUNC : 0u);
	if (!op->thread && !g->nonblock[op->a])
		op->flags |= MSG_DONTWAIT;
	if (op->kind == DIFF_RECVMMSG && chance(g, 60))
		op->flags |= MSG_WAITFORONE;
}

static uint32_t events(struct gen *g, bool epoll)
{
	static const uint32_t common[] = {EPOLLIN,
					  EPOLLIN,
					  EPOLLOUT,
					  EPOLLIN | EPOLLOUT,
					  EPOLLIN | EPOLLRDHUP,
					  EPOLLIN | EPOLLOUT | EPOLLRDHUP,
					  0,
					  EPOLLRDNORM,
					  EPOLLWRNORM,
					  EPOLLRDHUP};
	uint32_t v = common[below(g, DIFF_ARRAY_SIZE(common))];

	if (!epoll)
		return v;
	return v | (chance(g, 35) ? (uint32_t)EPOLLET : 0u) | (chance(g, 20) ? (uint32_t)EPOLLONESHOT : 0u);
}

static void gen_epoll(struct gen *g)
{
	static const uint8_t kinds[] = {DIFF_ADD, DIFF_ADD, DIFF_ADD, DIFF_MOD, DIFF_MOD, DIFF_DEL};
	struct diff_op *op = add(g, kinds[below(g, DIFF_ARRAY_SIZE(kinds))]);

	op->a = slot(g, SET);
	op->b = slot(g, chance(g, 80) ? STREAM : chance(g, 70) ? LISTENER : SET);
	op->flags = events(g, true);
	if (op->kind == DIFF_ADD && chance(g, 6))
		op->flags |= EPOLLEXCLUSIVE;
}

static void gen_wait(struct gen *g)
{
	static const uint8_t kinds[] = {DIFF_EPWAIT, DIFF_EPWAIT, DIFF_EPWAIT,   DIFF_EPSLEEP,   DIFF_EPSLEEP,
					DIFF_POLL,   DIFF_SELECT, DIFF_WAITPOLL, DIFF_WAITSELECT};
	struct diff_op *op = add(g, kinds[below(g, DIFF_ARRAY_SIZE(kinds))]);
	bool set = op->kind == DIFF_EPWAIT || op->kind == DIFF_EPSLEEP;

	op->a = slot(g, set ? SET : STREAM);
	op->b = slot(g, chance(g, 70) ? STREAM : chance(g, 50) ? LISTENER : SET);
	op->flags = events(g, false);
	if (diff_calls[op->kind].sleeps || chance(g, 15))
		op->thread = some_thread(g);
}

static void gen_end(struct gen *g)
{
	struct diff_op *op;
	uint8_t a;

	if (chance(g, 45)) {
		op = add(g, DIFF_SHUTDOWN);
		op->a = slot(g, chance(g, 92) ? STREAM : LISTENER);
		op->n = (int32_t)(chance(g, 4) ? 3 : below(g, 3));
		return;
	}
	if (chance(g, 20)) {
		op = add(g, DIFF_LINGER);
		op->a = slot(g, STREAM);
		op->n = chance(g, 70) ? 0 : -1;
		return;
	}
	a = slot(g, chance(g, 85) ? STREAM : chance(g, 60) ? LISTENER : SET);
	op = add(g, DIFF_CLOSE);
	op->a = a;
	made(g, a, NOTHING, false);
}

static void gen_dup(struct gen *g)
{
	struct diff_op *op;
	uint8_t from = slot(g, chance(g, 85) ? STREAM : chance(g, 50) ? LISTENER : SET), to = slot(g, NOTHING);
	bool over = chance(g, 30);

	if (over && chance(g, 30))
		to = slot(g, STREAM);
	if ((from < DIFF_SOCKETS) != (to < DIFF_SOCKETS) || (!over && g->what[to]))
		return;
	op = add(g, over ? DIFF_DUP2 : DIFF_DUP);
	op->a = to;
	op->b = from;
	made(g, to, g->what[from], g->nonblock[from]);
}

static void gen_other(struct gen *g)
{
	static const uint8_t kinds[] = {DIFF_NONBLOCK, DIFF_NONBLOCK, DIFF_NONBLOCK, DIFF_ERROR,    DIFF_ERROR,
					DIFF_SETOPT,   DIFF_GETOPT,   DIFF_SOCKNAME, DIFF_PEERNAME, DIFF_PEERNAME,
					DIFF_RELISTEN, DIFF_REBIND,   DIFF_RECONNECT};
	struct diff_op *op = add(g, kinds[below(g, DIFF_ARRAY_SIZE(kinds))]);

	op->a = slot(g, chance(g, 85) ? STREAM : LISTENER);
	op->b = slot(g, LISTENER);
	switch (op->kind) {
	case DIFF_NONBLOCK:
		op->n = (int32_t)below(g, 2);
		g->nonblock[op->a] = op->n;
		break;
	case DIFF_RELISTEN:
		op->n = 16;
		break;
	case DIFF_SETOPT:
	case DIFF_GETOPT:
		op->n = (int32_t)below(g, (uint32_t)diff_option_count);
		break;
	default:
		break;
	}
}

static void gen_big(struct gen *g)
{
	struct diff_op *op;
	uint8_t a = slot(g, STREAM);

	op = add(g, chance(g, 70) ? DIFF_FILL : DIFF_BIGSEND);
	op->a = a;
	if (op->kind == DIFF_BIGSEND)
		op->thread = some_thread(g);
}

static void gen_drain(struct gen *g)
{
	add(g, DIFF_DRAIN)->a = slot(g, STREAM);
}

static void gen_listen(struct gen *g)
{
	uint8_t a = slot(g, NOTHING);
	struct diff_op *op;

	if (g->what[a] || a >= DIFF_SOCKETS)
		return;
	op = add(g, DIFF_LISTEN);
	op->a = a;
	op->n = 16;
	made(g, a, LISTENER, false);
	if (!chance(g, 50))
		return;
	op = add(g, DIFF_NONBLOCK);
	op->a = a;
	op->n = 1;
	g->nonblock[a] = true;
}

static void gen_set(struct gen *g)
{
	uint8_t a = slot(g, SET);

	for (uint8_t i = DIFF_SOCKETS; i < DIFF_SLOTS && g->what[a]; i++)
		a = i;
	if (a < DIFF_SOCKETS || g->what[a])
		return;
	add(g, DIFF_SET)->a = a;
	made(g, a, SET, false);
}

static const struct {
	uint32_t weight;
	void (*make)(struct gen *g);
} makers[] = {
    {4, gen_pair},  {3, gen_listen}, {5, gen_connect}, {5, gen_accept}, {18, gen_write},
    {16, gen_read}, {14, gen_epoll}, {20, gen_wait},   {9, gen_end},    {4, gen_dup},
    {8, gen_other}, {1, gen_big},    {3, gen_drain},   {2, gen_set},
};

/* Ends with a look at everything, in a fixed order. */
static void gen_finish(struct gen *g)
{
	for (uint8_t i = DIFF_SOCKETS; i < DIFF_SLOTS; i++)
		if (g->what[i])
			add(g, DIFF_EPWAIT)->a = i;
	for (uint8_t i = 0; i < DIFF_SOCKETS; i++)
		if (g->what[i])
			add(g, DIFF_DRAIN)->a = i;
	for (uint8_t i = DIFF_SOCKETS; i < DIFF_SLOTS; i++)
		if (g->what[i])
			add(g, DIFF_EPWAIT)->a = i;
}

void diff_generate(uint64_t seed, struct diff_script *s)
{
	struct gen g = {.state = (seed + 1) * 0x9E3779B97F4A7C15ull | 1, .s = s};
	uint32_t total = 0, pick, i;
	int length;

	memset(s, 0, sizeof(*s));
	s->seed = seed;
	for (i = 0; i < 8; i++)
		next(&g);
	length = 6 + (int)below(&g, chance(&g, 30) ? 50 : 20);
	for (i = 0; i < DIFF_ARRAY_SIZE(makers); i++)
		total += makers[i].weight;
	gen_pair(&g);
	if (chance(&g, 80))
		gen_set(&g);
	if (chance(&g, 40))
		gen_listen(&g);
	while (s->n < length) {
		pick = below(&g, total);
		for (i = 0; pick >= makers[i].weight; i++)
			pick -= makers[i].weight;
		makers[i].make(&g);
	}
	gen_finish(&g);
}

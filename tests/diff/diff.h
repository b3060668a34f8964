/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The differential tester: random sequences of socket calls, run on kernel TCP and carried, and compared.
 *
 *	driver (main.c)        makes a sequence from a seed (gen.c), gives it to two workers, compares what they answer,
 *	                       and shrinks a sequence that differs
 *	worker (worker.c ...)  the same program started again, natively or with the library preloaded; both ends of
 *every connection are in it
 *
 * What makes two runs comparable: after each operation the worker waits for a quiescent point. Natively that is when
 * every helper thread has ended its call or sleeps in it and two looks at all sockets show the same. Carried it is when
 * they show what they showed natively; where that does not come about within a bound, the state that did is the
 * difference. See README.md.
 */
#ifndef VKR_DIFF_H
#define VKR_DIFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define DIFF_SOCKETS 8 /* slots s0..s7 */
#define DIFF_SETS    3 /* slots e0..e2 follow them */
#define DIFF_SLOTS   (DIFF_SOCKETS + DIFF_SETS)
#define DIFF_THREADS 3 /* t1..t3: those that may sleep in a call */
#define DIFF_MAX_OPS 96
#define DIFF_TEXT    (96 * 1024)

#define DIFF_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Sent and not read, at most, unless by `fill`: below what either transport takes without a reader. */
#define DIFF_OUTSTANDING 12000
/* `big` sends this many bytes: more than either transport's buffers take. */
#define DIFF_BIG (24 << 20)

enum diff_kind {
	DIFF_PAIR,    /* a, b: connected, a dialled */
	DIFF_LISTEN,  /* a, n backlog */
	DIFF_CONNECT, /* a to the address of the listener b, non-blocking; n: it becomes blocking afterwards */
	DIFF_DIAL,    /* a to b, blocking */
	DIFF_ACCEPT,  /* a from b; flags of accept4 */
	DIFF_CLOSE,
	DIFF_DUP,  /* a becomes a copy of b */
	DIFF_DUP2, /* the same by dup2, over whatever a is */
	DIFF_NONBLOCK,
	DIFF_SEND,
	DIFF_WRITE,
	DIFF_WRITEV,
	DIFF_SENDMSG,
	DIFF_SENDMMSG,
	DIFF_RECV,
	DIFF_READ,
	DIFF_READV,
	DIFF_RECVMSG,
	DIFF_RECVMMSG,
	DIFF_FILL,    /* non-blocking writes until nothing goes */
	DIFF_BIGSEND, /* one blocking write that cannot end without a reader */
	DIFF_DRAIN,   /* reads away all that was written */
	DIFF_SHUTDOWN,
	DIFF_ERROR,
	DIFF_LINGER,
	DIFF_SETOPT,
	DIFF_GETOPT,
	DIFF_SOCKNAME,
	DIFF_PEERNAME,
	DIFF_RELISTEN, /* listen() on whatever a is */
	DIFF_REBIND,
	DIFF_RECONNECT, /* connect() of a to the listener b's address once more */
	DIFF_POLL,
	DIFF_SELECT,
	DIFF_WAITPOLL, /* poll of a and b without a limit */
	DIFF_WAITSELECT,
	DIFF_SET, /* epoll_create1 */
	DIFF_ADD,
	DIFF_MOD,
	DIFF_DEL,
	DIFF_EPWAIT,  /* at once */
	DIFF_EPSLEEP, /* without a limit */
	DIFF_KINDS,
};

struct diff_op {
	uint8_t kind;
	uint8_t thread; /* 0: the executor itself, for what cannot sleep */
	uint8_t a, b;
	int32_t n;
	uint32_t flags;
};

struct diff_script {
	uint64_t seed;
	int n;
	struct diff_op op[DIFF_MAX_OPS];
};

/* What each operation takes, in order: a, b slots; n number; m MSG_* flags; v events; h how; o option; l accept flags.
 */
struct diff_call {
	const char *name, *args;
	bool sleeps; /* may sleep: needs a thread of its own, or the socket's non-blocking mode */
};
extern const struct diff_call diff_calls[DIFF_KINDS];

/* script.c */
struct diff_option {
	const char *name;
	int level, option, value; /* value: what `setopt` sets */
};
extern const struct diff_option diff_options[];
extern const int diff_option_count;
void diff_slot_name(unsigned slot, char name[4]);
int diff_op_print(const struct diff_op *op, char *buf, size_t size);
bool diff_op_parse(const char *line, struct diff_op *op);
int diff_events_print(uint32_t events, char *buf, size_t size);
/* Reads a script up to a line "run"; false: a line that is none, which is reported. */
bool diff_script_read(FILE *f, struct diff_script *s);
void diff_script_print(FILE *f, const struct diff_script *s);

/* gen.c */
void diff_generate(uint64_t seed, struct diff_script *s);

/* worker.c */
int diff_worker(bool carried);

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* What worker.c (threads, quiescent points, the protocol with the driver) and calls.c (the operations) share. */
#ifndef VKR_DIFF_WORKER_H
#define VKR_DIFF_WORKER_H

#include "diff.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>

/* One end of a connection, however many slots name it. */
struct end {
	int peer;        /* index, -1 while nobody has accepted it */
	uint64_t tx, rx; /* bytes written and read here */
	bool stuffed;    /* more was written than both transports promise to take: until all of it is read */
	bool rd_shut;
	bool connecting; /* its port is not known yet */
	uint16_t port;
};

struct slot {
	int fd;   /* -1: closed */
	int last; /* the number it had, for calls on a closed number */
	enum { SLOT_NONE, SLOT_END, SLOT_LISTENER, SLOT_SET } what;
	int end; /* SLOT_END: index; others: an identity shared by copies */
	bool nonblock;
	struct sockaddr_in addr; /* LISTENER */
};

#define JOB_EVENTS 16
#define JOB_BUFFER 65536

/* A call: what it gets, and what came of it. perform() touches nothing else, so that any thread may. */
struct job {
	struct diff_op op;
	int fd, fd2;
	struct sockaddr_in addr;
	const char *out; /* what to write */
	char *in;        /* JOB_BUFFER bytes */
	long ret;
	int err, pipes; /* errno, SIGPIPEs */
	int made;       /* a new descriptor */
	uint32_t a, b;  /* events, an option's value, recvmsg's flags */
	struct epoll_event events[JOB_EVENTS];
	int end, what; /* the slot's, when the call was made */
};

enum task_state { TASK_IDLE, TASK_GIVEN, TASK_RUNNING, TASK_DONE };

struct task {
	pthread_t thread;
	_Atomic int tid;
	int stat; /* its line in /proc */
	_Atomic int state;
	struct job job;
};

struct world {
	bool carried;
	int base; /* the listener of `pair` */
	struct sockaddr_in base_addr;
	struct slot slots[DIFF_SLOTS];
	struct end ends[4 * DIFF_MAX_OPS];
	int end_count, identities, pairs;
	int index; /* of the operation */
	bool nested, torn;
	bool renumbered; /* an accept has slept: the kernel takes the new number before it does, carried it is the last
			  */
	struct task tasks[DIFF_THREADS + 1]; /* 1.. */
	char *pattern;
	char *main_in;
};

#define DIFF_PERIOD 251 /* of the bytes written: prime, so that a shift by any power of two shows */

extern __thread int diff_pipes;

static inline bool is_write(enum diff_kind kind)
{
	return (kind >= DIFF_SEND && kind <= DIFF_SENDMMSG) || kind == DIFF_BIGSEND;
}

static inline bool is_read(enum diff_kind kind)
{
	return kind >= DIFF_RECV && kind <= DIFF_RECVMMSG;
}

static inline bool is_wait(enum diff_kind kind)
{
	return kind == DIFF_WAITPOLL || kind == DIFF_WAITSELECT || kind == DIFF_EPSLEEP;
}

static inline struct end *end_of(struct world *w, const struct slot *s)
{
	return s->what == SLOT_END ? &w->ends[s->end] : NULL;
}

static inline struct end *peer_of(struct world *w, const struct end *e)
{
	return e && e->peer >= 0 ? &w->ends[e->peer] : NULL;
}

/* unfit.c: NULL, or why this operation would not be comparable now. */
const char *call_unfit(struct world *w, const struct diff_op *op);
bool call_any_stuffed(struct world *w);
/* A slot is this end. */
bool end_is_named(struct world *w, int end);

/* calls.c */
/* Where n bytes read by the end differ from what was written; n: nowhere. */
size_t call_wrong_byte(struct world *w, const struct end *e, const char *in, size_t n);
void call_prepare(struct world *w, const struct diff_op *op, struct job *job);
void call_perform(struct job *job);
/* Keeps the books; prints the result. Returns the length. */
int call_finish(struct world *w, struct job *job, char *buf, size_t size);

/* direct.c: what needs the world and is never given to a thread. True: done, printed. */
bool call_direct(struct world *w, const struct diff_op *op, char *buf, size_t size);
/* The number for a call: a closed slot's old one while nobody else has it. */
int slot_number(struct world *w, const struct slot *s);
void slot_close(struct slot *s);
void slot_take(struct slot *s, int fd, int what, int identity, bool nonblock);
int end_new(struct world *w);
uint16_t fd_port(int fd);
/* A connection that has come about since has its port only now. */
void world_learn_ports(struct world *w);

#endif

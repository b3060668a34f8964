/* SPDX-License-Identifier: BSD-2-Clause */
/* The operations: what each does, what it prints, and when it would not be comparable. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PERIOD 251 /* of the bytes written: prime, so that a shift by any power of two shows */

static bool is_write(enum diff_kind kind)
{
	return (kind >= DIFF_SEND && kind <= DIFF_SENDMMSG) || kind == DIFF_BIGSEND;
}

static bool is_read(enum diff_kind kind)
{
	return kind >= DIFF_RECV && kind <= DIFF_RECVMMSG;
}

static bool is_wait(enum diff_kind kind)
{
	return kind == DIFF_WAITPOLL || kind == DIFF_WAITSELECT || kind == DIFF_EPSLEEP;
}

static struct end *end_of(struct world *w, const struct slot *s)
{
	return s->what == SLOT_END ? &w->ends[s->end] : NULL;
}

static struct end *peer_of(struct world *w, const struct end *e)
{
	return e && e->peer >= 0 ? &w->ends[e->peer] : NULL;
}

/* The number for a call: a closed slot's old one while nobody else has it. */
static int number(const struct slot *s)
{
	if (s->fd >= 0)
		return s->fd;
	return s->last >= 0 && syscall(SYS_fcntl, s->last, F_GETFD) < 0 ? s->last : -1;
}

void slot_close(struct slot *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->last = s->fd;
	s->fd = -1;
	s->what = SLOT_NONE;
	s->end = -1;
}

static void slot_take(struct slot *s, int fd, int what, int identity, bool nonblock)
{
	*s = (struct slot){.fd = fd, .last = fd, .what = what, .end = identity, .nonblock = nonblock};
}

static int end_new(struct world *w)
{
	struct end *e = &w->ends[w->end_count];

	memset(e, 0, sizeof(*e));
	e->peer = -1;
	return w->end_count++;
}

static uint16_t local_port(int fd)
{
	struct sockaddr_in sa = {0};
	socklen_t len = sizeof(sa);

	return getsockname(fd, (struct sockaddr *)&sa, &len) < 0 ? 0 : ntohs(sa.sin_port);
}

/* A connection that has come about since has its port only now. */
void world_learn_ports(struct world *w)
{
	struct sockaddr_in sa;
	socklen_t len;

	for (int i = 0; i < DIFF_SOCKETS; i++) {
		struct end *e = end_of(w, &w->slots[i]);

		len = sizeof(sa);
		if (!e || !e->connecting || getpeername(w->slots[i].fd, (struct sockaddr *)&sa, &len) < 0)
			continue;
		e->port = local_port(w->slots[i].fd);
		e->connecting = false;
	}
}

/* ------------------------------------------------------------------ comparable? */

/* Of the pending calls: any that satisfies. */
static bool pending(struct world *w, bool (*is)(enum diff_kind kind), int what, int end)
{
	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;

		if (atomic_load(&w->tasks[i].state) != TASK_IDLE && is((enum diff_kind)job->op.kind) &&
		    (what < 0 || (job->what == what && job->end == end)))
			return true;
	}
	return false;
}

static bool is_consumer(enum diff_kind kind)
{
	return is_read(kind) || kind == DIFF_ACCEPT || kind == DIFF_DIAL || kind == DIFF_BIGSEND;
}

static bool is_any(enum diff_kind kind)
{
	return true;
}

static bool is_accept(enum diff_kind kind)
{
	return kind == DIFF_ACCEPT;
}

static bool is_sleep(enum diff_kind kind)
{
	return kind == DIFF_EPSLEEP;
}

static bool is_bigsend(enum diff_kind kind)
{
	return kind == DIFF_BIGSEND;
}

bool call_any_stuffed(struct world *w)
{
	for (int i = 0; i < w->end_count; i++)
		if (w->ends[i].stuffed)
			return true;
	return false;
}

/* The kernel's poll looks a number up again at each turn, and says NVAL; docs/semantics.md, "Signals and threads". */
static bool polled(struct world *w, int fd)
{
	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;

		if (atomic_load(&w->tasks[i].state) != TASK_IDLE && (job->fd == fd || job->fd2 == fd) &&
		    (job->op.kind == DIFF_WAITPOLL || job->op.kind == DIFF_WAITSELECT))
			return true;
	}
	return false;
}

/* Over a network the answer to late bytes comes some time after them: between two messages, or behind both. */
static bool peer_gone(const struct slot *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLRDHUP};

	return poll(&p, 1, 0) > 0;
}

static bool is_over(const struct slot *s)
{
	struct pollfd p = {.fd = s->fd};

	return poll(&p, 1, 0) > 0 && p.revents & POLLHUP;
}

static const char *write_unfit(struct world *w, const struct diff_op *op, const struct slot *s, struct end *e)
{
	struct end *peer = peer_of(w, e);
	uint64_t there = peer ? peer->rx : 0;

	if (pending(w, is_bigsend, s->what, s->end))
		return "another writes";
	if (op->kind == DIFF_FILL && pending(w, is_any, -1, 0))
		return "others may act between two writes";
	if (op->kind == DIFF_BIGSEND || op->kind == DIFF_FILL)
		return e->stuffed || s->nonblock || !peer || peer->rd_shut ? "no" : NULL;
	if (op->kind == DIFF_SENDMMSG && (peer_gone(s) || (peer && peer->rd_shut) || pending(w, is_any, -1, 0)))
		return "others may act between two messages";
	if (e->stuffed && !is_over(s))
		return "how much fits is the transport's own";
	if (!e->stuffed && e->tx - there + (uint64_t)op->n > DIFF_OUTSTANDING)
		return "enough is under way";
	return NULL;
}

static const char *read_unfit(struct world *w, const struct diff_op *op, const struct slot *s, struct end *e)
{
	struct end *peer = peer_of(w, e);

	if (pending(w, is_read, s->what, s->end))
		return "another reads";
	if (op->thread && op->n < 2 && op->kind != DIFF_DRAIN && !s->nonblock)
		return "one that waits for no bytes ends at any wake-up";
	if (peer && peer->stuffed && op->kind != DIFF_DRAIN)
		return "only drain";
	return NULL;
}

/*
 * Two threads that would race for the same bytes, connection or event have no result that could be compared: there may
 * be any number of waiting calls, or of consuming ones on different sockets. A call of thread 0 must not sleep.
 */
const char *call_unfit(struct world *w, const struct diff_op *op)
{
	const struct slot *s = &w->slots[op->a], *b = &w->slots[op->b];
	struct end *e = end_of(w, s);
	bool sleeps = diff_calls[op->kind].sleeps;
	const char *why = NULL;

	if (op->thread && atomic_load(&w->tasks[op->thread].state) != TASK_IDLE)
		return "busy";
	if ((is_wait((enum diff_kind)op->kind) || op->kind == DIFF_EPWAIT || op->kind == DIFF_POLL ||
	     op->kind == DIFF_SELECT) &&
	    call_any_stuffed(w))
		return "OUT is the transport's own now";
	if (op->kind == DIFF_ACCEPT) {
		if (s->fd >= 0)
			return "slot in use";
		if (pending(w, is_accept, b->what, b->end))
			return "another accepts";
		sleeps = b->what == SLOT_LISTENER && !b->nonblock;
	} else if (is_read((enum diff_kind)op->kind)) {
		sleeps = s->fd >= 0 && !s->nonblock && !(op->flags & MSG_DONTWAIT);
	}
	if (sleeps && !op->thread)
		return "would sleep";
	if (sleeps && is_consumer((enum diff_kind)op->kind) && pending(w, is_wait, -1, 0))
		return "others wait";
	if (is_wait((enum diff_kind)op->kind) && pending(w, is_consumer, -1, 0))
		return "others consume";
	if ((op->kind == DIFF_EPSLEEP && pending(w, is_sleep, -1, 0)) ||
	    (op->kind == DIFF_EPWAIT &&
	     (pending(w, is_sleep, s->what, s->end) || (w->nested && pending(w, is_sleep, -1, 0)))))
		return "another waits";
	if (op->kind == DIFF_SHUTDOWN && op->n != SHUT_WR && e && peer_of(w, e) && peer_of(w, e)->stuffed)
		return "only drain"; /* with its reading shut down an end that is empty for a moment says EOF */
	/* TCP lets a socket whose connection has ended be used for another: docs/semantics.md, "Making and closing". */
	if ((op->kind == DIFF_REBIND || op->kind == DIFF_RELISTEN || op->kind == DIFF_RECONNECT) && e && is_over(s))
		return "the connection has ended";
	if ((op->kind == DIFF_CLOSE || op->kind == DIFF_DUP2) && s->fd >= 0 && polled(w, s->fd))
		return "it is polled";
	if ((op->kind == DIFF_CONNECT || op->kind == DIFF_DIAL || op->kind == DIFF_RECONNECT) &&
	    b->what != SLOT_LISTENER)
		return "no listener";
	if ((op->kind == DIFF_CONNECT || op->kind == DIFF_DIAL || op->kind == DIFF_LISTEN || op->kind == DIFF_SET ||
	     op->kind == DIFF_PAIR || op->kind == DIFF_DUP) &&
	    (s->fd >= 0 || (op->kind == DIFF_PAIR && (b->fd >= 0 || op->a == op->b))))
		return "slot in use";
	if (e && (is_write((enum diff_kind)op->kind) || op->kind == DIFF_FILL))
		why = write_unfit(w, op, s, e);
	else if (!e && (op->kind == DIFF_FILL || op->kind == DIFF_BIGSEND))
		why = "no";
	if (!why && e && (is_read((enum diff_kind)op->kind) || op->kind == DIFF_DRAIN))
		why = read_unfit(w, op, s, e);
	return why;
}

/* ------------------------------------------------------------------ the call */

void call_prepare(struct world *w, const struct diff_op *op, struct job *job)
{
	struct slot *s = &w->slots[op->a], *b = &w->slots[op->b];
	struct end *e = end_of(w, s);
	char *in = job->in;

	memset(job, 0, sizeof(*job));
	job->in = in;
	job->op = *op;
	job->fd = number(s);
	job->fd2 = number(b);
	job->addr = b->addr;
	job->out = w->pattern + (e ? e->tx % PERIOD : 0);
	job->made = op->kind == DIFF_ADD || op->kind == DIFF_MOD ? w->index : -1; /* the event's data */
	job->end = op->kind == DIFF_ACCEPT ? b->end : s->end;
	job->what = (int)(op->kind == DIFF_ACCEPT ? b->what : s->what);
	if (op->kind == DIFF_BIGSEND && e)
		e->stuffed = true;
}

static long vector(const struct job *job, bool out)
{
	char *base = out ? (char *)job->out : job->in;
	size_t n = (size_t)job->op.n, first = n / 3;
	struct iovec iov[3] = {{base, first}, {base + first, 0}, {base + first, n - first}};
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 3};
	struct mmsghdr mm[2] = {{.msg_hdr = {.msg_iov = iov, .msg_iovlen = 2}},
				{.msg_hdr = {.msg_iov = iov + 2, .msg_iovlen = 1}}};
	int flags = (int)job->op.flags;
	long r;

	switch (job->op.kind) {
	case DIFF_WRITEV:
		return writev(job->fd, iov, 3);
	case DIFF_READV:
		return readv(job->fd, iov, 3);
	case DIFF_SENDMSG:
		return sendmsg(job->fd, &m, flags);
	case DIFF_RECVMSG:
		r = recvmsg(job->fd, &m, flags);
		((struct job *)job)->a = (uint32_t)m.msg_flags;
		return r;
	case DIFF_SENDMMSG:
		r = sendmmsg(job->fd, mm, 2, flags);
		break;
	default:
		mm[0].msg_hdr.msg_iov = &(struct iovec){base, n / 2};
		mm[0].msg_hdr.msg_iovlen = 1;
		mm[1].msg_hdr.msg_iov = &(struct iovec){base + n / 2, n - n / 2};
		r = recvmmsg(job->fd, mm, 2, flags, NULL);
		if (r > 1) /* in one piece */
			memmove(base + mm[0].msg_len, base + n / 2, mm[1].msg_len);
	}
	((struct job *)job)->a = (uint32_t)(r > 0 ? r : 0);
	return r <= 0 ? r : (long)mm[0].msg_len + (r > 1 ? (long)mm[1].msg_len : 0);
}

static long do_select(struct job *job, bool wait)
{
	fd_set r, w, x;
	struct timeval now = {0};
	int fds[2] = {job->fd, wait ? job->fd2 : -1}, top = -1;
	long n;

	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_ZERO(&x);
	for (int i = 0; i < 2; i++) {
		if (fds[i] < 0 || fds[i] >= FD_SETSIZE)
			continue;
		FD_SET(fds[i], &r);
		if (!wait)
			FD_SET(fds[i], &w);
		FD_SET(fds[i], &x);
		top = fds[i] > top ? fds[i] : top;
	}
	if (top < 0)
		return 0; /* would sleep for ever */
	n = select(top + 1, &r, &w, &x, wait ? NULL : &now);
	for (int i = 0; n > 0 && i < 2; i++) {
		if (fds[i] < 0)
			continue;
		*(i ? &job->b : &job->a) =
		    (FD_ISSET(fds[i], &r) ? 1u : 0) | (FD_ISSET(fds[i], &w) ? 4u : 0) | (FD_ISSET(fds[i], &x) ? 2u : 0);
	}
	return n;
}

static long do_poll(struct job *job)
{
	bool wait = job->op.kind == DIFF_WAITPOLL;
	struct pollfd p[2] = {{.fd = job->fd, .events = (short)job->op.flags},
			      {.fd = job->fd2, .events = (short)job->op.flags}};
	long n = poll(p, wait ? 2 : 1, wait ? -1 : 0);

	job->a = (uint32_t)p[0].revents;
	job->b = (uint32_t)p[1].revents;
	return n;
}

static long do_dial(struct job *job)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	long r;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	r = connect(fd, (struct sockaddr *)&job->addr, sizeof(job->addr));
	job->made = fd;
	return r;
}

static long do_accept(struct job *job)
{
	socklen_t len = sizeof(job->addr);
	int fl;

	memset(&job->addr, 0, sizeof(job->addr));
	job->made = accept4(job->fd2, (struct sockaddr *)&job->addr, &len, (int)job->op.flags);
	if (job->made < 0)
		return -1;
	fl = fcntl(job->made, F_GETFL);
	job->a = (fl & O_NONBLOCK ? 1u : 0) | (fcntl(job->made, F_GETFD) & FD_CLOEXEC ? 2u : 0);
	job->b = len;
	return 0;
}

static long ep_ctl(struct job *job, int how, int index)
{
	struct epoll_event ev = {.events = job->op.flags, .data.u64 = (uint64_t)index << 8 | job->op.b};

	return epoll_ctl(job->fd, how, job->fd2, &ev);
}

static long option(struct job *job)
{
	const struct diff_option *o = &diff_options[job->op.n];
	int value = o->value;
	socklen_t len = sizeof(value);
	long r;

	if (job->op.kind == DIFF_SETOPT)
		return setsockopt(job->fd, o->level, o->option, &value, len);
	value = 0;
	r = getsockopt(job->fd, o->level, o->option, &value, &len);
	job->a = (uint32_t)value;
	job->b = len;
	return r;
}

static long ask(struct job *job)
{
	struct linger l = {job->op.n >= 0, job->op.n > 0 ? job->op.n : 0};
	socklen_t len = sizeof(int);
	int flags, value = 0;
	long r;

	switch (job->op.kind) {
	case DIFF_NONBLOCK:
		flags = fcntl(job->fd, F_GETFL);
		return flags < 0 ? -1 : fcntl(job->fd, F_SETFL, job->op.n ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
	case DIFF_SHUTDOWN:
		return shutdown(job->fd, job->op.n);
	case DIFF_ERROR:
		r = getsockopt(job->fd, SOL_SOCKET, SO_ERROR, &value, &len);
		job->a = (uint32_t)value;
		return r;
	case DIFF_LINGER:
		return setsockopt(job->fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	case DIFF_SETOPT:
	case DIFF_GETOPT:
		return option(job);
	case DIFF_RELISTEN:
		return listen(job->fd, job->op.n);
	case DIFF_REBIND:
		job->addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		return bind(job->fd, (struct sockaddr *)&job->addr, sizeof(job->addr));
	case DIFF_RECONNECT:
		return connect(job->fd, (struct sockaddr *)&job->addr, sizeof(job->addr));
	default:
		len = sizeof(job->addr);
		memset(&job->addr, 0, sizeof(job->addr));
		r = job->op.kind == DIFF_SOCKNAME ? getsockname(job->fd, (struct sockaddr *)&job->addr, &len)
						  : getpeername(job->fd, (struct sockaddr *)&job->addr, &len);
		job->b = len;
		return r;
	}
}

static long perform(struct job *job)
{
	const struct diff_op *op = &job->op;
	size_t n = (size_t)op->n;

	switch (op->kind) {
	case DIFF_SEND:
		return send(job->fd, job->out, n, (int)op->flags);
	case DIFF_BIGSEND:
		return send(job->fd, job->out, DIFF_BIG, 0);
	case DIFF_WRITE:
		return write(job->fd, job->out, n);
	case DIFF_WRITEV:
	case DIFF_SENDMSG:
	case DIFF_SENDMMSG:
		return vector(job, true);
	case DIFF_RECV:
		return recv(job->fd, job->in, n, (int)op->flags);
	case DIFF_READ:
		return read(job->fd, job->in, n);
	case DIFF_READV:
	case DIFF_RECVMSG:
	case DIFF_RECVMMSG:
		return vector(job, false);
	case DIFF_DIAL:
		return do_dial(job);
	case DIFF_ACCEPT:
		return do_accept(job);
	case DIFF_POLL:
	case DIFF_WAITPOLL:
		return do_poll(job);
	case DIFF_SELECT:
	case DIFF_WAITSELECT:
		return do_select(job, op->kind == DIFF_WAITSELECT);
	case DIFF_ADD:
		return ep_ctl(job, EPOLL_CTL_ADD, job->made);
	case DIFF_MOD:
		return ep_ctl(job, EPOLL_CTL_MOD, job->made);
	case DIFF_DEL:
		return epoll_ctl(job->fd, EPOLL_CTL_DEL, job->fd2, NULL);
	case DIFF_EPWAIT:
	case DIFF_EPSLEEP:
		return epoll_wait(job->fd, job->events, JOB_EVENTS, op->kind == DIFF_EPWAIT ? 0 : -1);
	default:
		return ask(job);
	}
}

void call_perform(struct job *job)
{
	diff_pipes = 0;
	errno = 0;
	job->ret = perform(job);
	job->err = job->ret < 0 ? errno : 0;
	job->pipes = diff_pipes;
}

/* ------------------------------------------------------------------ the result */

static int text_events(uint32_t v, char *buf, size_t size)
{
	return diff_events_print(v, buf, size);
}

static int by_data(const void *a, const void *b)
{
	uint64_t x = ((const struct epoll_event *)a)->data.u64, y = ((const struct epoll_event *)b)->data.u64;

	return x < y ? -1 : x > y;
}

/* In which order a set reports what is ready is nobody's promise. */
static int finish_events(struct job *job, char *buf, size_t size)
{
	char slot[4], text[160];
	int n = 0;

	qsort(job->events, (size_t)job->ret, sizeof(job->events[0]), by_data);
	for (long i = 0; i < job->ret; i++) {
		diff_slot_name((unsigned)(job->events[i].data.u64 & 0xff), slot);
		text_events(job->events[i].events, text, sizeof(text));
		n += snprintf(buf + n, size - (size_t)n, " %s#%u[%s]", slot, (unsigned)(job->events[i].data.u64 >> 8),
			      text);
	}
	return n;
}

/* The bytes must be the stream's next ones. */
static int finish_read(struct world *w, struct job *job, char *buf, size_t size)
{
	bool dropped =
	    (job->op.flags & (MSG_TRUNC | MSG_PEEK)) == MSG_TRUNC && strchr(diff_calls[job->op.kind].args, 'm');
	struct end *e = job->what == SLOT_END ? &w->ends[job->end] : NULL;
	int n = 0;

	if (job->op.kind == DIFF_RECVMSG)
		n += snprintf(buf, size, " flags %#x", job->a);
	if (job->op.kind == DIFF_RECVMMSG)
		n += snprintf(buf, size, " messages %u", job->a);
	if (!e || job->ret <= 0)
		return n;
	for (long i = 0; i < job->ret && !dropped; i++) {
		uint8_t want = (uint8_t)((e->rx + (uint64_t)i) % PERIOD);

		if ((uint8_t)job->in[i] == want)
			continue;
		n += snprintf(buf + n, size - (size_t)n, " WRONG BYTE at %ld: %u, expected %u", i, (uint8_t)job->in[i],
			      want);
		break;
	}
	if (!(job->op.flags & MSG_PEEK) || !strchr(diff_calls[job->op.kind].args, 'm'))
		e->rx += (uint64_t)job->ret;
	return n;
}

static int finish_accept(struct world *w, struct job *job, char *buf, size_t size)
{
	struct slot *s = &w->slots[job->op.a];
	int identity, from = -1;

	if (job->made < 0)
		return 0;
	world_learn_ports(w);
	for (int i = 0; i < w->end_count; i++)
		if (w->ends[i].peer < 0 && w->ends[i].port && w->ends[i].port == ntohs(job->addr.sin_port))
			from = i;
	identity = end_new(w);
	w->ends[identity].peer = from;
	w->ends[identity].port = local_port(job->made);
	if (from >= 0)
		w->ends[from].peer = identity;
	slot_close(s);
	slot_take(s, job->made, SLOT_END, identity, job->op.flags & SOCK_NONBLOCK);
	return snprintf(buf, size, " from %d%s%s len %u", from, job->a & 1 ? " nonblock" : "",
			job->a & 2 ? " cloexec" : "", job->b);
}

static int finish_name(struct world *w, struct job *job, char *buf, size_t size)
{
	struct end *e = job->what == SLOT_END ? &w->ends[job->end] : NULL, *peer = peer_of(w, e);
	uint16_t port = ntohs(job->addr.sin_port);

	if (job->ret < 0)
		return 0;
	return snprintf(buf, size, " family %d len %u %s port %s", job->addr.sin_family, job->b,
			job->addr.sin_addr.s_addr == htonl(INADDR_LOOPBACK) ? "loopback"
			: job->addr.sin_addr.s_addr                         ? "other"
									    : "any",
			!port                        ? "none"
			: e && port == e->port       ? "own"
			: peer && port == peer->port ? "peer's"
						     : "some");
}

static void finish_write(struct world *w, struct job *job)
{
	struct end *e = job->what == SLOT_END ? &w->ends[job->end] : NULL;

	if (e && job->ret > 0)
		e->tx += (uint64_t)job->ret;
}

int call_finish(struct world *w, struct job *job, char *buf, size_t size)
{
	const struct diff_op *op = &job->op;
	char a[160], b[160];
	int n;

	if (op->kind == DIFF_BIGSEND && job->ret > 0 && job->ret < DIFF_BIG)
		n = snprintf(buf, size, "part");
	else if (job->ret < 0)
		n = snprintf(buf, size, "%s", strerrorname_np(job->err));
	else
		n = snprintf(buf, size, "%ld", job->ret);
	if (job->pipes)
		n += snprintf(buf + n, size - (size_t)n, " SIGPIPE*%d", job->pipes);
	switch (op->kind) {
	case DIFF_DIAL:
		slot_close(&w->slots[op->a]);
		slot_take(&w->slots[op->a], job->made, SLOT_END, end_new(w), false);
		w->ends[w->end_count - 1].connecting = true;
		world_learn_ports(w);
		break;
	case DIFF_RECONNECT:
		if (job->what == SLOT_END && (!job->ret || job->err == EINPROGRESS))
			w->ends[job->end] = (struct end){.peer = -1, .connecting = true};
		break;
	case DIFF_ACCEPT:
		n += finish_accept(w, job, buf + n, size - (size_t)n);
		break;
	case DIFF_NONBLOCK:
		for (int i = 0; i < DIFF_SLOTS && !job->ret; i++)
			if (w->slots[i].what == (unsigned)job->what && w->slots[i].end == job->end)
				w->slots[i].nonblock = op->n;
		break;
	case DIFF_SHUTDOWN:
		if (job->what == SLOT_END && !job->ret && op->n != SHUT_WR)
			w->ends[job->end].rd_shut = true;
		break;
	case DIFF_POLL:
	case DIFF_WAITPOLL:
	case DIFF_SELECT:
	case DIFF_WAITSELECT:
		text_events(job->a, a, sizeof(a));
		text_events(job->b, b, sizeof(b));
		n += snprintf(buf + n, size - (size_t)n, " [%s] [%s]", a, b);
		break;
	case DIFF_EPWAIT:
	case DIFF_EPSLEEP:
		if (job->ret > 0)
			n += finish_events(job, buf + n, size - (size_t)n);
		break;
	case DIFF_ERROR:
		n += snprintf(buf + n, size - (size_t)n, " error %s", job->a ? strerrorname_np((int)job->a) : "0");
		break;
	case DIFF_GETOPT:
		n += snprintf(buf + n, size - (size_t)n, " value %u len %u", job->a, job->b);
		break;
	case DIFF_SOCKNAME:
	case DIFF_PEERNAME:
		n += finish_name(w, job, buf + n, size - (size_t)n);
		break;
	case DIFF_ADD:
		w->nested |= !job->ret && w->slots[op->b].what == SLOT_SET;
		break;
	default:
		if (is_write((enum diff_kind)op->kind))
			finish_write(w, job);
		else if (is_read((enum diff_kind)op->kind))
			n += finish_read(w, job, buf + n, size - (size_t)n);
	}
	return n;
}

/* ------------------------------------------------------------------ what the executor does itself */

static int listener(struct sockaddr_in *addr, int backlog)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
	socklen_t len = sizeof(*addr);

	*addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)addr, sizeof(*addr)) < 0 || listen(fd, backlog) < 0 ||
	    getsockname(fd, (struct sockaddr *)addr, &len) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static int do_pair(struct world *w, struct slot *a, struct slot *b)
{
	int one = 1, x, y, ea, eb;

	if (w->base < 0)
		w->base = listener(&w->base_addr, 64);
	x = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(x, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (connect(x, (struct sockaddr *)&w->base_addr, sizeof(w->base_addr)) < 0)
		return -errno;
	y = accept(w->base, NULL, NULL);
	if (y < 0)
		return -errno;
	ea = end_new(w);
	eb = end_new(w);
	w->ends[ea].peer = eb;
	w->ends[eb].peer = ea;
	w->ends[ea].port = local_port(x);
	w->ends[eb].port = local_port(y);
	slot_take(a, x, SLOT_END, ea, false);
	slot_take(b, y, SLOT_END, eb, false);
	w->pairs++;
	return 0;
}

static int do_connect(struct world *w, const struct diff_op *op)
{
	struct slot *s = &w->slots[op->a];
	int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), r;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	r = connect(fd, (struct sockaddr *)&w->slots[op->b].addr, sizeof(struct sockaddr_in)) < 0 ? -errno : 0;
	if (op->n)
		fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	slot_take(s, fd, SLOT_END, end_new(w), !op->n);
	w->ends[s->end].connecting = true;
	return r;
}

static int do_dup(struct world *w, const struct diff_op *op)
{
	struct slot *to = &w->slots[op->a], *from = &w->slots[op->b];
	struct sockaddr_in addr = from->addr;
	int source = number(from), fd;

	fd = op->kind == DIFF_DUP || to->fd < 0 ? dup(source) : dup2(source, to->fd);
	if (fd < 0)
		return -errno;
	slot_take(to, fd, (int)from->what, from->end, from->nonblock);
	to->addr = addr;
	return 0;
}

static void pause_us(int us)
{
	struct timespec ts = {.tv_nsec = us * 1000L};

	nanosleep(&ts, NULL);
}

/* How much goes in is the transport's own; that it ends is not. */
static int do_fill(struct world *w, struct slot *s)
{
	struct end *e = end_of(w, s);
	int full = 0, err = 0;
	ssize_t r;

	while (full < 4) {
		r = send(s->fd, w->pattern + e->tx % PERIOD, 65536, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (r > 0) {
			e->tx += (uint64_t)r;
			e->stuffed = true;
			full = 0;
		} else if (errno == EAGAIN) {
			full++;
			pause_us(2000);
		} else {
			err = errno;
			break;
		}
	}
	return -err;
}

/* What the peer has written, or is writing. */
static bool more_to_come(struct world *w, const struct end *e, const struct end *peer)
{
	uint64_t sent = peer->tx;

	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct job *job = &w->tasks[i].job;
		int state = atomic_load(&w->tasks[i].state);

		if (state == TASK_IDLE || job->op.kind != DIFF_BIGSEND || job->end != e->peer)
			continue;
		if (state != TASK_DONE)
			return true;
		sent += job->ret > 0 ? (uint64_t)job->ret : 0;
	}
	return e->rx < sent;
}

/* Reads all that the peer has written, waiting for what is under way; the total where both transports agree on it. */
static void do_drain(struct world *w, struct slot *s, int fd, char *buf, size_t size)
{
	struct end *e = end_of(w, s), *peer = peer_of(w, e);
	bool stuffed = peer && peer->stuffed, wrong = false;
	uint64_t total = 0;
	int patience = 20000;
	ssize_t r;

	for (;;) {
		r = recv(fd, w->main_in, JOB_BUFFER, MSG_DONTWAIT);
		if (r <= 0) {
			if (r == 0 || errno != EAGAIN || !stuffed || !more_to_come(w, e, peer) || !patience--)
				break;
			pause_us(50);
			continue;
		}
		for (ssize_t i = 0; e && i < r; i++)
			wrong |= (uint8_t)w->main_in[i] != (uint8_t)((e->rx + (uint64_t)i) % PERIOD);
		if (e)
			e->rx += (uint64_t)r;
		total += (uint64_t)r;
	}
	if (stuffed && (r == 0 || errno != EAGAIN || !more_to_come(w, e, peer)))
		peer->stuffed = false;
	snprintf(buf, size, "%s%s", r == 0 ? "EOF" : strerrorname_np(errno), wrong ? " WRONG BYTES" : "");
	if (!stuffed)
		snprintf(buf + strlen(buf), size - strlen(buf), " after %llu", (unsigned long long)total);
}

bool call_direct(struct world *w, const struct diff_op *op, char *buf, size_t size)
{
	struct slot *s = &w->slots[op->a];
	int r = 0, fd = number(s);

	switch (op->kind) {
	case DIFF_PAIR:
		r = do_pair(w, s, &w->slots[op->b]);
		break;
	case DIFF_LISTEN:
		slot_take(s, listener(&s->addr, op->n), SLOT_LISTENER, 1000 + w->identities++, false);
		s->addr.sin_family = AF_INET;
		{
			socklen_t len = sizeof(s->addr);

			r = getsockname(s->fd, (struct sockaddr *)&s->addr, &len) < 0 ? -errno : 0;
		}
		break;
	case DIFF_CONNECT:
		r = do_connect(w, op);
		break;
	case DIFF_CLOSE:
		r = close(fd) < 0 ? -errno : 0;
		if (!r) {
			s->fd = -1;
			slot_close(s);
			s->last = fd;
		}
		break;
	case DIFF_DUP:
	case DIFF_DUP2:
		r = do_dup(w, op);
		break;
	case DIFF_FILL:
		r = do_fill(w, s);
		break;
	case DIFF_SET:
		fd = epoll_create1(EPOLL_CLOEXEC);
		r = fd < 0 ? -errno : 0;
		slot_take(s, fd, SLOT_SET, 1000 + w->identities++, false);
		break;
	case DIFF_DRAIN:
		do_drain(w, s, fd, buf, size);
		return true;
	default:
		return false;
	}
	snprintf(buf, size, "%s", r < 0 ? strerrorname_np(-r) : "0");
	return true;
}

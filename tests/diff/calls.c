/* SPDX-License-Identifier: BSD-2-Clause */
/* The operations that any thread may be given: what each does, and what it prints. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <unistd.h>

void call_prepare(struct world *w, const struct diff_op *op, struct job *job)
{
	struct slot *s = &w->slots[op->a], *b = &w->slots[op->b];
	struct end *e = end_of(w, s);
	char *in = job->in;

	memset(job, 0, sizeof(*job));
	job->in = in;
	job->op = *op;
	/* While another thread runs, the executor opens files of its own, whose numbers may be those of closed slots.
	 */
	job->fd = op->thread ? s->fd : slot_number(w, s);
	job->fd2 = op->thread ? b->fd : slot_number(w, b);
	job->addr = b->addr;
	job->out = w->pattern + (e ? e->tx % DIFF_PERIOD : 0);
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

static bool says_closed(const struct job *job)
{
	return job->ret < 0 ? job->err == EBADF : job->op.kind == DIFF_POLL && job->a & POLLNVAL;
}

void call_perform(struct job *job)
{
	struct timespec ms = {.tv_nsec = 1000000};
	int i;

	diff_pipes = 0;
	/* The library's thread makes its descriptors by the lowest number, as anybody does, and moves them up: a closed
	 * number may be one of them for a moment. */
	for (i = 0; i < 10; i++) {
		if (i)
			nanosleep(&ms, NULL);
		if (i && job->made < 0)
			job->a = job->b = 0;
		errno = 0;
		job->ret = perform(job);
		job->err = job->ret < 0 ? errno : 0;
		if (job->what != SLOT_NONE || job->fd < 0 || job->op.thread || says_closed(job))
			break;
	}
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

size_t call_wrong_byte(struct world *w, const struct end *e, const char *in, size_t n)
{
	const char *want = w->pattern + e->rx % DIFF_PERIOD;
	size_t i = 0;

	if (!memcmp(in, want, n))
		return n;
	while (in[i] == want[i])
		i++;
	return i;
}

/* The bytes must be the stream's next ones. */
static int finish_read(struct world *w, struct job *job, char *buf, size_t size)
{
	bool flags = strchr(diff_calls[job->op.kind].args, 'm');
	bool dropped =
	    flags && (job->op.flags & MSG_TRUNC || (job->op.kind == DIFF_RECVMMSG && job->op.flags & MSG_PEEK));
	struct end *e = job->what == SLOT_END ? &w->ends[job->end] : NULL;
	size_t at;
	int n = 0;

	if (job->op.kind == DIFF_RECVMSG)
		n += snprintf(buf, size, " flags %#x", job->a);
	if (job->op.kind == DIFF_RECVMMSG)
		n += snprintf(buf, size, " messages %u", job->a);
	if (!e || job->ret <= 0)
		return n;
	at = dropped ? (size_t)job->ret : call_wrong_byte(w, e, job->in, (size_t)job->ret);
	if (at < (size_t)job->ret)
		n += snprintf(buf + n, size - (size_t)n, " WRONG BYTE at %zu: %u, expected %u", at,
			      (uint8_t)job->in[at], (unsigned)((e->rx + at) % DIFF_PERIOD));
	if (!flags || !(job->op.flags & MSG_PEEK))
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
	w->ends[identity].port = fd_port(job->made);
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
		/* Of one that has been accepted it only says that it is connected. */
		if (job->what == SLOT_END && w->ends[job->end].peer < 0 && (!job->ret || job->err == EINPROGRESS))
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
		w->torn = true;
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

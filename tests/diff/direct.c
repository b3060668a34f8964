/* SPDX-License-Identifier: BSD-2-Clause */
/* The worker's books, and the operations that change them directly: connections, listeners, copies, filling and
 * draining. */
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int slot_number(struct world *w, const struct slot *s)
{
	if (s->fd >= 0)
		return s->fd;
	if (w->renumbered)
		return -1;
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

void slot_take(struct slot *s, int fd, int what, int identity, bool nonblock)
{
	*s = (struct slot){.fd = fd, .last = fd, .what = what, .end = identity, .nonblock = nonblock};
}

int end_new(struct world *w)
{
	struct end *e = &w->ends[w->end_count];

	memset(e, 0, sizeof(*e));
	e->peer = -1;
	return w->end_count++;
}

uint16_t fd_port(int fd)
{
	struct sockaddr_in sa = {0};
	socklen_t len = sizeof(sa);

	return getsockname(fd, (struct sockaddr *)&sa, &len) < 0 ? 0 : ntohs(sa.sin_port);
}

void world_learn_ports(struct world *w)
{
	struct sockaddr_in sa;
	socklen_t len;

	for (int i = 0; i < DIFF_SOCKETS; i++) {
		struct end *e = end_of(w, &w->slots[i]);

		len = sizeof(sa);
		if (!e || !e->connecting || getpeername(w->slots[i].fd, (struct sockaddr *)&sa, &len) < 0)
			continue;
		e->port = fd_port(w->slots[i].fd);
		e->connecting = false;
	}
}

/* ------------------------------------------------------------------ operations */

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
	w->ends[ea].port = fd_port(x);
	w->ends[eb].port = fd_port(y);
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
	int source = slot_number(w, from), fd;

	w->torn = true;
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
		r = send(s->fd, w->pattern + e->tx % DIFF_PERIOD, 65536, MSG_DONTWAIT | MSG_NOSIGNAL);
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

/* What the peer has written, or is writing, or has done last. */
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
	/* A peer that is closed has its end, or a reset, under way too. */
	return e->rx < sent || !end_is_named(w, e->peer);
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
		if (e) {
			wrong |= call_wrong_byte(w, e, w->main_in, (size_t)r) < (size_t)r;
			e->rx += (uint64_t)r;
		}
		total += (uint64_t)r;
	}
	if (stuffed && (r == 0 || errno != EAGAIN || !more_to_come(w, e, peer)))
		peer->stuffed = false;
	snprintf(buf, size, "%s%s", r == 0 ? "EOF" : strerrorname_np(errno), wrong ? " WRONG BYTE" : "");
	if (!stuffed)
		snprintf(buf + strlen(buf), size - strlen(buf), " after %llu", (unsigned long long)total);
}

bool call_direct(struct world *w, const struct diff_op *op, char *buf, size_t size)
{
	struct slot *s = &w->slots[op->a];
	int r = 0, fd = slot_number(w, s);

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
		w->torn = true;
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

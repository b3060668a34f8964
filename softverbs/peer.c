/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Other processes: one SEQPACKET socket a pair carries every message, passes the segments and the eventfds, and shows
 * death. Messages to a peer always leave by peer->out; they are taken from any socket of the pair (two processes that
 * connect to each other at once have two).
 */
#include "soft.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/un.h>

#define MAX_FDS 3

struct out_msg {
	struct out_msg *next;
	struct sv_msg m;
	int fds[MAX_FDS];
	int nfds;
};

struct sv_sock {
	void *retire; /* sv_retire() overwrites the first word; a late event may still look at src */
	struct sv_source src;
	struct sv_sock *next;
	struct sv_peer *peer; /* NULL until its HELLO */
	pid_t pid;
	pthread_mutex_t lock;
	struct out_msg *outq, **outq_tail;
};

struct peer_priv {
	struct sv_peer p;
	struct sv_source pid_src;
	pthread_mutex_t chan_lock;
	bool hello_sent;
};

static void sock_ready(struct sv_source *s, uint32_t events);
static void peer_lost(struct sv_peer *p);

static struct peer_priv *priv_of(struct sv_peer *p)
{
	return sv_container(p, struct peer_priv, p);
}

size_t sv_name_block(char *buf, size_t size, uint32_t block)
{
	buf[0] = 0;
	return 1 + (size_t)snprintf(buf + 1, size - 1, "vkrdma-soft/%u/qp/%u", (unsigned)geteuid(), block);
}

/* ------------------------------------------------------------------ sockets */

static struct sv_sock *sock_new(int fd, pid_t pid)
{
	struct sv_sock *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->src.fd = fd;
	s->src.ready = sock_ready;
	s->pid = pid;
	pthread_mutex_init(&s->lock, NULL);
	s->outq_tail = &s->outq;
	return s;
}

static void out_free(struct out_msg *o)
{
	for (int i = 0; i < o->nfds; i++)
		sv_fd_close(o->fds[i]);
	free(o);
}

static void sock_free(struct sv_sock *s)
{
	struct out_msg *o;

	sv_source_del(&s->src);
	sv_fd_close(s->src.fd);
	while ((o = s->outq)) {
		s->outq = o->next;
		out_free(o);
	}
	pthread_mutex_destroy(&s->lock);
	s->src.fd = -1;
	sv_retire(s);
}

static int sock_write(int fd, const struct sv_msg *m, const int *fds, int nfds)
{
	struct iovec iov = {(void *)m, sizeof(*m)};
	union {
		char buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
		struct cmsghdr align;
	} u;
	struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

	if (nfds) {
		struct cmsghdr *c;

		memset(&u, 0, sizeof(u));
		mh.msg_control = u.buf;
		mh.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
		c = CMSG_FIRSTHDR(&mh);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * (size_t)nfds);
	}
	return sendmsg(fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

static int sock_queue(struct sv_sock *s, const struct sv_msg *m, const int *fds, int nfds)
{
	struct out_msg *o = calloc(1, sizeof(*o));

	if (!o)
		return ENOMEM;
	o->m = *m;
	for (int i = 0; i < nfds; i++) {
		o->fds[i] = sv_fd_new(dup(fds[i]));
		if (o->fds[i] < 0) {
			out_free(o);
			return EMFILE;
		}
		o->nfds++;
	}
	*s->outq_tail = o;
	s->outq_tail = &o->next;
	sv_source_mod(&s->src, EPOLLIN | EPOLLOUT);
	return 0;
}

static int sock_send(struct sv_sock *s, const struct sv_msg *m, const int *fds, int nfds)
{
	int ret = EAGAIN;

	pthread_mutex_lock(&s->lock);
	if (!s->outq)
		ret = sock_write(s->src.fd, m, fds, nfds);
	if (ret == EAGAIN)
		ret = sock_queue(s, m, fds, nfds);
	pthread_mutex_unlock(&s->lock);
	return ret;
}

static void sock_flush(struct sv_sock *s)
{
	struct out_msg *o;

	pthread_mutex_lock(&s->lock);
	while ((o = s->outq)) {
		if (sock_write(s->src.fd, &o->m, o->fds, o->nfds) == EAGAIN)
			break;
		s->outq = o->next;
		if (!s->outq)
			s->outq_tail = &s->outq;
		out_free(o);
	}
	if (!s->outq)
		sv_source_mod(&s->src, EPOLLIN);
	pthread_mutex_unlock(&s->lock);
}

/* ------------------------------------------------------------------ peers */

static struct sv_peer *peer_find(pid_t pid)
{
	struct sv_peer *p;

	for (p = sv_proc.peers; p; p = p->next)
		if (p->pid == pid && !sv_load(&p->dead))
			return p;
	return NULL;
}

static void pid_ready(struct sv_source *s, uint32_t events)
{
	struct sv_peer *p = &sv_container(s, struct peer_priv, pid_src)->p;
	struct sv_sock *k, *next;

	if (sv_load(&p->dead))
		return;
	/* What it said before it died comes first; the end of a socket loses the peer too. */
	sv_peer_get(p);
	for (k = p->socks; k && !sv_load(&p->dead); k = next) {
		next = k->next;
		sock_ready(&k->src, EPOLLIN);
	}
	if (!sv_load(&p->dead))
		peer_lost(p);
	sv_peer_put(p);
}

/* proc lock held. The list's reference. */
static struct sv_peer *peer_new(pid_t pid)
{
	struct peer_priv *pp = calloc(1, sizeof(*pp));
	struct sv_peer *p = &pp->p;

	if (!pp)
		return NULL;
	p->pid = pid;
	p->refs = 1;
	atomic_init(&p->away, sv_load(&sv_proc.link_down) ? SV_AWAY_OURS : 0);
	atomic_init(&p->kick_fd, -1);
	pthread_mutex_init(&pp->chan_lock, NULL);
	p->chan_fd = calloc(SV_MAX_CHAN, sizeof(*p->chan_fd));
	p->chan_gen = calloc(SV_MAX_CHAN, sizeof(*p->chan_gen));
	p->chan_sent = calloc(SV_MAX_CHAN / 8, 1);
	p->pid_fd = sv_fd_new((int)syscall(SYS_pidfd_open, pid, 0));
	if (!p->chan_fd || !p->chan_gen || !p->chan_sent)
		goto fail;
	/* Where there are no pidfds the end of the socket tells, unless a child of the peer holds a copy. */
	if (p->pid_fd < 0 && errno == ESRCH)
		goto fail;
	pp->pid_src.fd = p->pid_fd;
	pp->pid_src.ready = pid_ready;
	if (p->pid_fd >= 0 && sv_source_add(&pp->pid_src, EPOLLIN))
		goto fail;
	if (pid == sv_proc.seg->pid) {
		p->data = sv_proc.data;
		sv_store(&p->kick_fd, sv_proc.kick_fd);
		sv_fd_slot(sv_proc.kick_fd, &p->kick_fd, 0);
		sv_store_rel(&p->seg, sv_proc.seg);
	}
	p->next = sv_proc.peers;
	sv_proc.peers = p;
	return p;
fail:
	sv_fd_close(p->pid_fd);
	free((void *)p->chan_fd);
	free(p->chan_gen);
	free(p->chan_sent);
	free(pp);
	return NULL;
}

void sv_peer_get(struct sv_peer *p)
{
	pthread_mutex_lock(&sv_proc.lock);
	p->refs++;
	pthread_mutex_unlock(&sv_proc.lock);
}

void sv_peer_put(struct sv_peer *p)
{
	struct sv_seg *seg;
	bool last;

	pthread_mutex_lock(&sv_proc.lock);
	last = !--p->refs;
	pthread_mutex_unlock(&sv_proc.lock);
	if (!last)
		return;
	seg = sv_load(&p->seg);
	if (seg && seg != sv_proc.seg) {
		munmap(seg, SV_SEG_SIZE);
		munmap(p->data, SV_DATA_SIZE);
		sv_fd_close(sv_load(&p->kick_fd));
	}
	for (uint32_t i = 0; i < SV_MAX_CHAN; i++)
		if (sv_load(&p->chan_fd[i]))
			sv_fd_close(sv_load(&p->chan_fd[i]) - 1);
	free((void *)p->chan_fd);
	free(p->chan_gen);
	free(p->chan_sent);
	pthread_mutex_destroy(&priv_of(p)->chan_lock);
	sv_retire(priv_of(p));
}

/* Thread only. */
static void peer_lost(struct sv_peer *p)
{
	struct sv_peer **pp;
	struct sv_sock *s;

	sv_store_rel(&p->dead, 1);
	atomic_fetch_or(&p->away, SV_AWAY_DEAD);
	pthread_mutex_lock(&sv_proc.lock);
	for (pp = &sv_proc.peers; *pp && *pp != p; pp = &(*pp)->next)
		;
	if (*pp)
		*pp = p->next;
	p->out = NULL;
	pthread_mutex_unlock(&sv_proc.lock);
	if (p->pid_fd >= 0) {
		sv_source_del(&priv_of(p)->pid_src);
		sv_fd_close(priv_of(p)->pid_src.fd);
		p->pid_fd = -1;
	}
	while ((s = p->socks)) {
		p->socks = s->next;
		sock_free(s);
	}
	/* Nobody hears of a death behind a cut link. */
	if (sv_load(&p->away) == SV_AWAY_DEAD)
		sv_cm_peer_lost(p);
	sv_qp_peer_lost(p);
	sv_peer_put(p);
}

static void link_send(struct sv_peer *p)
{
	struct sv_msg m = {.type = SV_M_LINK, .a = sv_load(&sv_proc.link_down) != SV_LINK_UP};

	sock_send(p->out, &m, NULL, 0);
}

void sv_link_set(enum sv_link link)
{
	pthread_mutex_lock(&sv_proc.lock);
	sv_store(&sv_proc.link_down, link);
	for (struct sv_peer *p = sv_proc.peers; p; p = p->next) {
		if (link)
			atomic_fetch_or(&p->away, SV_AWAY_OURS);
		else
			atomic_fetch_and(&p->away, ~SV_AWAY_OURS);
		if (p->out && p->pid != sv_proc.seg->pid) /* we know it already */
			link_send(p);
	}
	pthread_mutex_unlock(&sv_proc.lock);
	if (!link)
		sv_cm_peer_back(NULL);
}

static int hello_send(struct sv_peer *p)
{
	struct sv_msg m = {.type = SV_M_HELLO, .a = SV_SEG_VERSION};
	int fds[3] = {sv_proc.seg_fd, sv_proc.data_fd, sv_proc.kick_fd}, ret;

	priv_of(p)->hello_sent = true;
	/* To ourselves: a peer all the same, but it has everything already. */
	ret = sock_send(p->out, &m, fds, p->pid == sv_proc.seg->pid ? 0 : 3);
	if (sv_load(&sv_proc.link_down) && p->pid != sv_proc.seg->pid)
		link_send(p);
	return ret;
}

/* proc lock held. Adopts fd, which leads to pid, for a peer that is new or known. */
static struct sv_peer *peer_adopt(int fd, pid_t pid)
{
	struct sv_peer *p = peer_find(pid);
	struct sv_sock *s;

	if (p && p->out) {
		sv_fd_close(fd);
		p->refs++;
		return p;
	}
	s = sock_new(fd, pid);
	if (!s)
		goto fail;
	if (!p)
		p = peer_new(pid);
	if (!p)
		goto fail_sock;
	/* Complete before the thread can see it. */
	s->peer = p;
	s->next = p->socks;
	p->socks = s;
	p->out = s;
	if (sv_source_add(&s->src, EPOLLIN)) {
		p->socks = s->next;
		p->out = NULL;
		goto fail_sock;
	}
	p->refs++;
	hello_send(p);
	return p;
fail_sock:
	free(s);
fail:
	sv_fd_close(fd);
	errno = ENOMEM;
	return NULL;
}

static pid_t cred_pid(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid())
		return -1;
	return cred.pid;
}

static int name_connect(const char *name, size_t len)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t alen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	int fd;

	memcpy(un.sun_path, name, len);
	fd = sv_fd_new(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (fd < 0)
		return -1;
	for (int tries = 0; connect(fd, (struct sockaddr *)&un, alen); tries++) {
		struct timespec ms = {0, 1000000};

		/* EAGAIN: the backlog is full; the owner's thread is at it. */
		if ((errno != EAGAIN && errno != EINTR) || tries > 2000) {
			sv_fd_close(fd);
			return -1;
		}
		nanosleep(&ms, NULL);
	}
	return fd;
}

struct sv_peer *sv_peer_connect(const char *name, size_t len)
{
	struct sv_peer *p;
	int fd = name_connect(name, len);
	pid_t pid;

	if (fd < 0)
		return NULL;
	pid = cred_pid(fd);
	if (pid <= 0) {
		sv_fd_close(fd);
		errno = ECONNREFUSED;
		return NULL;
	}
	pthread_mutex_lock(&sv_proc.lock);
	p = peer_adopt(fd, pid);
	pthread_mutex_unlock(&sv_proc.lock);
	return p;
}

struct sv_peer *sv_peer_by_qpn(uint32_t qpn)
{
	uint32_t block = qpn >> SV_BLOCK_SHIFT;
	struct sv_peer *p;
	char name[64];

	pthread_mutex_lock(&sv_proc.lock);
	for (p = sv_proc.peers; p; p = p->next) {
		struct sv_seg *seg = sv_load_acq(&p->seg);
		uint32_t n = seg ? sv_min(sv_load_acq(&seg->nblocks), (uint32_t)SV_MAX_BLOCKS) : 0;

		for (uint32_t i = 0; i < n; i++) {
			if (seg->blocks[i] == block && p->out) {
				p->refs++;
				pthread_mutex_unlock(&sv_proc.lock);
				return p;
			}
		}
	}
	pthread_mutex_unlock(&sv_proc.lock);
	return sv_peer_connect(name, sv_name_block(name, sizeof(name), block));
}

struct sv_peer *sv_peer_by_pid(pid_t pid)
{
	struct sv_peer *p;

	pthread_mutex_lock(&sv_proc.lock);
	p = peer_find(pid);
	if (p && p->out)
		p->refs++;
	else
		p = NULL;
	pthread_mutex_unlock(&sv_proc.lock);
	return p;
}

int sv_peer_send(struct sv_peer *p, const struct sv_msg *m, const int *fds, int nfds)
{
	int ret = ENOTCONN;

	if (sv_load(&p->away) & ~SV_AWAY_DEAD)
		return 0; /* on its way, for all we know */
	pthread_mutex_lock(&sv_proc.lock);
	if (p->out)
		ret = sock_send(p->out, m, fds, nfds);
	pthread_mutex_unlock(&sv_proc.lock);
	return ret;
}

void sv_peer_tell_chan(struct sv_peer *p, struct sv_cq *cq)
{
	struct sv_msg m = {.type = SV_M_CHAN};

	if (!cq || !cq->chan || p->pid == sv_proc.seg->pid)
		return;
	m.a = cq->chan->idx;
	m.b = cq->chan->gen;
	pthread_mutex_lock(&sv_proc.lock);
	if (p->out && !(p->chan_sent[m.a / 8] & (1u << (m.a % 8)))) {
		/* Where it cannot be passed (too many descriptors) the peer kicks our thread instead. */
		if (!sock_send(p->out, &m, &cq->chan->ch.fd, 1))
			p->chan_sent[m.a / 8] |= (uint8_t)(1u << (m.a % 8));
	}
	pthread_mutex_unlock(&sv_proc.lock);
}

/* ------------------------------------------------------------------ events to a peer's channel */

void sv_cq_fire(struct sv_peer *p, struct sv_seg *seg, struct sv_cq_ent *ent, bool solicited)
{
	uint32_t armed = atomic_load(&ent->armed), chan, slot;
	int fd = -1;

	if (!armed || (armed == 2 && !solicited) || !atomic_exchange(&ent->armed, 0))
		return;
	chan = ent->chan;
	slot = ent->chan_slot;
	if (chan >= SV_MAX_CHAN)
		return;
	atomic_fetch_add(&ent->events, 1);
	sv_bits_set(&seg->chan[chan].pending, slot);
	if (seg == sv_proc.seg) {
		struct sv_chan *c = sv_proc.chans[chan];

		if (c)
			sv_fd_raise(c->ch.fd);
		return;
	}
	pthread_mutex_lock(&priv_of(p)->chan_lock);
	fd = p->chan_gen[chan] == ent->chan_gen ? sv_load(&p->chan_fd[chan]) - 1 : -1;
	if (fd >= 0 && !sv_fd_raise(fd))
		fd = -1;
	pthread_mutex_unlock(&priv_of(p)->chan_lock);
	if (fd < 0) {
		atomic_store(&seg->raise, 1);
		if (!atomic_exchange(&seg->kicked, 1))
			sv_fd_raise(sv_load(&p->kick_fd)); /* which may have died */
	}
}

/* ------------------------------------------------------------------ what arrives */

static void *map_fd(int fd, uint64_t size)
{
	void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);

	if (m == MAP_FAILED)
		return NULL;
	madvise(m, size, MADV_DONTFORK);
	madvise(m, size, MADV_DONTDUMP);
	return m;
}

/* What others say of it is told in their own way. */
static bool unusable(const struct sv_peer *p, const char *why)
{
	static _Atomic bool told;

	if (!atomic_exchange(&told, true))
		fprintf(stderr, "softverbs: nothing goes to or from process %d: %s\n", (int)p->pid, why);
	return false;
}

/* False: there can be nothing with this peer. */
static bool got_hello(struct sv_peer *p, int *fds, int nfds)
{
	struct sv_seg *seg;
	void *data;
	bool other;

	if (sv_load(&p->seg))
		return true;
	if (nfds != 3 || fds[2] < 0)
		return unusable(p, "no descriptor to spare for its memory");
	seg = map_fd(fds[0], SV_SEG_SIZE);
	data = seg ? map_fd(fds[1], SV_DATA_SIZE) : NULL;
	other = data && (seg->magic != SV_SEG_MAGIC || seg->version != SV_SEG_VERSION);
	if (!data || other) {
		if (seg)
			munmap(seg, SV_SEG_SIZE);
		if (data)
			munmap(data, SV_DATA_SIZE);
		return unusable(p, other ? "it has another version" : "its memory cannot be mapped");
	}
	p->data = data;
	sv_store(&p->kick_fd, fds[2]);
	sv_fd_slot(fds[2], &p->kick_fd, 0);
	fds[2] = -1;
	sv_store_rel(&p->seg, seg);
	/* What waits to be sent to it, answers too, can go now. */
	sv_qp_peer_found(p);
	return true;
}

static void got_chan(struct sv_peer *p, const struct sv_msg *m, int *fds, int nfds)
{
	int old;

	if (m->a >= SV_MAX_CHAN)
		return;
	pthread_mutex_lock(&priv_of(p)->chan_lock);
	old = sv_load(&p->chan_fd[m->a]) - 1;
	sv_store(&p->chan_fd[m->a], nfds == 1 ? fds[0] + 1 : 0);
	if (nfds == 1)
		sv_fd_slot(fds[0], &p->chan_fd[m->a], 1);
	p->chan_gen[m->a] = m->b;
	if (nfds == 1)
		fds[0] = -1;
	pthread_mutex_unlock(&priv_of(p)->chan_lock);
	sv_fd_close(old);
}

/* False: the socket is of no more use, as if it had ended. The peer sees its end, and rejects what it has asked for. */
static bool dispatch(struct sv_sock *s, const struct sv_msg *m, int *fds, int nfds)
{
	struct sv_peer *p = s->peer;

	if (!p) {
		if (m->type != SV_M_HELLO)
			return true;
		pthread_mutex_lock(&sv_proc.lock);
		p = peer_find(s->pid);
		if (!p)
			p = peer_new(s->pid);
		if (p) {
			s->peer = p;
			s->next = p->socks;
			p->socks = s;
			if (!p->out)
				p->out = s;
			if (!priv_of(p)->hello_sent)
				hello_send(p);
		}
		pthread_mutex_unlock(&sv_proc.lock);
		if (!p)
			return false;
	}
	switch (m->type) {
	case SV_M_HELLO:
		return got_hello(p, fds, nfds);
	case SV_M_CHAN:
		got_chan(p, m, fds, nfds);
		break;
	case SV_M_LINK:
		if (m->a)
			atomic_fetch_or(&p->away, SV_AWAY_THEIR);
		else
			atomic_fetch_and(&p->away, ~SV_AWAY_THEIR);
		if (!m->a)
			sv_cm_peer_back(p);
		break;
	default:
		if (sv_load(&p->seg) && !sv_load(&p->away))
			sv_cm_message(p, m);
		break;
	}
	return true;
}

#define READ_BATCH 4

union control {
	char buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
	struct cmsghdr align;
};

static int fds_take(struct msghdr *mh, int *fds)
{
	int n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(c), sizeof(int) * (size_t)n);
		for (int i = 0; i < n; i++)
			fds[i] = sv_fd_new(fds[i]);
	}
	return n;
}

/* One call's messages. 1: there may be more, 0: there are none, -1: the end. */
static int sock_read(struct sv_sock *s)
{
	struct sv_msg m[READ_BATCH];
	struct iovec iov[READ_BATCH];
	union control control[READ_BATCH];
	struct mmsghdr mm[READ_BATCH];
	int n, fds[MAX_FDS];
	bool whole = true;

	memset(mm, 0, sizeof(mm));
	for (int i = 0; i < READ_BATCH; i++) {
		iov[i] = (struct iovec){&m[i], sizeof(m[i])};
		mm[i].msg_hdr.msg_iov = &iov[i];
		mm[i].msg_hdr.msg_iovlen = 1;
		mm[i].msg_hdr.msg_control = control[i].buf;
		mm[i].msg_hdr.msg_controllen = sizeof(control[i].buf);
	}
	n = recvmmsg(s->src.fd, mm, READ_BATCH, MSG_DONTWAIT | MSG_CMSG_CLOEXEC, NULL);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	/* Descriptors of all of them are ours now, whatever becomes of the peer meanwhile. */
	for (int i = 0; i < n; i++) {
		int nfds = fds_take(&mm[i].msg_hdr, fds);

		whole = whole && mm[i].msg_len == sizeof(m[i]);
		whole = whole && dispatch(s, &m[i], fds, nfds);
		for (int j = 0; j < nfds; j++)
			sv_fd_close(fds[j]);
	}
	/* The end reads as messages of no length. */
	return !whole ? -1 : n == READ_BATCH;
}

static void sock_ready(struct sv_source *src, uint32_t events)
{
	struct sv_sock *s = sv_container(src, struct sv_sock, src);
	int r;

	if (src->fd < 0)
		return;
	if (events & EPOLLOUT)
		sock_flush(s);
	do
		r = sock_read(s);
	while (r > 0);
	if (r == 0)
		return;
	if (s->peer)
		peer_lost(s->peer);
	else
		sock_free(s);
}

/* ------------------------------------------------------------------ listening */

void sv_listen_ready(struct sv_source *src, uint32_t events)
{
	for (;;) {
		int fd = sv_fd_new(accept4(src->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
		struct sv_sock *s;
		pid_t pid;

		if (fd < 0)
			return;
		pid = cred_pid(fd);
		s = pid > 0 ? sock_new(fd, pid) : NULL;
		if (!s) {
			sv_fd_close(fd);
			continue;
		}
		if (sv_source_add(&s->src, EPOLLIN))
			sock_free(s);
	}
}

/* Binds (and with a backlog listens); errno value. The source is added to the thread's loop when it listens. */
int sv_name_listen(const char *name, size_t len, struct sv_source *s, int backlog)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	socklen_t alen = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	int ret;

	s->fd = sv_fd_new(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (s->fd < 0)
		return errno;
	sv_fd_slot(s->fd, (_Atomic int *)&s->fd, 0);
	memcpy(un.sun_path, name, len);
	if (bind(s->fd, (struct sockaddr *)&un, alen)) {
		ret = errno;
		goto fail;
	}
	if (!backlog)
		return 0;
	if (listen(s->fd, backlog)) {
		ret = errno;
		goto fail;
	}
	s->ready = sv_listen_ready;
	ret = sv_source_add(s, EPOLLIN);
	if (!ret)
		return 0;
fail:
	sv_fd_close(s->fd);
	s->fd = -1;
	return ret;
}

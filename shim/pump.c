/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The owner's side of pair mode (pump.h). Everything here happens under pump_lock, mostly on the progress thread, which
 * watches an epoll set of the library's ends. A turn moves bytes both ways until one side has no more or no room, and
 * is repeated when the pair or the stream reports a change. Nothing is kept in between: bytes leave the ring when the
 * pair has them and leave the pair when the stream has them, so the two buffers are the whole of it, and a holder that
 * does not read slows the peer down.
 */
#include "pump.h"

#include "bequest.h"
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "nofile.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#define BUDGET    (512u << 10) /* bytes a turn, each way */
#define CHUNK     (64u << 10)
#define DRAIN_MS  10000
#define SHARED    "shared with another process or stdio: its bytes go through the kernel"
#define BEQUEST   1  /* the events' data: an owner's end, see bequest.h */
#define TAG_SHIFT 48 /* the events' data: the pump's address and its tag */

struct vkr_pump {
	struct vkr_pump *prev, *next;         /* pumps in use */
	struct vkr_pump *run_prev, *run_next; /* run_lock */
	bool queued;                          /* run_lock */
	uint16_t tag;           /* changes when the memory is used again: events of the one before are void */
	struct vkr_watch watch; /* on the stream, while in use */
	struct vkr_stream *stream;
	struct vkr_sock *sock; /* NULL: this process has no number any more */
	int lib;               /* guarded; -1: not used, or over */
	bool on;               /* in use: pair mode */
	bool named;
	bool full;            /* the pair takes no more for now */
	bool fin_out, fin_in; /* the end of a direction has been passed on */
	bool deaf;            /* the holders read no more, the stream takes no more */
	bool reset;           /* the stream ended with an error */
	bool left;            /* the last holder has gone */
	bool discard;         /* ... leaving bytes that it had not read, or with SO_LINGER of 0 */
};

static pthread_mutex_t pump_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vkr_pump *pumps, *pool;
static uint8_t chunk[CHUNK];

/* The epoll set, and the run list's eventfd in it. */
static pthread_mutex_t run_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int set_fd = -1;
static int run_fd = -1;
static bool signaled;
static struct vkr_pump *run;
static _Atomic bool asked; /* vkr_bequests_serve() is to be called */

/* ------------------------------------------------------------------ the run list */

/* Any thread, under a stream's lock perhaps; write() would be a cancellation point, the system call is not. */
static void run_queue(struct vkr_pump *p)
{
	uint64_t one = 1;
	int saved = errno;
	bool kick;

	pthread_mutex_lock(&run_lock);
	if (!p->queued) {
		p->queued = true;
		DL_APPEND2(run, p, run_prev, run_next);
	}
	kick = !signaled;
	signaled = true;
	pthread_mutex_unlock(&run_lock);
	if (kick)
		vkr_real.syscall(SYS_write, run_fd, &one, sizeof(one));
	errno = saved;
}

void vkr_pump_ask(void)
{
	uint64_t one = 1;
	int saved = errno;

	vkr_store(&asked, true);
	vkr_real.syscall(SYS_write, run_fd, &one, sizeof(one));
	errno = saved;
}

static struct vkr_pump *run_take(void)
{
	struct vkr_pump *p;

	pthread_mutex_lock(&run_lock);
	p = run;
	if (p) {
		DL_DELETE2(run, p, run_prev, run_next);
		p->queued = false;
	}
	pthread_mutex_unlock(&run_lock);
	return p;
}

static void run_cancel(struct vkr_pump *p)
{
	pthread_mutex_lock(&run_lock);
	if (p->queued)
		DL_DELETE2(run, p, run_prev, run_next);
	p->queued = false;
	pthread_mutex_unlock(&run_lock);
}

static bool stream_fire(struct vkr_watch *w, uint32_t edge)
{
	run_queue(vkr_container_of(w, struct vkr_pump, watch));
	return false;
}

/* ------------------------------------------------------------------ life */

static int set_number(void)
{
	return vkr_load(&set_fd);
}

static void readable(void);

/* True if the set is there. */
static bool set_open(void)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0};
	int fd;

	if (vkr_load_acq(&set_fd) >= 0)
		return true;
	pthread_mutex_lock(&run_lock);
	if (vkr_load(&set_fd) < 0) {
		run_fd = vkr_guard_fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
		fd = run_fd < 0 ? -1 : vkr_guard_fd(vkr_real.epoll_create1(EPOLL_CLOEXEC));
		if (fd >= 0 && vkr_real.epoll_ctl(fd, EPOLL_CTL_ADD, run_fd, &ev) < 0) {
			vkr_guard_close(fd);
			fd = -1;
		}
		if (fd < 0 && run_fd >= 0) {
			vkr_guard_close(run_fd);
			run_fd = -1;
		}
		vkr_store_rel(&set_fd, fd);
	}
	pthread_mutex_unlock(&run_lock);
	if (vkr_load(&set_fd) < 0)
		return false;
	vkr_engine_watch(set_number, readable);
	return true;
}

/* Memory that stays a pump's for ever, so that a late event may look at its tag. run_lock is a leaf. */
static struct vkr_pump *pump_alloc(void)
{
	enum { BYTES = 65536 };
	struct vkr_pump *p;
	size_t i;

	pthread_mutex_lock(&run_lock);
	if (!pool) {
		p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (i = 0; p != MAP_FAILED && i < BYTES / sizeof(*p); i++) {
			p[i].next = pool;
			pool = &p[i];
		}
	}
	p = pool;
	if (p)
		pool = p->next;
	pthread_mutex_unlock(&run_lock);
	if (p)
		*p = (struct vkr_pump){.tag = (uint16_t)(p->tag + 1), .lib = -1, .watch.fire = stream_fire};
	return p;
}

static void pump_free(struct vkr_pump *p)
{
	pthread_mutex_lock(&run_lock);
	p->tag++;
	p->next = pool;
	pool = p;
	pthread_mutex_unlock(&run_lock);
}

static int watch_lib(struct vkr_pump *p, int op, uint32_t events)
{
	struct epoll_event ev = {.events = events | EPOLLIN | EPOLLRDHUP | EPOLLET,
				 .data.u64 = (uint64_t)(uintptr_t)p | (uint64_t)p->tag << TAG_SHIFT};

	return vkr_real.epoll_ctl(vkr_load(&set_fd), op, p->lib, &ev);
}

void vkr_pump_new(struct vkr_sock *s, int fd)
{
	struct sockaddr_storage local, peer;
	struct vkr_pump *p = s->pair_lib >= 0 && set_open() ? pump_alloc() : NULL;

	if (p) {
		p->stream = s->stream;
		p->sock = s;
		p->lib = s->pair_lib;
	}
	if (!p || watch_lib(p, EPOLL_CTL_ADD, 0) < 0) {
		/* Nobody will look at it: a holder that wants more than our calls must not wait for one who does. */
		if (p)
			pump_free(p);
		if (s->pair_lib >= 0)
			vkr_guard_close(s->pair_lib);
		s->pair_lib = -1;
		vkr_warn(
		    "descriptor %d: cannot be shared with other processes or stdio: no memory or descriptor is left",
		    fd);
		return;
	}
	vkr_guard_slot(p->lib, &p->lib);
	s->pair_lib = -1;
	s->pump = p;
	vkr_stream_addrs(s->stream, &local, &peer);
	vkr_pair_name(fd, s->domain, &local, &peer);
}

/* The library's end goes: who has the other one sees the end of file. */
static void close_lib(struct vkr_pump *p)
{
	watch_lib(p, EPOLL_CTL_DEL, 0);
	vkr_guard_close(p->lib);
	p->lib = -1;
}

/* ------------------------------------------------------------------ switching */

static void set_time(int fd, int name, int64_t ns)
{
	struct timeval tv = {ns / 1000000000, ns % 1000000000 / 1000};

	if (ns)
		vkr_real.setsockopt(fd, SOL_SOCKET, name, &tv, sizeof(tv));
}

/* The socket's numbers are the kernel's from now on; false if it is no longer connected. */
static bool switch_sock(struct vkr_sock *s)
{
	int fd;

	pthread_mutex_lock(&vkr_ctl_lock);
	if (vkr_load(&s->state) != VKR_SOCK_CARRIED) {
		pthread_mutex_unlock(&vkr_ctl_lock);
		return false;
	}
	vkr_store_rel(&s->state, VKR_SOCK_PAIRED);
	fd = vkr_file_number(&s->file);
	if (fd >= 0) {
		set_time(fd, SO_RCVTIMEO, vkr_load(&s->rcvtimeo));
		set_time(fd, SO_SNDTIMEO, vkr_load(&s->sndtimeo));
	}
	vkr_items_to_kernel(&s->file);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_info("descriptor %d: %s", fd, SHARED);
	return true;
}

/* After it nobody takes bytes out of the stream but forward(); whoever waits for them is sent to the pair. */
static void switch_on(struct vkr_pump *p)
{
	if (p->sock && !switch_sock(p->sock))
		return;
	p->on = true;
	snprintf(vkr_stream_stats(p->stream)->reason, sizeof(vkr_stream_stats(p->stream)->reason), "%s", SHARED);
	DL_APPEND(pumps, p);
	vkr_watch_add(vkr_stream_pollable(p->stream), &p->watch);
	vkr_stream_hand_over(p->stream);
	watch_lib(p, EPOLL_CTL_MOD, EPOLLOUT);
}

/* ------------------------------------------------------------------ from the ring to the pair */

static ssize_t take(void *arg, const struct iovec *iov, int n)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)n};
	struct vkr_pump *p = arg;
	ssize_t r = p->deaf ? -1 : vkr_real.sendmsg(p->lib, &m, MSG_DONTWAIT | MSG_NOSIGNAL), i;

	if (r > 0)
		return r;
	if (!p->deaf && errno != EPIPE && errno != ECONNRESET) {
		p->full = true;
		return 0;
	}
	/* SHUT_RD, or nobody is left: nobody will want these. */
	p->deaf = true;
	for (i = r = 0; i < n; i++)
		r += (ssize_t)iov[i].iov_len;
	return r;
}

/* True: there may be more. */
static bool move_out(struct vkr_pump *p)
{
	size_t budget = BUDGET;
	ssize_t r;

	p->full = false;
	while (budget) {
		r = vkr_stream_forward(p->stream, take, p);
		if (r > 0) {
			budget -= vkr_min(budget, (size_t)r);
			continue;
		}
		if (p->full || r == -EAGAIN)
			return false;
		if (r < 0)
			p->reset = true;
		else if (!p->fin_out)
			vkr_real.shutdown(p->lib, SHUT_WR);
		p->fin_out = true;
		return false;
	}
	return true;
}

/* ------------------------------------------------------------------ from the pair to the stream */

static void close_rights(struct msghdr *m)
{
	struct cmsghdr *c;
	size_t i;
	int fd;

	for (c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
		for (i = 0; c->cmsg_type == SCM_RIGHTS && i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			vkr_real.close(fd);
		}
}

/*
 * One look or one read; *request: the last byte came with a descriptor, which is closed here. A message with
 * descriptors ends what one call returns.
 */
static ssize_t lib_read(struct vkr_pump *p, size_t n, int flags, bool *request)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(8 * sizeof(int))];
	} u;
	struct iovec iov = {chunk, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};
	ssize_t r = vkr_real.recvmsg(p->lib, &m, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*request = r > 0 && m.msg_controllen >= CMSG_LEN(0) && CMSG_FIRSTHDR(&m);
	if (*request)
		close_rights(&m);
	return r < 0 ? -errno : r;
}

/* n bytes that have been looked at. One call takes them all, as far as is known; too few would come twice. */
static void lib_skip(struct vkr_pump *p, size_t n)
{
	ssize_t r;

	do
		r = lib_read(p, n, 0, &(bool){false});
	while (r > 0 && (n -= (size_t)r));
}

static bool lib_hung_up(struct vkr_pump *p)
{
	struct pollfd pfd = {.fd = p->lib};

	return vkr_poll_now(&pfd, 1) > 0 && pfd.revents & POLLHUP;
}

/* Nothing more comes from the pair: its holders shut it down for writing, for both, or have all gone. */
static void end_in(struct vkr_pump *p)
{
	bool hup = lib_hung_up(p);

	if (hup && !p->sock) {
		p->left = true;
	} else if (hup && !p->deaf) {
		p->fin_in = p->deaf = true;
		vkr_stream_shutdown(p->stream, SHUT_RDWR);
	} else if (!p->fin_in) {
		p->fin_in = true;
		vkr_stream_shutdown(p->stream, SHUT_WR);
	}
}

/* Hands n bytes of chunk to the stream; how many it took, -EAGAIN for none. */
static ssize_t give(struct vkr_pump *p, size_t n)
{
	struct iovec iov = {chunk, n};
	ssize_t r = vkr_stream_send(p->stream, &iov, 1, n, 0);

	if (r > 0 || r == -EAGAIN || r == -ENOMEM)
		return r > 0 ? r : -EAGAIN;
	/* TCP's writers would see this error once, and EPIPE ever after. */
	if (r != -EPIPE)
		p->reset = true;
	vkr_real.shutdown(p->lib, SHUT_RD);
	return (ssize_t)n;
}

static bool move_in(struct vkr_pump *p)
{
	size_t budget = BUDGET, data;
	bool request;
	ssize_t n, k;

	while (budget) {
		n = lib_read(p, CHUNK, MSG_PEEK, &request);
		if (n == -ECONNRESET) { /* closed with bytes unread; the end follows */
			p->discard = true;
			continue;
		}
		if (n < 0)
			return false;
		if (!n) {
			end_in(p);
			return false;
		}
		data = (size_t)n - request;
		k = data ? give(p, data) : 0;
		if (k < 0)
			return false;
		if (k)
			lib_skip(p, (size_t)k);
		if (request && (size_t)k == data)
			lib_read(p, 1, 0, &request);
		budget -= vkr_min(budget, (size_t)n);
	}
	return true;
}

/* ------------------------------------------------------------------ turns */

/* So that its readers see ECONNRESET after the data: a pair's end that is closed with bytes unread gives that. */
static void pass_reset(struct vkr_pump *p)
{
	int fd;

	pthread_mutex_lock(&vkr_ctl_lock);
	fd = p->sock ? vkr_file_number(&p->sock->file) : -1;
	if (fd >= 0)
		vkr_real.send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
	pthread_mutex_unlock(&vkr_ctl_lock);
}

static void stop(struct vkr_pump *p)
{
	vkr_watch_del(vkr_stream_pollable(p->stream), &p->watch);
	run_cancel(p);
	close_lib(p);
	DL_DELETE(pumps, p);
	p->on = false;
}

static void finish(struct vkr_pump *p)
{
	if (p->reset)
		pass_reset(p);
	stop(p);
	if (p->sock)
		return;
	vkr_stream_close(p->stream, p->discard ? 0 : DRAIN_MS);
	pump_free(p);
}

/* The stream is over, and what it had brought is in the pair. */
static bool is_over(struct vkr_pump *p)
{
	if (p->left)
		return true;
	if (!p->reset && !(vkr_pollable_ready(vkr_stream_pollable(p->stream)) & EPOLLHUP))
		return false;
	return p->deaf || !vkr_stream_inq(p->stream);
}

/* Bytes, or an end that is not everybody's, where no call of ours put them: somebody writes past us. */
static bool is_wanted(struct vkr_pump *p)
{
	ssize_t r = vkr_real.recv(p->lib, chunk, 1, MSG_PEEK | MSG_DONTWAIT);

	return r > 0 || (r == 0 && !lib_hung_up(p));
}

static void turn(struct vkr_pump *p)
{
	bool more;

	if (p->lib < 0)
		return;
	if (!p->on) {
		if (!is_wanted(p))
			return;
		switch_on(p);
		if (!p->on)
			return;
	}
	more = move_out(p);
	if (!p->named)
		vkr_pair_name_used(p->lib);
	p->named = true;
	more |= move_in(p);
	if (is_over(p))
		finish(p);
	else if (more)
		run_queue(p);
}

static struct vkr_pump *pump_of(uint64_t data)
{
	struct vkr_pump *p = (struct vkr_pump *)(uintptr_t)(data & ((UINT64_C(1) << TAG_SHIFT) - 1));

	return p->tag == data >> TAG_SHIFT ? p : NULL;
}

static void run_turns(void)
{
	struct vkr_pump *p, *last;
	uint64_t n;

	pthread_mutex_lock(&run_lock);
	if (vkr_real.syscall(SYS_read, run_fd, &n, sizeof(n)) == sizeof(n))
		signaled = false;
	last = run ? run->run_prev : NULL;
	pthread_mutex_unlock(&run_lock);
	while (last && (p = run_take())) {
		if (p == last)
			last = NULL; /* what comes behind it has come meanwhile: the next time */
		turn(p);
	}
}

/* pump_lock held. */
static void serve(void)
{
	struct epoll_event ev[32];
	struct vkr_pump *p;
	int i, n = (int)vkr_real.syscall(SYS_epoll_pwait, set_number(), ev, 32, 0, NULL, 8);

	for (i = 0; i < n; i++) {
		if (ev[i].data.u64 == BEQUEST)
			vkr_store(&asked, true);
		else if (!ev[i].data.u64)
			run_turns();
		else if ((p = pump_of(ev[i].data.u64)))
			turn(p);
	}
}

/* ------------------------------------------------------------------ what others call */

/* Their threads may be cancelled, the progress thread not: none of it may end half-way. */
int vkr_pump_enter(void)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&pump_lock);
	return cancel;
}

void vkr_pump_leave(int cancel)
{
	pthread_mutex_unlock(&pump_lock);
	pthread_setcancelstate(cancel, NULL);
}

static void readable(void)
{
	int cancel = vkr_pump_enter();

	serve();
	if (atomic_exchange(&asked, false))
		vkr_bequests_serve();
	vkr_pump_leave(cancel);
}

void vkr_pump_switch(struct vkr_sock *s)
{
	int cancel = vkr_pump_enter();
	struct vkr_pump *p = s->pump;

	if (p && !p->on && p->lib >= 0) {
		switch_on(p);
		if (p->on)
			turn(p);
	}
	vkr_pump_leave(cancel);
}

bool vkr_pump_release(struct vkr_sock *s)
{
	int cancel = vkr_pump_enter();
	struct vkr_pump *p = s->pump;
	bool taken = false;

	if (p) {
		s->pump = NULL;
		p->sock = NULL;
		p->discard |= s->linger_on && !s->linger_s;
		if (p->lib >= 0 && !p->on && vkr_real.recv(p->lib, chunk, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
			close_lib(p); /* the usual end: nobody else has it */
		if (p->lib < 0) {
			pump_free(p);
		} else {
			taken = true;
			if (!p->on)
				switch_on(p);
			run_queue(p);
		}
	}
	vkr_pump_leave(cancel);
	return taken;
}

void vkr_pump_drop(struct vkr_pump *p)
{
	int cancel = vkr_pump_enter();

	if (p->on)
		stop(p);
	else if (p->lib >= 0)
		close_lib(p);
	pump_free(p);
	vkr_pump_leave(cancel);
}

#define YIELD 8 /* at a time */

static void yield_one(int fd, struct vkr_file *f, void *arg)
{
	struct vkr_sock *s = (struct vkr_sock *)f;
	struct vkr_pump *p;
	int *n = arg;

	if (*n == YIELD || f->kind != VKR_KIND_SOCK || vkr_file_inherited(f) || s->shared)
		return;
	p = vkr_load(&s->state) == VKR_SOCK_CARRIED ? s->pump : NULL;
	if (!p || p->on || p->lib < 0 || vkr_real.recv(p->lib, chunk, 1, MSG_PEEK | MSG_DONTWAIT) >= 0)
		return;
	close_lib(p);
	++*n;
}

bool vkr_pump_yield(void)
{
	int cancel, n = 0;

	if (!vkr_limits_full())
		return false;
	cancel = vkr_pump_enter();
	pthread_mutex_lock(&vkr_ctl_lock);
	vkr_file_each_number(NULL, yield_one, &n);
	pthread_mutex_unlock(&vkr_ctl_lock);
	vkr_pump_leave(cancel);
	if (n)
		vkr_info("%d connections cannot be shared with other processes or stdio any more: their descriptors "
			 "are needed",
			 n);
	return n;
}

static size_t outq(struct vkr_pump *p)
{
	int n = 0;

	return p->on && vkr_real.ioctl(p->lib, FIONREAD, &n) == 0 ? (size_t)n : 0;
}

bool vkr_pump_watch(int fd)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = BEQUEST};

	return set_open() && vkr_real.epoll_ctl(set_number(), EPOLL_CTL_ADD, fd, &ev) == 0;
}

int vkr_pump_bequeath(struct vkr_sock *s, int to)
{
	struct vkr_pump *p;
	int r;

	vkr_pump_new(s, s->pair_app);
	p = s->pump;
	if (!p)
		return -ENOMEM;
	s->pump = NULL;
	r = vkr_pair_pass(to, s->pair_app);
	if (r) {
		close_lib(p);
		pump_free(p);
		return r;
	}
	s->stream = NULL;
	p->sock = NULL;
	switch_on(p);
	turn(p);
	return 0;
}

size_t vkr_pump_outq(struct vkr_sock *s)
{
	int cancel = vkr_pump_enter();
	size_t n = s->pump ? outq(s->pump) : 0;

	vkr_pump_leave(cancel);
	return n;
}

void vkr_pump_flush(int ms)
{
	int64_t end = vkr_now_ns() + ms * 1000000ll;
	struct vkr_pump *p;
	bool any = true;
	int cancel;

	if (set_number() < 0)
		return;
	while (any) {
		any = false;
		cancel = vkr_pump_enter();
		serve();
		DL_FOREACH (pumps, p)
			any |= outq(p) > 0;
		vkr_pump_leave(cancel);
		if (vkr_now_ns() >= end)
			return;
		if (any)
			vkr_real.poll(NULL, 0, 1);
	}
}

void vkr_pump_fork_prepare(void)
{
	pthread_mutex_lock(&pump_lock);
}

void vkr_pump_fork_parent(void)
{
	pthread_mutex_unlock(&pump_lock);
}

/* The parent's pumps are its own; the descriptors are closed with the other guarded ones. */
void vkr_pump_fork_child(void)
{
	pthread_mutex_init(&pump_lock, NULL);
	pthread_mutex_init(&run_lock, NULL);
	vkr_store(&set_fd, -1);
	run_fd = -1;
	signaled = false;
	vkr_store(&asked, false);
	pumps = run = pool = NULL;
}

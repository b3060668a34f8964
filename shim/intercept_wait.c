/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting. Any set may hold a carried descriptor, so all of these are routed while a rule is active. */
#include "intercept.h"
#include "plain_wait.h"
#include "pump.h"

static int note_epoll(int fd)
{
	int saved = errno;

	if (fd < 0 || vkr_likely(!vkr_on()) || vkr_vforked())
		return fd;
	vkr_process_prepare();
	/* A set that is not known could hold nothing that is carried. */
	if (vkr_fd_epoll(fd) < 0) {
		vkr_real.close(fd);
		errno = ENOMEM;
		return -1;
	}
	errno = saved;
	return fd;
}

int vkr_call_epoll_create(int size)
{
	vkr_init();
	return note_epoll(vkr_real.epoll_create(size));
}
VKR_NAME(epoll_create, vkr_call_epoll_create);

int vkr_call_epoll_create1(int flags)
{
	vkr_init();
	return note_epoll(vkr_real.epoll_create1(flags));
}
VKR_NAME(epoll_create1, vkr_call_epoll_create1);

VKR_ACTIVE int active_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.epoll_ctl(epfd, op, fd, ev);
	VKR_ROUTE(vkr_epoll_ctl(epfd, op, fd, ev), vkr_real.epoll_ctl(epfd, op, fd, ev));
}
VKR_ENTRY_IF(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *ev), (epfd, op, fd, ev),
	     !(vkr_plain_knows(epfd) && vkr_foreign(fd)) && vkr_load(&vkr_active));

static int64_t to_ns(const struct timespec *ts)
{
	return !ts || ts->tv_sec >= 1000000000 ? -1 : ts->tv_sec * 1000000000ll + ts->tv_nsec;
}

/* The time-outs of waits that were hit, and their masks. */
static int64_t left_ms_masked(struct vkr_plain *was)
{
	return was->timeout.ms * 1000000ll;
}

static int64_t left_ms(struct vkr_plain *was)
{
	was->mask = NULL;
	return left_ms_masked(was);
}

static int64_t left_ts(struct vkr_plain *was)
{
	return to_ns(was->timeout.ts);
}

static VKR_COLD int resumed(struct vkr_plain *self, int n, int64_t (*left)(struct vkr_plain *was))
{
	int saved = errno, r = vkr_epoll_resume(self, n, left);

	errno = r < 0 && n >= 0 ? -r : saved;
	return r < 0 ? -1 : r;
}

/* A number that the thread does not know: the note is taken away, and what has hit it meanwhile is of no interest. */
static VKR_COLD void turned_back(void)
{
	struct vkr_plain was;

	if (vkr_plain_leave(vkr_plain_self))
		vkr_plain_put(vkr_plain_left(vkr_plain_self, &was));
}

/*
 * The exported body: past us to the kernel, where the thread knows the set's number as a plain one. Neither a lock nor
 * an atomic read-modify-write, and no more than fifteen instructions (tests/unit/test_unflagged_cost.c).
 */
#define VKR_WAIT(name, params, args, left, save)                                                                       \
	static __attribute__((noinline)) int other_##name params                                                       \
	{                                                                                                              \
		turned_back();                                                                                         \
		return active_##name args;                                                                             \
	}                                                                                                              \
	int vkr_call_##name params                                                                                     \
	{                                                                                                              \
		struct vkr_plain *self = vkr_plain_self;                                                               \
		int n;                                                                                                 \
                                                                                                                       \
		if (!vkr_plain_may(self)) {                                                                            \
			if (vkr_likely(!vkr_load(&vkr_active)))                                                        \
				return vkr_real.name args;                                                             \
			return active_##name args;                                                                     \
		}                                                                                                      \
		if (!vkr_plain_enter(self, epfd, evs))                                                                 \
			return other_##name args;                                                                      \
		save;                                                                                                  \
		n = vkr_real.name args;                                                                                \
		return vkr_plain_leave(self) ? resumed(self, n, left) : n;                                             \
	}                                                                                                              \
	VKR_NAME(name, vkr_call_##name)

VKR_ACTIVE int active_epoll_wait(int epfd, struct epoll_event *evs, int max, int timeout)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.epoll_wait(epfd, evs, max, timeout);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, timeout * 1000000ll, NULL),
		  vkr_real.epoll_wait(epfd, evs, max, timeout));
}
VKR_WAIT(epoll_wait, (int epfd, struct epoll_event *evs, int max, int timeout), (epfd, evs, max, timeout), left_ms,
	 self->timeout.ms = timeout);

VKR_ACTIVE int active_epoll_pwait(int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.epoll_pwait(epfd, evs, max, timeout, mask);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, timeout * 1000000ll, mask),
		  vkr_real.epoll_pwait(epfd, evs, max, timeout, mask));
}
VKR_WAIT(epoll_pwait, (int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask),
	 (epfd, evs, max, timeout, mask), left_ms_masked, (self->timeout.ms = timeout, self->mask = mask));

/* A time that the kernel refuses is the kernel's to refuse. */
static bool time_valid(const struct timespec *ts)
{
	return !ts || (ts->tv_sec >= 0 && ts->tv_nsec >= 0 && ts->tv_nsec < 1000000000L);
}

VKR_ACTIVE int active_epoll_pwait2(int epfd, struct epoll_event *evs, int max, const struct timespec *timeout,
				   const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.epoll_pwait2(epfd, evs, max, timeout, mask);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, to_ns(timeout), mask),
		  vkr_real.epoll_pwait2(epfd, evs, max, timeout, mask));
}
VKR_WAIT(epoll_pwait2,
	 (int epfd, struct epoll_event *evs, int max, const struct timespec *timeout, const sigset_t *mask),
	 (epfd, evs, max, timeout, mask), left_ts, (self->timeout.ts = timeout, self->mask = mask));

/* Milliseconds, negative for ever. */
static struct timespec *from_ms(int ms, struct timespec *ts)
{
	if (ms < 0)
		return NULL;
	ts->tv_sec = ms / 1000;
	ts->tv_nsec = ms % 1000 * 1000000L;
	return ts;
}

/* Polls of a process that carries something look for what is ours among their descriptors: about ten instructions for
 * each, and a dozen for each word of a set of select's. */
#define LOOK_AT 1024

static bool all_foreign(const struct pollfd *fds, nfds_t n)
{
	if (n > LOOK_AT || vkr_bad_pointer(fds, n * sizeof(*fds)))
		return false;
	for (nfds_t i = 0; i < n; i++)
		if (vkr_fd_tracked(fds[i].fd))
			return false;
	return true;
}

static bool all_foreign_in(int n, const fd_set *r, const fd_set *w, const fd_set *e)
{
	static const unsigned long none[LOOK_AT / 64];
	const unsigned long *in = r ? (const unsigned long *)r : none, *out = w ? (const unsigned long *)w : none,
			    *ex = e ? (const unsigned long *)e : none;
	size_t bytes = ((size_t)n + 63) / 64 * 8;

	if (n <= 0 || n > LOOK_AT || vkr_bad_pointer(in, bytes) || vkr_bad_pointer(out, bytes) ||
	    vkr_bad_pointer(ex, bytes))
		return false;
	for (int i = 0; i < n; i += 64) {
		unsigned long bits = in[i / 64] | out[i / 64] | ex[i / 64];

		if (n - i < 64)
			bits &= (1ul << (n - i)) - 1;
		for (; bits; bits &= bits - 1)
			if (vkr_fd_tracked(i + __builtin_ctzl(bits)))
				return false;
	}
	return true;
}

VKR_ACTIVE int active_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec ts;

	if (vkr_likely(!vkr_on()))
		return vkr_real.poll(fds, n, timeout);
	VKR_ROUTE(vkr_poll(fds, n, from_ms(timeout, &ts), NULL), vkr_real.poll(fds, n, timeout));
}
VKR_ENTRY_IF(int, poll, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout),
	     vkr_polls_concern_us() && !all_foreign(fds, n));
VKR_NAME(__poll, vkr_call_poll);

VKR_ACTIVE int active_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.ppoll(fds, n, timeout, mask);
	VKR_ROUTE(vkr_poll(fds, n, timeout, mask), vkr_real.ppoll(fds, n, timeout, mask));
}
VKR_ENTRY_IF(int, ppoll, (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask),
	     (fds, n, timeout, mask), vkr_polls_concern_us() && !all_foreign(fds, n));

VKR_ACTIVE int ours_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timespec ts, left;
	int saved = errno, ret;

	if (vkr_likely(!vkr_on()))
		return vkr_real.select(n, r, w, e, timeout);
	if (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0 || timeout->tv_sec > INT64_MAX - 1000000))
		return vkr_real.select(n, r, w, e, timeout);
	if (timeout) { /* more than a million microseconds is allowed */
		ts.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
		ts.tv_nsec = timeout->tv_usec % 1000000 * 1000;
		left = ts;
	}
	ret = vkr_select(n, r, w, e, timeout ? &ts : NULL, NULL, timeout ? &left : NULL);
	errno = saved;
	if (ret == VKR_PASS)
		return vkr_real.select(n, r, w, e, timeout);
	if (timeout) {
		timeout->tv_sec = left.tv_sec;
		timeout->tv_usec = left.tv_nsec / 1000;
	}
	if (ret >= 0)
		return ret;
	errno = -ret;
	return -1;
}

VKR_ACTIVE int active_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	if (all_foreign_in(n, r, w, e))
		return vkr_real.select(n, r, w, e, timeout);
	return ours_select(n, r, w, e, timeout);
}
VKR_ENTRY_IF(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout), (n, r, w, e, timeout),
	     vkr_polls_concern_us());
VKR_NAME(__select, vkr_call_select);

VKR_ACTIVE int ours_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
			    const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.pselect(n, r, w, e, timeout, mask);
	VKR_ROUTE(vkr_select(n, r, w, e, timeout, mask, NULL), vkr_real.pselect(n, r, w, e, timeout, mask));
}
VKR_ACTIVE int active_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
			      const sigset_t *mask)
{
	if (all_foreign_in(n, r, w, e))
		return vkr_real.pselect(n, r, w, e, timeout, mask);
	return ours_pselect(n, r, w, e, timeout, mask);
}
VKR_ENTRY_IF(int, pselect,
	     (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask),
	     (n, r, w, e, timeout, mask), vkr_polls_concern_us());

int vkr_call_poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
	if (vkr_unlikely(size / sizeof(*fds) < n))
		return vkr_real.__poll_chk(fds, n, timeout, size);
	return vkr_call_poll(fds, n, timeout);
}
VKR_NAME(__poll_chk, vkr_call_poll_chk);

int vkr_call_ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size)
{
	if (vkr_unlikely(size / sizeof(*fds) < n))
		return vkr_real.__ppoll_chk(fds, n, timeout, mask, size);
	return vkr_call_ppoll(fds, n, timeout, mask);
}
VKR_NAME(__ppoll_chk, vkr_call_ppoll_chk);

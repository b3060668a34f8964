/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting. Any set may hold a carried descriptor, so all of these are routed while a rule is active. */
#include "intercept.h"

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
VKR_ENTRY(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *ev), (epfd, op, fd, ev));

VKR_ACTIVE int active_epoll_wait(int epfd, struct epoll_event *evs, int max, int timeout)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.epoll_wait(epfd, evs, max, timeout);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, timeout * 1000000ll, NULL),
		  vkr_real.epoll_wait(epfd, evs, max, timeout));
}
VKR_ENTRY(int, epoll_wait, (int epfd, struct epoll_event *evs, int max, int timeout), (epfd, evs, max, timeout));

VKR_ACTIVE int active_epoll_pwait(int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.epoll_pwait(epfd, evs, max, timeout, mask);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, timeout * 1000000ll, mask),
		  vkr_real.epoll_pwait(epfd, evs, max, timeout, mask));
}
VKR_ENTRY(int, epoll_pwait, (int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask),
	  (epfd, evs, max, timeout, mask));

/* A time that the kernel refuses is the kernel's to refuse. */
static bool time_valid(const struct timespec *ts)
{
	return !ts || (ts->tv_sec >= 0 && ts->tv_nsec >= 0 && ts->tv_nsec < 1000000000L);
}

static int64_t to_ns(const struct timespec *ts)
{
	return !ts || ts->tv_sec >= 1000000000 ? -1 : ts->tv_sec * 1000000000ll + ts->tv_nsec;
}

VKR_ACTIVE int active_epoll_pwait2(int epfd, struct epoll_event *evs, int max, const struct timespec *timeout,
				   const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.epoll_pwait2(epfd, evs, max, timeout, mask);
	VKR_ROUTE(vkr_epoll_wait(epfd, evs, max, to_ns(timeout), mask),
		  vkr_real.epoll_pwait2(epfd, evs, max, timeout, mask));
}
VKR_ENTRY(int, epoll_pwait2,
	  (int epfd, struct epoll_event *evs, int max, const struct timespec *timeout, const sigset_t *mask),
	  (epfd, evs, max, timeout, mask));

/* Milliseconds, negative for ever. */
static struct timespec *from_ms(int ms, struct timespec *ts)
{
	if (ms < 0)
		return NULL;
	ts->tv_sec = ms / 1000;
	ts->tv_nsec = ms % 1000 * 1000000L;
	return ts;
}

VKR_ACTIVE int active_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec ts;

	if (vkr_likely(!vkr_on()))
		return vkr_real.poll(fds, n, timeout);
	VKR_ROUTE(vkr_poll(fds, n, from_ms(timeout, &ts), NULL), vkr_real.poll(fds, n, timeout));
}
VKR_ENTRY(int, poll, (struct pollfd * fds, nfds_t n, int timeout), (fds, n, timeout));
VKR_NAME(__poll, vkr_call_poll);

VKR_ACTIVE int active_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.ppoll(fds, n, timeout, mask);
	VKR_ROUTE(vkr_poll(fds, n, timeout, mask), vkr_real.ppoll(fds, n, timeout, mask));
}
VKR_ENTRY(int, ppoll, (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask),
	  (fds, n, timeout, mask));

VKR_ACTIVE int active_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
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

VKR_ENTRY(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout), (n, r, w, e, timeout));
VKR_NAME(__select, vkr_call_select);

VKR_ACTIVE int active_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout,
			      const sigset_t *mask)
{
	if (vkr_likely(!vkr_on()) || !time_valid(timeout))
		return vkr_real.pselect(n, r, w, e, timeout, mask);
	VKR_ROUTE(vkr_select(n, r, w, e, timeout, mask, NULL), vkr_real.pselect(n, r, w, e, timeout, mask));
}
VKR_ENTRY(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask),
	  (n, r, w, e, timeout, mask));

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

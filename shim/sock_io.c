/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reading and writing on a carried socket: Linux's argument checks, blocking, time-outs, flags and signals around
 * vkr_stream_recv() and vkr_stream_send(), which never block.
 */
#include "epset.h"
#include "libc_real.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* s: what the number names, of which the reference is ours, or NULL. */
struct vkr_sock *vkr_carried_else(int fd, struct vkr_sock *s, int *r)
{
	enum vkr_sock_state state;

	*r = VKR_PASS;
	if (vkr_unlikely(!s))
		return NULL;
	state = vkr_load_acq(&s->state);
	if (vkr_unlikely(state == VKR_SOCK_CONNECTING))
		state = vkr_sock_settle(s);
	if (vkr_likely(state == VKR_SOCK_CARRIED) && vkr_likely(!vkr_file_inherited(&s->file)))
		return s;
	if (state == VKR_SOCK_CARRIED)
		vkr_pair_share(s, fd); /* a stream inherited by fork */
	if (state == VKR_SOCK_CARRIED || state == VKR_SOCK_PAIRED) {
		*r = VKR_PAIRED;
	} else if (state == VKR_SOCK_CONNECTING) {
		*r = -EAGAIN;
		if (!vkr_load(&s->nonblock) && !vkr_file_inherited(&s->file)) {
			/* A blocking socket whose connect() was interrupted: the call waits for the connection. */
			VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *held = s;
			struct vkr_stream *stream = *(struct vkr_stream *volatile *)&s->stream;

			/* NULL: another thread has just made the attempt fall back. */
			*r = stream ? vkr_wait_connect(stream, 0) : 0;
			return *r ? NULL : vkr_carried_get(fd, r);
		}
	}
	vkr_sock_put(s);
	return NULL;
}

#define MAX_RW ((size_t)0x7ffff000) /* MAX_RW_COUNT */

/* The kernel's checks of a buffer; its length. `data` false: it is not touched. */
static inline ssize_t check_buffer(const struct iovec *iov, bool data)
{
	return vkr_unlikely(data && vkr_bad_pointer(iov->iov_base, iov->iov_len)) ? -EFAULT : (ssize_t)iov->iov_len;
}

/* The kernel's checks of an iovec array; the total is what SSIZE_MAX allows. `data` false: the buffers are not touched.
 */
static ssize_t check_iov(const struct iovec *iov, int cnt, bool data, int too_many)
{
	size_t total = 0;
	int i;

	if (cnt < 0 || cnt > IOV_MAX)
		return too_many;
	if (vkr_bad_pointer(iov, (size_t)cnt * sizeof(*iov)))
		return -EFAULT;
	for (i = 0; i < cnt; i++) {
		if ((ssize_t)iov[i].iov_len < 0 || total + iov[i].iov_len > SSIZE_MAX)
			return -EINVAL;
		if (data && vkr_bad_pointer(iov[i].iov_base, iov[i].iov_len))
			return -EFAULT;
		total += iov[i].iov_len;
	}
	return (ssize_t)vkr_min(total, MAX_RW);
}

/* ------------------------------------------------------------------ in */

#define REST 16

/* Copies what is left of an iovec array after `done` bytes into out, as far as that reaches. Returns the number of
 * entries; *bytes: what they hold. */
static int iov_rest(const struct iovec *iov, int cnt, size_t done, struct iovec out[REST], size_t *bytes)
{
	int n = 0;

	for (; cnt && done >= iov->iov_len; cnt--, iov++)
		done -= iov->iov_len;
	for (*bytes = 0; cnt && n < REST; cnt--, iov++) {
		if (!iov->iov_len)
			continue;
		out[n].iov_base = (char *)iov->iov_base + done;
		out[n].iov_len = iov->iov_len - done;
		*bytes += out[n++].iov_len;
		done = 0;
	}
	return n;
}

static inline ssize_t recv_some(struct vkr_sock *s, const struct iovec *iov, size_t want, unsigned how)
{
	ssize_t n = vkr_stream_recv(s->stream, iov, want, how);

	/* Nobody may have asked the CQ since the bytes came: a program that polls with recv() alone must get them. */
	if (vkr_unlikely(n == -EAGAIN) && vkr_engine_poll() > 0)
		n = vkr_stream_recv(s->stream, iov, want, how);
	return n;
}

/* MSG_TRUNC on a stream socket drops the bytes instead of copying them (tcp(7)). */
static ssize_t recv_drop(struct vkr_sock *s, size_t total, unsigned how)
{
	char sink[4096];
	size_t done = 0;
	struct iovec iov = {sink, 0};
	ssize_t n;

	do {
		iov.iov_len = vkr_min(sizeof(sink), total - done);
		n = recv_some(s, &iov, iov.iov_len, done ? VKR_IO_MORE : how);
		if (n > 0)
			done += (size_t)n;
	} while (n > 0 && done < total);
	return done ? (ssize_t)done : n;
}

/* MSG_PEEK with MSG_TRUNC says how many bytes there are, and copies none. */
static ssize_t recv_measure(struct vkr_sock *s, size_t total)
{
	struct iovec none = {NULL, 0};
	ssize_t n = recv_some(s, &none, 0, VKR_IO_PEEK);

	return n < 0 ? n : (ssize_t)vkr_min(vkr_stream_inq(s->stream), total);
}

static int64_t deadline_of(_Atomic int64_t *timeout)
{
	int64_t ns = vkr_load(timeout);

	return ns ? vkr_now_ns() + ns : 0;
}

static ssize_t recv_peek_all(struct vkr_sock *s, const struct iovec *iov, size_t total, bool measure)
{
	int64_t deadline = deadline_of(&s->rcvtimeo);
	ssize_t n;
	int r;

	for (;;) {
		n = measure ? recv_measure(s, total) : recv_some(s, iov, total, VKR_IO_PEEK);
		if ((n <= 0 && n != -EAGAIN) || /* -EXDEV too */ n >= (ssize_t)total ||
		    vkr_pollable_ready(vkr_stream_pollable(s->stream)) & EPOLLRDHUP)
			return n;
		/* IN holds already: what is waited for is more bytes than these. */
		r = vkr_wait_more(s->stream, n > 0 ? (size_t)n : 0, deadline);
		if (r < 0)
			return n > 0 ? n : r;
	}
}

/* The stream was handed over while this call was inside it. */
static ssize_t recv_rest(int fd, const struct iovec *iov, int cnt, size_t done, int flags)
{
	struct iovec rest[REST];
	size_t bytes;
	ssize_t n = vkr_pair_recv(fd, rest, iov_rest(iov, cnt, done, rest, &bytes), flags);

	if (!done)
		return n;
	return n > 0 ? (ssize_t)done + n : (ssize_t)done;
}

/* Every kind of recv: with flags, for a socket that waits, or where do_recv() found nothing. */
static VKR_COLD ssize_t recv_any(struct vkr_sock *s, int fd, const struct iovec *iov, int cnt, size_t total, int flags)
{
	bool dont_wait = vkr_load(&s->nonblock) || flags & MSG_DONTWAIT, all = flags & MSG_WAITALL && !dont_wait;
	int64_t deadline = 0;
	struct iovec rest[REST];
	size_t done = 0, left;
	ssize_t n;
	int r;

	if (flags & MSG_OOB)
		return -EINVAL;
	if (flags & MSG_ERRQUEUE)
		return -EAGAIN;
	if (all && flags & MSG_PEEK) {
		n = recv_peek_all(s, iov, total, flags & MSG_TRUNC);
		return n == -EXDEV ? vkr_pair_recv(fd, iov, cnt, flags) : n;
	}
	for (;;) {
		if (flags & MSG_TRUNC) {
			n = flags & MSG_PEEK ? recv_measure(s, total)
					     : recv_drop(s, total - done, done ? VKR_IO_MORE : 0);
		} else if (!done) {
			n = recv_some(s, iov, total, flags & MSG_PEEK ? VKR_IO_PEEK : 0);
		} else {
			iov_rest(iov, cnt, done, rest, &left);
			n = recv_some(s, rest, vkr_min(left, total - done), VKR_IO_MORE);
		}
		if (n > 0) {
			done += (size_t)n;
			if (!all || done >= total)
				return (ssize_t)done;
			continue;
		}
		if (n == -EXDEV)
			return recv_rest(fd, iov, cnt, done, flags);
		if (n != -EAGAIN || dont_wait)
			return done ? (ssize_t)done : n;
		if (!deadline)
			deadline = deadline_of(&s->rcvtimeo);
		r = vkr_wait(vkr_stream_pollable(s->stream), EPOLLIN, deadline, -1, -1);
		if (r < 0)
			return done ? (ssize_t)done : r;
	}
}

static inline ssize_t do_recv(struct vkr_sock *s, int fd, const struct iovec *iov, int cnt, size_t total, int flags)
{
	ssize_t n;

	if (vkr_likely(!(flags & ~MSG_DONTWAIT))) {
		n = recv_some(s, iov, total, 0);
		if (vkr_likely(n >= 0 || (n != -EXDEV && (n != -EAGAIN || flags || vkr_load(&s->nonblock)))))
			return n;
	}
	return recv_any(s, fd, iov, cnt, total, flags);
}

/* total: as checked. `call`: of the recv family, whose calls wait for bytes or the end also when they want none;
 * read(2)'s do not. s NULL: pair mode. */
static inline ssize_t recv_on(struct vkr_sock *s, int fd, const struct iovec *iov, int cnt, ssize_t total, int flags,
			      bool call)
{
	if (vkr_unlikely(total < 0 || (!total && !call)))
		return total;
	return vkr_likely(s != NULL) ? do_recv(s, fd, iov, cnt, (size_t)total, flags)
				     : vkr_pair_recv(fd, iov, cnt, flags);
}

static VKR_INLINE ssize_t recv_buffer(int fd, void *buf, size_t n, int flags, bool call)
{
	struct iovec iov = {buf, vkr_min(n, MAX_RW)};
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	int r;

	s = vkr_carried_get(fd, &r);
	if (vkr_unlikely(!s && r != VKR_PAIRED))
		return r;
	return recv_on(s, fd, &iov, 1, check_buffer(&iov, !(flags & MSG_TRUNC)), flags, call);
}

ssize_t vkr_sock_read(int fd, void *buf, size_t n)
{
	return recv_buffer(fd, buf, n, 0, false);
}

ssize_t vkr_sock_readv(int fd, const struct iovec *iov, int cnt)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	int r;

	s = vkr_carried_get(fd, &r);
	if (!s && r != VKR_PAIRED)
		return r;
	return recv_on(s, fd, iov, cnt, check_iov(iov, cnt, true, -EINVAL), 0, false);
}

ssize_t vkr_sock_recv(int fd, void *buf, size_t n, int flags)
{
	return recv_buffer(fd, buf, n, flags, true);
}

ssize_t vkr_sock_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len)
{
	ssize_t r = vkr_sock_recv(fd, buf, n, flags);

	if (r >= 0 && sa && len)
		*len = 0; /* a connected stream names no source */
	return r;
}

static ssize_t recvmsg_on(struct vkr_sock *s, int fd, struct msghdr *m, int flags)
{
	int cnt = m->msg_iovlen > INT_MAX ? INT_MAX : (int)m->msg_iovlen;
	ssize_t total = check_iov(m->msg_iov, cnt, !(flags & MSG_TRUNC), -EMSGSIZE);
	ssize_t r = recv_on(s, fd, m->msg_iov, cnt, total, flags, true);

	if (r >= 0) {
		m->msg_namelen = 0;
		m->msg_controllen = 0;
		m->msg_flags = flags & MSG_CMSG_CLOEXEC;
	}
	return r;
}

ssize_t vkr_sock_recvmsg(int fd, struct msghdr *m, int flags)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	int r;

	if (vkr_bad_pointer(m, sizeof(*m)))
		return vkr_fd_tracked(fd) ? -EFAULT : VKR_PASS;
	s = vkr_carried_get(fd, &r);
	if (!s && r != VKR_PAIRED)
		return r;
	return recvmsg_on(s, fd, m, flags);
}

/* do_recvmmsg() takes a pending error before any byte, and keeps one that comes after some messages for the next call.
 */
int vkr_sock_recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout)
{
	int64_t end = timeout && timeout->tv_sec < 1000000000
			  ? vkr_now_ns() + timeout->tv_sec * 1000000000ll + timeout->tv_nsec
			  : INT64_MAX;
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	unsigned i;
	ssize_t r = 0;
	int err;

	if (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec > 999999999))
		return VKR_PASS; /* for the kernel's errno */
	s = vkr_carried_get(fd, &err);
	if (!s && err != VKR_PAIRED)
		return err;
	err = !s || flags & MSG_ERRQUEUE ? 0 : vkr_stream_take_error(s->stream);
	if (err)
		return -err;
	if (vkr_bad_pointer(v, n * sizeof(*v)))
		return -EFAULT;
	for (i = 0; i < n; i++) {
		r = recvmsg_on(s, fd, &v[i].msg_hdr, flags & ~MSG_WAITFORONE);
		if (r < 0)
			break;
		v[i].msg_len = (unsigned)r;
		if (flags & MSG_WAITFORONE)
			flags |= MSG_DONTWAIT;
		if (timeout && vkr_now_ns() >= end) {
			i++;
			break;
		}
	}
	if (s && i && r < 0 && r != -EAGAIN)
		vkr_stream_put_error(s->stream, (int)-r);
	return i ? (int)i : (int)r;
}

/* ------------------------------------------------------------------ out */

/* So much left is worth waiting a moment for the peer to read; and so much a call may take, as with a kernel's socket:
 * a program that sends and gets back what did not fit often moves it, and has others to serve. */
#define EAGER_MIN (64u << 10)
#define EAGER_MAX (16u << 20)

static inline unsigned eager(size_t total, size_t done)
{
	return vkr_unlikely(total - done > EAGER_MIN) && done < EAGER_MAX ? VKR_IO_EAGER : 0;
}

static inline ssize_t send_some(struct vkr_sock *s, const struct iovec *iov, int cnt, size_t total, unsigned how)
{
	ssize_t n = vkr_stream_send(s->stream, iov, cnt, total, how);

	if (vkr_unlikely(n == -EAGAIN) && (vkr_engine_poll() > 0 || how & VKR_IO_EAGER))
		n = vkr_stream_send(s->stream, iov, cnt, total, how & ~VKR_IO_EAGER);
	return n;
}

static ssize_t broken_pipe(int flags)
{
	if (!(flags & MSG_NOSIGNAL))
		pthread_kill(pthread_self(), SIGPIPE);
	return -EPIPE;
}

/* n: what the first try said, which was not the total. */
static VKR_COLD ssize_t send_rest(struct vkr_sock *s, const struct iovec *iov, int cnt, size_t total, int flags,
				  ssize_t n)
{
	bool dont_wait = vkr_load(&s->nonblock) || flags & MSG_DONTWAIT;
	int64_t deadline = 0;
	struct iovec rest[REST];
	size_t done = 0, left;
	int r, n_rest;

	for (;;) {
		if (n > 0) {
			done += (size_t)n;
			if (done >= total)
				return (ssize_t)done;
			/* On until the stream says EAGAIN: only then has OUT fallen. Meanwhile the peer may lend a
			 * ring. */
			if (eager(total, done))
				vkr_engine_poll();
		} else if (n != -EAGAIN) {
			return done ? (ssize_t)done : n == -EPIPE ? broken_pipe(flags) : n;
		} else if (dont_wait) {
			return done ? (ssize_t)done : -EAGAIN;
		} else {
			if (!deadline)
				deadline = deadline_of(&s->sndtimeo);
			r = vkr_wait(vkr_stream_pollable(s->stream), EPOLLOUT | EPOLLHUP | EPOLLERR, deadline, -1, -1);
			if (r < 0)
				return done ? (ssize_t)done : r;
		}
		n_rest = iov_rest(iov, cnt, done, rest, &left);
		n = send_some(s, rest, n_rest, vkr_min(left, total - done),
			      (done ? VKR_IO_MORE : 0) | eager(total, done));
	}
}

static inline ssize_t do_send(struct vkr_sock *s, const struct iovec *iov, int cnt, size_t total, int flags)
{
	ssize_t n = vkr_unlikely(flags & MSG_OOB) ? -EOPNOTSUPP : send_some(s, iov, cnt, total, eager(total, 0));

	return vkr_likely(n == (ssize_t)total) ? n : send_rest(s, iov, cnt, total, flags, n);
}

/* total: as checked. s NULL: pair mode. */
static inline ssize_t send_on(struct vkr_sock *s, int fd, const struct iovec *iov, int cnt, ssize_t total, int flags)
{
	if (vkr_unlikely(total < 0))
		return total;
	return vkr_likely(s != NULL) ? do_send(s, iov, cnt, (size_t)total, flags) : vkr_pair_send(fd, iov, cnt, flags);
}

static VKR_INLINE ssize_t send_buffer(int fd, const void *buf, size_t n, int flags)
{
	struct iovec iov = {(void *)buf, vkr_min(n, MAX_RW)};
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	int r;

	s = vkr_carried_get(fd, &r);
	if (vkr_unlikely(!s && r != VKR_PAIRED))
		return r;
	return send_on(s, fd, &iov, 1, check_buffer(&iov, true), flags);
}

/* `call`: any but writev(2), which does not look at the socket when there is nothing to write. */
static ssize_t send_iov(int fd, const struct iovec *iov, int cnt, int flags, int too_many, bool call)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *s = NULL;
	ssize_t total;
	int r;

	s = vkr_carried_get(fd, &r);
	if (!s && r != VKR_PAIRED)
		return r;
	total = check_iov(iov, cnt, true, too_many);
	if (!total && !call)
		return 0;
	return send_on(s, fd, iov, cnt, total, flags);
}

ssize_t vkr_sock_write(int fd, const void *buf, size_t n)
{
	return send_buffer(fd, buf, n, 0);
}

ssize_t vkr_sock_writev(int fd, const struct iovec *iov, int cnt)
{
	return send_iov(fd, iov, cnt, 0, -EINVAL, false);
}

ssize_t vkr_sock_send(int fd, const void *buf, size_t n, int flags)
{
	return send_buffer(fd, buf, n, flags);
}

ssize_t vkr_sock_sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len)
{
	return vkr_sock_send(fd, buf, n, flags); /* TCP ignores the address of a connected socket */
}

ssize_t vkr_sock_sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (vkr_bad_pointer(m, sizeof(*m)))
		return vkr_fd_tracked(fd) ? -EFAULT : VKR_PASS;
	return send_iov(fd, m->msg_iov, m->msg_iovlen > INT_MAX ? INT_MAX : (int)m->msg_iovlen, flags, -EMSGSIZE, true);
}

int vkr_sock_sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags)
{
	unsigned i;
	ssize_t r = 0;

	if (vkr_bad_pointer(v, n * sizeof(*v)))
		return -EFAULT;
	for (i = 0; i < n; i++) {
		r = vkr_sock_sendmsg(fd, &v[i].msg_hdr, flags);
		if (r < 0)
			break;
		v[i].msg_len = (unsigned)r;
	}
	return i ? (int)i : (int)r;
}

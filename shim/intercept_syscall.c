/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * syscall(): the numbers whose libc names we intercept take the same bodies; the others go through with all six
 * arguments. libuv closes so, jemalloc opens files so inside malloc's own initialisation.
 */
#include "intercept.h"

#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#define KERNEL_SIGSET 8 /* bytes: the kernel's sigset_t */

#define P(type, v) ((type)(uintptr_t)(v))

static long descriptor_call(long number, long a, long b, long c)
{
	switch (number) {
	case SYS_close:
		return vkr_call_close((int)a);
	case SYS_close_range:
		return vkr_call_close_range((unsigned)a, (unsigned)b, (int)c);
	case SYS_dup:
		return vkr_call_dup((int)a);
#ifdef SYS_dup2
	case SYS_dup2:
		return vkr_call_dup2((int)a, (int)b);
#endif
	case SYS_dup3:
		return vkr_call_dup3((int)a, (int)b, (int)c);
	case SYS_fcntl:
		return vkr_call_fcntl((int)a, (int)b, P(void *, c));
	case SYS_ioctl:
		return vkr_call_ioctl((int)a, (unsigned long)b, P(void *, c));
	default:
		return VKR_PASS;
	}
}

static long socket_call(long number, long a, long b, long c, long d, long e)
{
	switch (number) {
	case SYS_socket:
		return vkr_call_socket((int)a, (int)b, (int)c);
	case SYS_socketpair:
		return vkr_call_socketpair((int)a, (int)b, (int)c, P(int *, d));
	case SYS_bind:
		return vkr_call_bind((int)a, P(struct sockaddr *, b), (socklen_t)c);
	case SYS_listen:
		return vkr_call_listen((int)a, (int)b);
	case SYS_connect:
		return vkr_call_connect((int)a, P(struct sockaddr *, b), (socklen_t)c);
	case SYS_accept:
		return vkr_call_accept((int)a, P(struct sockaddr *, b), P(socklen_t *, c));
	case SYS_accept4:
		return vkr_call_accept4((int)a, P(struct sockaddr *, b), P(socklen_t *, c), (int)d);
	case SYS_getsockname:
		return vkr_call_getsockname((int)a, P(struct sockaddr *, b), P(socklen_t *, c));
	case SYS_getpeername:
		return vkr_call_getpeername((int)a, P(struct sockaddr *, b), P(socklen_t *, c));
	case SYS_getsockopt:
		return vkr_call_getsockopt((int)a, (int)b, (int)c, P(void *, d), P(socklen_t *, e));
	case SYS_setsockopt:
		return vkr_call_setsockopt((int)a, (int)b, (int)c, P(void *, d), (socklen_t)e);
	case SYS_shutdown:
		return vkr_call_shutdown((int)a, (int)b);
	default:
		return VKR_PASS;
	}
}

static long io_call(long number, long a, long b, long c, long d, long e, long f)
{
	switch (number) {
	case SYS_read:
		return vkr_call_read((int)a, P(void *, b), (size_t)c);
	case SYS_readv:
		return vkr_call_readv((int)a, P(struct iovec *, b), (int)c);
	case SYS_recvfrom:
		return vkr_call_recvfrom((int)a, P(void *, b), (size_t)c, (int)d, P(struct sockaddr *, e),
					 P(socklen_t *, f));
	case SYS_recvmsg:
		return vkr_call_recvmsg((int)a, P(struct msghdr *, b), (int)c);
	case SYS_recvmmsg:
		return vkr_call_recvmmsg((int)a, P(struct mmsghdr *, b), (unsigned)c, (int)d, P(struct timespec *, e));
	case SYS_write:
		return vkr_call_write((int)a, P(void *, b), (size_t)c);
	case SYS_writev:
		return vkr_call_writev((int)a, P(struct iovec *, b), (int)c);
	case SYS_sendto:
		return vkr_call_sendto((int)a, P(void *, b), (size_t)c, (int)d, P(struct sockaddr *, e), (socklen_t)f);
	case SYS_sendmsg:
		return vkr_call_sendmsg((int)a, P(struct msghdr *, b), (int)c);
	case SYS_sendmmsg:
		return vkr_call_sendmmsg((int)a, P(struct mmsghdr *, b), (unsigned)c, (int)d);
	case SYS_sendfile:
		return vkr_call_sendfile((int)a, (int)b, P(off_t *, c), (size_t)d);
	case SYS_splice:
		return vkr_call_splice((int)a, P(off_t *, b), (int)c, P(off_t *, d), (size_t)e, (unsigned)f);
	case SYS_preadv2: /* e: the high half of the offset, unused on 64-bit machines */
		return vkr_call_preadv2((int)a, P(struct iovec *, b), (int)c, (off_t)d, (int)f);
	case SYS_pwritev2:
		return vkr_call_pwritev2((int)a, P(struct iovec *, b), (int)c, (off_t)d, (int)f);
	default:
		return VKR_PASS;
	}
}

/* The kernel's masks are 8 bytes with their size beside them; another size is the kernel's to refuse. */
static const sigset_t *wide_mask(long mask, sigset_t *wide)
{
	if (!mask)
		return NULL;
	memset(wide, 0, sizeof(*wide));
	memcpy(wide, P(void *, mask), KERNEL_SIGSET);
	return wide;
}

/* The system calls, unlike the functions, write the remaining time back, unless they refuse it. */
static long write_left(struct timespec *timeout, const struct timespec *begin, long ret)
{
	struct timespec end;
	int64_t left;

	if (ret < 0 && errno == EINVAL)
		return ret;
	clock_gettime(CLOCK_MONOTONIC, &end);
	left = (timeout->tv_sec - end.tv_sec + begin->tv_sec) * 1000000000LL + timeout->tv_nsec - end.tv_nsec +
	       begin->tv_nsec;
	left = vkr_max(left, 0);
	timeout->tv_sec = left / 1000000000LL;
	timeout->tv_nsec = left % 1000000000LL;
	return ret;
}

static long ppoll_call(long a, long b, long c, long d, long e)
{
	struct timespec *timeout = P(struct timespec *, c), begin;
	sigset_t wide;
	int ret;

	if (d && e != KERNEL_SIGSET)
		return VKR_PASS;
	if (!timeout)
		return vkr_call_ppoll(P(struct pollfd *, a), (nfds_t)b, NULL, wide_mask(d, &wide));
	clock_gettime(CLOCK_MONOTONIC, &begin);
	ret = vkr_call_ppoll(P(struct pollfd *, a), (nfds_t)b, timeout, wide_mask(d, &wide));
	return write_left(timeout, &begin, ret);
}

static long pselect_call(long a, long b, long c, long d, long e, long f)
{
	struct {
		const void *mask;
		size_t size;
	} *arg = P(void *, f);
	struct timespec *timeout = P(struct timespec *, e), begin;
	sigset_t wide;
	int ret;

	if (arg && arg->mask && arg->size != KERNEL_SIGSET)
		return VKR_PASS;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	ret = vkr_call_pselect((int)a, P(fd_set *, b), P(fd_set *, c), P(fd_set *, d), timeout,
			       wide_mask(arg ? (long)arg->mask : 0, &wide));
	return timeout ? write_left(timeout, &begin, ret) : ret;
}

static long wait_call(long number, long a, long b, long c, long d, long e, long f)
{
	sigset_t wide;

	switch (number) {
#ifdef SYS_epoll_create
	case SYS_epoll_create:
		return vkr_call_epoll_create((int)a);
	case SYS_epoll_wait:
		return vkr_call_epoll_wait((int)a, P(struct epoll_event *, b), (int)c, (int)d);
	case SYS_poll:
		return vkr_call_poll(P(struct pollfd *, a), (nfds_t)b, (int)c);
	case SYS_select:
		return vkr_call_select((int)a, P(fd_set *, b), P(fd_set *, c), P(fd_set *, d), P(struct timeval *, e));
#endif
	case SYS_epoll_create1:
		return vkr_call_epoll_create1((int)a);
	case SYS_epoll_ctl:
		return vkr_call_epoll_ctl((int)a, (int)b, (int)c, P(struct epoll_event *, d));
	case SYS_epoll_pwait:
		if (e && f != KERNEL_SIGSET)
			return VKR_PASS;
		return vkr_call_epoll_pwait((int)a, P(struct epoll_event *, b), (int)c, (int)d, wide_mask(e, &wide));
	case SYS_epoll_pwait2:
		if (e && f != KERNEL_SIGSET)
			return VKR_PASS;
		return vkr_call_epoll_pwait2((int)a, P(struct epoll_event *, b), (int)c, P(struct timespec *, d),
					     wide_mask(e, &wide));
	case SYS_ppoll:
		return ppoll_call(a, b, c, d, e);
	case SYS_pselect6:
		return pselect_call(a, b, c, d, e, f);
	default:
		return VKR_PASS;
	}
}

static long process_call(long number, long a, long b, long c, long d, long e)
{
	long ret;

	switch (number) {
	case SYS_execve:
		return vkr_call_execve(P(char *, a), P(char **, b), P(char **, c));
	case SYS_execveat:
		return vkr_call_execveat((int)a, P(char *, b), P(char **, c), P(char **, d), (int)e);
	case SYS_exit_group:
		vkr_call__exit((int)a);
		return 0;
	case SYS_prlimit64:
		return vkr_call_prlimit((pid_t)a, (int)b, P(struct rlimit *, c), P(struct rlimit *, d));
	case SYS_getrlimit:
		return vkr_call_getrlimit((int)a, P(struct rlimit *, b));
	case SYS_setrlimit:
		return vkr_call_setrlimit((int)a, P(struct rlimit *, b));
	case SYS_rt_sigaction:
		ret = vkr_real.syscall(number, a, b, c, d);
		if (ret == 0 && b)
			vkr_note_signal((int)a);
		return ret;
#ifdef SYS_pidfd_getfd
	case SYS_pidfd_getfd:
		return vkr_note_fresh((int)vkr_real.syscall(number, a, b, c));
#endif
	case SYS_io_uring_setup: /* a ring would read and write carried sockets past us */
		errno = ENOSYS;
		return -1;
	default:
		return VKR_PASS;
	}
}

/* None of the bodies returns VKR_PASS as a result of its own: it is no valid count. */
static __attribute__((noinline)) long dispatch(long number, long a, long b, long c, long d, long e, long f)
{
	long ret = io_call(number, a, b, c, d, e, f);

	if (ret == VKR_PASS)
		ret = wait_call(number, a, b, c, d, e, f);
	if (ret == VKR_PASS)
		ret = socket_call(number, a, b, c, d, e);
	if (ret == VKR_PASS)
		ret = descriptor_call(number, a, b, c);
	if (ret == VKR_PASS)
		ret = process_call(number, a, b, c, d, e);
	return ret;
}

/*
 * Not variadic here: integers travel in the same places either way, and what the caller did not give is passed on
 * unread. Where no rule is active, and for numbers that are not ours, this ends in a jump with an empty frame: the
 * child of a clone with shared memory finds the stack as libc would have left it.
 */
long vkr_call_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	long ret;

	if (vkr_likely(!vkr_on()))
		return vkr_real.syscall(number, a, b, c, d, e, f);
	ret = dispatch(number, a, b, c, d, e, f);
	return ret == VKR_PASS ? vkr_real.syscall(number, a, b, c, d, e, f) : ret;
}
VKR_NAME(syscall, vkr_call_syscall);

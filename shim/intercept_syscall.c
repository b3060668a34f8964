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

/* The kernel's masks are 8 bytes with their size beside them; another size is the kernel's to refuse. */
static const sigset_t *wide_mask(long mask, sigset_t *wide)
{
	if (!mask)
		return NULL;
	memset(wide, 0, sizeof(*wide));
	memcpy(wide, (void *)mask, KERNEL_SIGSET);
	return wide;
}

/* The system calls, unlike the functions, write the remaining time back, unless they refuse it. */
static long write_left(struct timespec *timeout, const struct timespec *begin, long ret)
{
	struct timespec end;
	int64_t left;

	if (!timeout || (ret < 0 && errno == EINVAL))
		return ret;
	clock_gettime(CLOCK_MONOTONIC, &end);
	left = (timeout->tv_sec - end.tv_sec + begin->tv_sec) * 1000000000LL + timeout->tv_nsec - end.tv_nsec +
	       begin->tv_nsec;
	left = vkr_max(left, 0);
	timeout->tv_sec = left / 1000000000LL;
	timeout->tv_nsec = left % 1000000000LL;
	return ret;
}

static long call_ppoll(const long a[6])
{
	struct timespec *timeout = (struct timespec *)a[2], begin;
	sigset_t wide;

	if (a[3] && a[4] != KERNEL_SIGSET)
		return VKR_PASS;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	return write_left(timeout, &begin,
			  vkr_call_ppoll((struct pollfd *)a[0], (nfds_t)a[1], timeout, wide_mask(a[3], &wide)));
}

static long call_pselect(const long a[6])
{
	struct {
		long mask;
		size_t size;
	} *arg = (void *)a[5];
	struct timespec *timeout = (struct timespec *)a[4], begin;
	sigset_t wide;

	if (arg && arg->mask && arg->size != KERNEL_SIGSET)
		return VKR_PASS;
	clock_gettime(CLOCK_MONOTONIC, &begin);
	return write_left(timeout, &begin,
			  vkr_call_pselect((int)a[0], (fd_set *)a[1], (fd_set *)a[2], (fd_set *)a[3], timeout,
					   wide_mask(arg ? arg->mask : 0, &wide)));
}

static long call_epoll_pwait(const long a[6])
{
	sigset_t wide;

	if (a[4] && a[5] != KERNEL_SIGSET)
		return VKR_PASS;
	return vkr_call_epoll_pwait((int)a[0], (struct epoll_event *)a[1], (int)a[2], (int)a[3],
				    wide_mask(a[4], &wide));
}

static long call_epoll_pwait2(const long a[6])
{
	sigset_t wide;

	if (a[4] && a[5] != KERNEL_SIGSET)
		return VKR_PASS;
	return vkr_call_epoll_pwait2((int)a[0], (struct epoll_event *)a[1], (int)a[2], (struct timespec *)a[3],
				     wide_mask(a[4], &wide));
}

static long call_exit_group(const long a[6])
{
	vkr_call__exit((int)a[0]);
	return 0;
}

static long call_sigaction(const long a[6])
{
	long ret = vkr_real.syscall(SYS_rt_sigaction, a[0], a[1], a[2], a[3]);

	if (ret == 0 && a[1])
		vkr_note_signal((int)a[0]);
	return ret;
}

/* A ring would read and write carried sockets past us. */
static long refuse_io_uring(void)
{
	errno = ENOSYS;
	return -1;
}

#define INT(i)    ((int)a[i])
#define SIZE(i)   ((size_t)a[i])
#define PTR(t, i) ((t *)a[i])
#define SA(i)     PTR(struct sockaddr, i)
#define LEN(i)    PTR(socklen_t, i)
#define IOV(i)    PTR(struct iovec, i)
#define EVENTS(i) PTR(struct epoll_event, i)
#define FDS(i)    PTR(fd_set, i)
#define LIMIT(i)  PTR(struct rlimit, i)
#define ARGS(i)   PTR(char *, i)

/* X(number, call): the arguments are a[0] to a[5], as the kernel takes them. */
#define CALLS(X)                                                                                                       \
	X(SYS_read, vkr_call_read(INT(0), PTR(void, 1), SIZE(2)))                                                      \
	X(SYS_readv, vkr_call_readv(INT(0), IOV(1), INT(2)))                                                           \
	X(SYS_preadv2, vkr_call_preadv2(INT(0), IOV(1), INT(2), (off_t)a[3], INT(5)))                                  \
	X(SYS_recvfrom, vkr_call_recvfrom(INT(0), PTR(void, 1), SIZE(2), INT(3), SA(4), LEN(5)))                       \
	X(SYS_recvmsg, vkr_call_recvmsg(INT(0), PTR(struct msghdr, 1), INT(2)))                                        \
	X(SYS_recvmmsg,                                                                                                \
	  vkr_call_recvmmsg(INT(0), PTR(struct mmsghdr, 1), (unsigned)a[2], INT(3), PTR(struct timespec, 4)))          \
	X(SYS_write, vkr_call_write(INT(0), PTR(void, 1), SIZE(2)))                                                    \
	X(SYS_writev, vkr_call_writev(INT(0), IOV(1), INT(2)))                                                         \
	X(SYS_pwritev2, vkr_call_pwritev2(INT(0), IOV(1), INT(2), (off_t)a[3], INT(5)))                                \
	X(SYS_sendto, vkr_call_sendto(INT(0), PTR(void, 1), SIZE(2), INT(3), SA(4), (socklen_t)a[5]))                  \
	X(SYS_sendmsg, vkr_call_sendmsg(INT(0), PTR(struct msghdr, 1), INT(2)))                                        \
	X(SYS_sendmmsg, vkr_call_sendmmsg(INT(0), PTR(struct mmsghdr, 1), (unsigned)a[2], INT(3)))                     \
	X(SYS_sendfile, vkr_call_sendfile(INT(0), INT(1), PTR(off_t, 2), SIZE(3)))                                     \
	X(SYS_splice, vkr_call_splice(INT(0), PTR(off_t, 1), INT(2), PTR(off_t, 3), SIZE(4), (unsigned)a[5]))          \
	X(SYS_epoll_create1, vkr_call_epoll_create1(INT(0)))                                                           \
	X(SYS_epoll_ctl, vkr_call_epoll_ctl(INT(0), INT(1), INT(2), EVENTS(3)))                                        \
	X(SYS_epoll_pwait, call_epoll_pwait(a))                                                                        \
	X(SYS_epoll_pwait2, call_epoll_pwait2(a))                                                                      \
	X(SYS_ppoll, call_ppoll(a))                                                                                    \
	X(SYS_pselect6, call_pselect(a))                                                                               \
	X(SYS_socket, vkr_call_socket(INT(0), INT(1), INT(2)))                                                         \
	X(SYS_socketpair, vkr_call_socketpair(INT(0), INT(1), INT(2), PTR(int, 3)))                                    \
	X(SYS_bind, vkr_call_bind(INT(0), SA(1), (socklen_t)a[2]))                                                     \
	X(SYS_listen, vkr_call_listen(INT(0), INT(1)))                                                                 \
	X(SYS_connect, vkr_call_connect(INT(0), SA(1), (socklen_t)a[2]))                                               \
	X(SYS_accept, vkr_call_accept(INT(0), SA(1), LEN(2)))                                                          \
	X(SYS_accept4, vkr_call_accept4(INT(0), SA(1), LEN(2), INT(3)))                                                \
	X(SYS_getsockname, vkr_call_getsockname(INT(0), SA(1), LEN(2)))                                                \
	X(SYS_getpeername, vkr_call_getpeername(INT(0), SA(1), LEN(2)))                                                \
	X(SYS_getsockopt, vkr_call_getsockopt(INT(0), INT(1), INT(2), PTR(void, 3), LEN(4)))                           \
	X(SYS_setsockopt, vkr_call_setsockopt(INT(0), INT(1), INT(2), PTR(void, 3), (socklen_t)a[4]))                  \
	X(SYS_shutdown, vkr_call_shutdown(INT(0), INT(1)))                                                             \
	X(SYS_close, vkr_call_close(INT(0)))                                                                           \
	X(SYS_close_range, vkr_call_close_range((unsigned)a[0], (unsigned)a[1], INT(2)))                               \
	X(SYS_dup, vkr_call_dup(INT(0)))                                                                               \
	X(SYS_dup3, vkr_call_dup3(INT(0), INT(1), INT(2)))                                                             \
	X(SYS_fcntl, vkr_call_fcntl(INT(0), INT(1), PTR(void, 2)))                                                     \
	X(SYS_ioctl, vkr_call_ioctl(INT(0), (unsigned long)a[1], PTR(void, 2)))                                        \
	X(SYS_execve, vkr_call_execve(PTR(char, 0), ARGS(1), ARGS(2)))                                                 \
	X(SYS_execveat, vkr_call_execveat(INT(0), PTR(char, 1), ARGS(2), ARGS(3), INT(4)))                             \
	X(SYS_exit_group, call_exit_group(a))                                                                          \
	X(SYS_prlimit64, vkr_call_prlimit((pid_t)a[0], INT(1), LIMIT(2), LIMIT(3)))                                    \
	X(SYS_getrlimit, vkr_call_getrlimit(INT(0), LIMIT(1)))                                                         \
	X(SYS_setrlimit, vkr_call_setrlimit(INT(0), LIMIT(1)))                                                         \
	X(SYS_rt_sigaction, call_sigaction(a))                                                                         \
	X(SYS_pidfd_getfd, vkr_note_fresh((int)vkr_real.syscall(SYS_pidfd_getfd, a[0], a[1], a[2])))                   \
	X(SYS_io_uring_setup, refuse_io_uring())

/* Numbers that newer machines never had. */
#ifdef SYS_epoll_wait
#define OLD_CALLS(X)                                                                                                   \
	X(SYS_epoll_create, vkr_call_epoll_create(INT(0)))                                                             \
	X(SYS_epoll_wait, vkr_call_epoll_wait(INT(0), EVENTS(1), INT(2), INT(3)))                                      \
	X(SYS_poll, vkr_call_poll(PTR(struct pollfd, 0), (nfds_t)a[1], INT(2)))                                        \
	X(SYS_select, vkr_call_select(INT(0), FDS(1), FDS(2), FDS(3), PTR(struct timeval, 4)))                         \
	X(SYS_dup2, vkr_call_dup2(INT(0), INT(1)))
#else
#define OLD_CALLS(X)
#endif

#define NUMBERS 512
extern const uint8_t vkr_syscall_ours[NUMBERS];
#define OURS(number, call) [number] = 1,
const uint8_t vkr_syscall_ours[NUMBERS] = {CALLS(OURS) OLD_CALLS(OURS)};

/* None of the bodies returns VKR_PASS as a result of its own: it is no valid count. */
static long dispatch(long number, const long a[6])
{
#define CASE(number, call)                                                                                             \
	case number:                                                                                                   \
		return call;

	switch (number) {
		CALLS(CASE)
		OLD_CALLS(CASE)
	default:
		return VKR_PASS;
	}
}

/* A number of ours, or any number on a machine whose entry does not look. */
long vkr_call_syscall(long number, const long a[6])
{
	long ret = vkr_on() ? dispatch(number, a) : VKR_PASS;

	return ret == VKR_PASS ? vkr_real.syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]) : ret;
}

/*
 * A number that is not ours, and any while no rule is active, is a jump to libc's own syscall(): registers, stack and
 * return address are as the caller left them. A child of clone with shared memory may return through here, and the
 * caller's frame, of which six arguments may or may not be part, is neither read nor written.
 */
#if defined(__x86_64__)
_Static_assert(offsetof(struct vkr_real, syscall) == 0, "the assembly below jumps through the first entry");

__asm__(".pushsection .text\n"
	".globl syscall\n"
	".type syscall, @function\n"
	".p2align 4\n"
	"syscall:\n"
	"	.cfi_startproc\n"
	"	cmpb $0, vkr_active(%rip)\n"
	"	jne 2f\n"
	"1:	jmp *vkr_real(%rip)\n"
	"2:	cmpq $511, %rdi\n"
	"	ja 1b\n"
	"	leaq vkr_syscall_ours(%rip), %rax\n"
	"	cmpb $0, (%rax,%rdi)\n"
	"	je 1b\n"
	"	movq 8(%rsp), %rax\n"
	"	subq $56, %rsp\n"
	"	.cfi_adjust_cfa_offset 56\n"
	"	movq %rsi, (%rsp)\n"
	"	movq %rdx, 8(%rsp)\n"
	"	movq %rcx, 16(%rsp)\n"
	"	movq %r8, 24(%rsp)\n"
	"	movq %r9, 32(%rsp)\n"
	"	movq %rax, 40(%rsp)\n"
	"	movq %rsp, %rsi\n"
	"	call vkr_call_syscall\n"
	"	addq $56, %rsp\n"
	"	.cfi_adjust_cfa_offset -56\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size syscall, .-syscall\n"
	".popsection\n");
#else
static long entry(long number, long a, long b, long c, long d, long e, long f)
{
	const long args[6] = {a, b, c, d, e, f};

	if (vkr_likely(!vkr_on()) || (unsigned long)number >= NUMBERS || !vkr_syscall_ours[number])
		return vkr_real.syscall(number, a, b, c, d, e, f);
	return vkr_call_syscall(number, args);
}
VKR_NAME(syscall, entry);
#endif

/* SPDX-License-Identifier: BSD-2-Clause */
#include "libc_real.h"
#include "config.h"
#include "libc_raw.h"
#include "socket.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic bool vkr_active;
VKR_TLS int vkr_depth;

/* ------------------------------------------------------------------ bodies until libc's are known */

static long answer(long r)
{
	if (r >= 0 || r < -4095)
		return r;
	errno = (int)-r;
	return -1;
}

#define KERNEL_SIGSET 8 /* bytes: the kernel's sigset_t */

#define RAW(ret, name, params, ...)                                                                                    \
	static ret early_##name params                                                                                 \
	{                                                                                                              \
		return (ret)answer(VKR_RAW(__VA_ARGS__));                                                              \
	}

RAW(int, socket, (int domain, int type, int protocol), SYS_socket, domain, type, protocol)
RAW(int, socketpair, (int domain, int type, int protocol, int sv[2]), SYS_socketpair, domain, type, protocol, sv)
RAW(int, bind, (int fd, const struct sockaddr *sa, socklen_t len), SYS_bind, fd, sa, len)
RAW(int, listen, (int fd, int backlog), SYS_listen, fd, backlog)
RAW(int, connect, (int fd, const struct sockaddr *sa, socklen_t len), SYS_connect, fd, sa, len)
RAW(int, accept, (int fd, struct sockaddr *sa, socklen_t *len), SYS_accept, fd, sa, len)
RAW(int, accept4, (int fd, struct sockaddr *sa, socklen_t *len, int flags), SYS_accept4, fd, sa, len, flags)
RAW(int, close, (int fd), SYS_close, fd)
RAW(int, close_range, (unsigned first, unsigned last, int flags), SYS_close_range, first, last, flags)
RAW(int, dup, (int fd), SYS_dup, fd)
RAW(int, dup3, (int oldfd, int newfd, int flags), SYS_dup3, oldfd, newfd, flags)
RAW(int, shutdown, (int fd, int how), SYS_shutdown, fd, how)
RAW(int, getsockname, (int fd, struct sockaddr *sa, socklen_t *len), SYS_getsockname, fd, sa, len)
RAW(int, getpeername, (int fd, struct sockaddr *sa, socklen_t *len), SYS_getpeername, fd, sa, len)
RAW(int, getsockopt, (int fd, int level, int name, void *val, socklen_t *len), SYS_getsockopt, fd, level, name, val,
    len)
RAW(int, setsockopt, (int fd, int level, int name, const void *val, socklen_t len), SYS_setsockopt, fd, level, name,
    val, len)
RAW(ssize_t, read, (int fd, void *buf, size_t n), SYS_read, fd, buf, n)
RAW(ssize_t, readv, (int fd, const struct iovec *iov, int cnt), SYS_readv, fd, iov, cnt)
RAW(ssize_t, recv, (int fd, void *buf, size_t n, int flags), SYS_recvfrom, fd, buf, n, flags)
RAW(ssize_t, recvfrom, (int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len), SYS_recvfrom, fd,
    buf, n, flags, sa, len)
RAW(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), SYS_recvmsg, fd, m, flags)
RAW(int, recvmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout), SYS_recvmmsg, fd, v, n,
    flags, timeout)
RAW(ssize_t, write, (int fd, const void *buf, size_t n), SYS_write, fd, buf, n)
RAW(ssize_t, writev, (int fd, const struct iovec *iov, int cnt), SYS_writev, fd, iov, cnt)
RAW(ssize_t, send, (int fd, const void *buf, size_t n, int flags), SYS_sendto, fd, buf, n, flags)
RAW(ssize_t, sendto, (int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len),
    SYS_sendto, fd, buf, n, flags, sa, len)
RAW(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), SYS_sendmsg, fd, m, flags)
RAW(int, sendmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags), SYS_sendmmsg, fd, v, n, flags)
RAW(ssize_t, sendfile, (int out, int in, off_t *offset, size_t n), SYS_sendfile, out, in, offset, n)
RAW(ssize_t, splice, (int in, off_t *in_off, int out, off_t *out_off, size_t n, unsigned flags), SYS_splice, in, in_off,
    out, out_off, n, flags)
RAW(int, epoll_create1, (int flags), SYS_epoll_create1, flags)
RAW(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *ev), SYS_epoll_ctl, epfd, op, fd, ev)
RAW(int, epoll_wait, (int epfd, struct epoll_event *evs, int max, int timeout), SYS_epoll_pwait, epfd, evs, max,
    timeout, NULL, KERNEL_SIGSET)
RAW(int, epoll_pwait, (int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask), SYS_epoll_pwait,
    epfd, evs, max, timeout, mask, KERNEL_SIGSET)
RAW(int, epoll_pwait2,
    (int epfd, struct epoll_event *evs, int max, const struct timespec *timeout, const sigset_t *mask),
    SYS_epoll_pwait2, epfd, evs, max, timeout, mask, KERNEL_SIGSET)
RAW(int, getrlimit, (int resource, struct rlimit *l), SYS_prlimit64, 0, resource, NULL, l)
RAW(int, setrlimit, (int resource, const struct rlimit *l), SYS_prlimit64, 0, resource, l, NULL)
RAW(int, prlimit, (pid_t pid, int resource, const struct rlimit *set, struct rlimit *old), SYS_prlimit64, pid, resource,
    set, old)
RAW(int, execve, (const char *path, char *const argv[], char *const envp[]), SYS_execve, path, argv, envp)
RAW(int, execveat, (int dir, const char *path, char *const argv[], char *const envp[], int flags), SYS_execveat, dir,
    path, argv, envp, flags)

/* The kernel takes the offset in two halves; on a 64-bit machine the second is unused. */
RAW(ssize_t, preadv2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags), SYS_preadv2, fd, iov, cnt, off,
    0, flags)
RAW(ssize_t, pwritev2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags), SYS_pwritev2, fd, iov, cnt,
    off, 0, flags)

static int early_dup2(int oldfd, int newfd)
{
	if (oldfd == newfd) /* dup3 would refuse */
		return VKR_RAW(SYS_fcntl, oldfd, F_GETFL) < 0 ? (int)answer(-EBADF) : newfd;
	return (int)answer(VKR_RAW(SYS_dup3, oldfd, newfd, 0));
}

static void early_closefrom(int low)
{
	VKR_RAW(SYS_close_range, low < 0 ? 0 : low, ~0u, 0);
}

static int early_fcntl(int fd, int cmd, ...)
{
	va_list ap;
	long arg;

	va_start(ap, cmd);
	arg = va_arg(ap, long);
	va_end(ap);
	return (int)answer(VKR_RAW(SYS_fcntl, fd, cmd, arg));
}

static int early_ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	long arg;

	va_start(ap, request);
	arg = va_arg(ap, long);
	va_end(ap);
	return (int)answer(VKR_RAW(SYS_ioctl, fd, request, arg));
}

static int early_epoll_create(int size)
{
	return (int)answer(size <= 0 ? -EINVAL : VKR_RAW(SYS_epoll_create1, 0));
}

static int early_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct timespec ts; /* the kernel writes the rest back, ppoll() does not */

	if (timeout)
		ts = *timeout;
	return (int)answer(VKR_RAW(SYS_ppoll, fds, n, timeout ? &ts : NULL, mask, KERNEL_SIGSET));
}

static int early_poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct timespec ts = {timeout / 1000, timeout % 1000 * 1000000L};

	return early_ppoll(fds, n, timeout < 0 ? NULL : &ts, NULL);
}

static int early_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask)
{
	struct {
		const sigset_t *mask;
		size_t size;
	} arg = {mask, KERNEL_SIGSET};
	struct timespec ts;

	if (timeout)
		ts = *timeout;
	return (int)answer(VKR_RAW(SYS_pselect6, n, r, w, e, timeout ? &ts : NULL, &arg));
}

static int early_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout)
{
	struct timespec ts;
	long ret;

	if (!timeout)
		return early_pselect(n, r, w, e, NULL, NULL);
	ts.tv_sec = timeout->tv_sec + timeout->tv_usec / 1000000;
	ts.tv_nsec = timeout->tv_usec % 1000000 * 1000;
	ret = VKR_RAW(SYS_pselect6, n, r, w, e, &ts, NULL);
	timeout->tv_sec = ts.tv_sec;
	timeout->tv_usec = ts.tv_nsec / 1000;
	return (int)answer(ret);
}

static void early__exit(int status)
{
	for (;;)
		VKR_RAW(SYS_exit_group, status);
}

static long early_syscall(long number, ...)
{
	va_list ap;
	long a[6];

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	return answer(VKR_RAW(number, a[0], a[1], a[2], a[3], a[4], a[5]));
}

/* ------------------------------------------------------------------ bodies that resolve on first use */

static void *resolve(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

#define LAZY(ret, name, params, args, failure)                                                                         \
	static ret early_##name params                                                                                 \
	{                                                                                                              \
		ret(*fn) params = (ret(*) params)resolve(#name);                                                       \
                                                                                                                       \
		if (!fn) {                                                                                             \
			errno = ENOSYS;                                                                                \
			return failure;                                                                                \
		}                                                                                                      \
		__atomic_store_n(&vkr_real.name, fn, __ATOMIC_RELAXED);                                                \
		return fn args;                                                                                        \
	}

VKR_REAL_LAZY(LAZY)

static void early_quick_exit(int status)
{
	void (*fn)(int) = (void (*)(int))resolve("quick_exit");

	if (fn)
		fn(status);
	early__exit(status);
}

/* ------------------------------------------------------------------ the table */

#define INITIAL(ret, name, ...) .name = early_##name,
struct vkr_real vkr_real = {VKR_REAL_RAW(INITIAL) VKR_REAL_LAZY(INITIAL).quick_exit = early_quick_exit};

#define ENTRY(ret, name, ...) {#name, offsetof(struct vkr_real, name)},
static const struct {
	const char *name;
	size_t offset;
} entries[] = {VKR_REAL_RAW(ENTRY) VKR_REAL_LAZY(ENTRY){"quick_exit", offsetof(struct vkr_real, quick_exit)}};

/* Each slot is one word that holds a callable body before and after: threads that race see either. */
static void resolve_all(void)
{
	for (size_t i = 0; i < VKR_ARRAY_SIZE(entries); i++) {
		void *fn = resolve(entries[i].name);

		if (fn)
			__atomic_store_n((void **)((char *)&vkr_real + entries[i].offset), fn, __ATOMIC_RELAXED);
	}
	dlerror(); /* a name that this glibc lacks left a message that is not the application's */
}

static _Atomic bool initialised;

bool vkr_initialised(void)
{
	return vkr_load_acq(&initialised);
}

void vkr_init(void)
{
	static _Atomic bool begun;
	int saved;

	if (vkr_likely(vkr_load(&begun)) || atomic_exchange(&begun, true)) /* done, or under way further up the stack */
		return;
	saved = errno;
	resolve_all();
	if (!getauxval(AT_SECURE)) {
		vkr_depth++;
		vkr_config_load();
		vkr_depth--;
		vkr_store_rel(&vkr_active, vkr_config.active);
	}
	vkr_store_rel(&initialised, true);
	errno = saved;
}

__attribute__((constructor)) static void construct(void)
{
	vkr_init();
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The real libc functions. No other file of the shim names a function that we intercept: they call vkr_real.NAME.
 *
 * Every entry can be called at any time, inside malloc's own initialisation and before any constructor too:
 *   VKR_REAL_RAW   starts as a body that makes the raw system call, and becomes the libc function when vkr_init() has
 *                  resolved it; a name that this glibc does not have keeps the raw body.
 *   VKR_REAL_LAZY  (no single system call behind it) starts as a body that resolves this one name on first use; a name
 *                  that this glibc does not have fails with ENOSYS.
 * Resolving never recurses and allocates nothing for names that exist.
 */
#ifndef VKR_LIBC_REAL_H
#define VKR_LIBC_REAL_H

#include "base.h"

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <termios.h>

/* X(result, name, parameters) */
#define VKR_REAL_RAW(X)                                                                                                \
	X(long, syscall, (long number, ...))                                                                           \
	X(int, socket, (int domain, int type, int protocol))                                                           \
	X(int, socketpair, (int domain, int type, int protocol, int sv[2]))                                            \
	X(int, bind, (int fd, const struct sockaddr *sa, socklen_t len))                                               \
	X(int, listen, (int fd, int backlog))                                                                          \
	X(int, connect, (int fd, const struct sockaddr *sa, socklen_t len))                                            \
	X(int, accept, (int fd, struct sockaddr *sa, socklen_t *len))                                                  \
	X(int, accept4, (int fd, struct sockaddr *sa, socklen_t *len, int flags))                                      \
	X(int, close, (int fd))                                                                                        \
	X(int, close_range, (unsigned first, unsigned last, int flags))                                                \
	X(void, closefrom, (int low))                                                                                  \
	X(int, dup, (int fd))                                                                                          \
	X(int, dup2, (int oldfd, int newfd))                                                                           \
	X(int, dup3, (int oldfd, int newfd, int flags))                                                                \
	X(int, fcntl, (int fd, int cmd, ...))                                                                          \
	X(int, ioctl, (int fd, unsigned long request, ...))                                                            \
	X(int, shutdown, (int fd, int how))                                                                            \
	X(int, getsockname, (int fd, struct sockaddr *sa, socklen_t *len))                                             \
	X(int, getpeername, (int fd, struct sockaddr *sa, socklen_t *len))                                             \
	X(int, getsockopt, (int fd, int level, int name, void *val, socklen_t *len))                                   \
	X(int, setsockopt, (int fd, int level, int name, const void *val, socklen_t len))                              \
	X(ssize_t, read, (int fd, void *buf, size_t n))                                                                \
	X(ssize_t, readv, (int fd, const struct iovec *iov, int cnt))                                                  \
	X(ssize_t, recv, (int fd, void *buf, size_t n, int flags))                                                     \
	X(ssize_t, recvfrom, (int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len))            \
	X(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags))                                                     \
	X(int, recvmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout))                 \
	X(ssize_t, write, (int fd, const void *buf, size_t n))                                                         \
	X(ssize_t, writev, (int fd, const struct iovec *iov, int cnt))                                                 \
	X(ssize_t, send, (int fd, const void *buf, size_t n, int flags))                                               \
	X(ssize_t, sendto, (int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len))   \
	X(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags))                                               \
	X(int, sendmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags))                                           \
	X(ssize_t, sendfile, (int out, int in, off_t *offset, size_t n))                                               \
	X(ssize_t, splice, (int in, off_t *in_off, int out, off_t *out_off, size_t n, unsigned flags))                 \
	X(ssize_t, preadv2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags))                          \
	X(ssize_t, pwritev2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags))                         \
	X(int, epoll_create, (int size))                                                                               \
	X(int, epoll_create1, (int flags))                                                                             \
	X(int, epoll_ctl, (int epfd, int op, int fd, struct epoll_event *ev))                                          \
	X(int, epoll_wait, (int epfd, struct epoll_event *evs, int max, int timeout))                                  \
	X(int, epoll_pwait, (int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask))           \
	X(int, epoll_pwait2,                                                                                           \
	  (int epfd, struct epoll_event *evs, int max, const struct timespec *timeout, const sigset_t *mask))          \
	X(int, poll, (struct pollfd * fds, nfds_t n, int timeout))                                                     \
	X(int, ppoll, (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask))           \
	X(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout))                              \
	X(int, pselect,                                                                                                \
	  (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask))              \
	X(int, getrlimit, (int resource, struct rlimit *l))                                                            \
	X(int, setrlimit, (int resource, const struct rlimit *l))                                                      \
	X(int, prlimit, (pid_t pid, int resource, const struct rlimit *set, struct rlimit *old))                       \
	X(void, _exit, (int status))                                                                                   \
	X(int, execve, (const char *path, char *const argv[], char *const envp[]))                                     \
	X(int, execveat, (int dir, const char *path, char *const argv[], char *const envp[], int flags))

/* X(result, name, parameters, arguments, result where libc has no such name) */
#define VKR_REAL_LAZY(X)                                                                                               \
	X(int, sigaction, (int sig, const struct sigaction *act, struct sigaction *old), (sig, act, old), -1)          \
	X(sighandler_t, signal, (int sig, sighandler_t h), (sig, h), SIG_ERR)                                          \
	X(sighandler_t, __sysv_signal, (int sig, sighandler_t h), (sig, h), SIG_ERR)                                   \
	X(sighandler_t, sigset, (int sig, sighandler_t h), (sig, h), SIG_ERR)                                          \
	X(int, sigignore, (int sig), (sig), -1)                                                                        \
	X(int, siginterrupt, (int sig, int flag), (sig, flag), -1)                                                     \
	X(long, sysconf, (int name), (name), -1)                                                                       \
	X(int, getdtablesize, (void), (), -1)                                                                          \
	X(int, fclose, (FILE * f), (f), EOF)                                                                           \
	X(FILE *, fdopen, (int fd, const char *mode), (fd, mode), NULL)                                                \
	X(FILE *, freopen, (const char *path, const char *mode, FILE *f), (path, mode, f), NULL)                       \
	X(FILE *, freopen64, (const char *path, const char *mode, FILE *f), (path, mode, f), NULL)                     \
	X(int, vdprintf, (int fd, const char *format, va_list ap), (fd, format, ap), -1)                               \
	X(int, __vdprintf_chk, (int fd, int flag, const char *format, va_list ap), (fd, flag, format, ap), -1)         \
	X(int, system, (const char *command), (command), -1)                                                           \
	X(FILE *, popen, (const char *command, const char *mode), (command, mode), NULL)                               \
	X(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t * fa, int fd, int newfd),                 \
	  (fa, fd, newfd), ENOSYS)                                                                                     \
	X(int, posix_spawn,                                                                                            \
	  (pid_t * pid, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *attr,         \
	   char *const argv[], char *const envp[]),                                                                    \
	  (pid, path, fa, attr, argv, envp), ENOSYS)                                                                   \
	X(int, posix_spawnp,                                                                                           \
	  (pid_t * pid, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *attr,         \
	   char *const argv[], char *const envp[]),                                                                    \
	  (pid, path, fa, attr, argv, envp), ENOSYS)                                                                   \
	X(int, pidfd_spawn,                                                                                            \
	  (int *pidfd, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *attr,          \
	   char *const argv[], char *const envp[]),                                                                    \
	  (pidfd, path, fa, attr, argv, envp), ENOSYS)                                                                 \
	X(int, pidfd_spawnp,                                                                                           \
	  (int *pidfd, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *attr,          \
	   char *const argv[], char *const envp[]),                                                                    \
	  (pidfd, path, fa, attr, argv, envp), ENOSYS)                                                                 \
	X(int, execvpe, (const char *file, char *const argv[], char *const envp[]), (file, argv, envp), -1)            \
	X(int, fexecve, (int fd, char *const argv[], char *const envp[]), (fd, argv, envp), -1)                        \
	X(int, daemon, (int nochdir, int noclose), (nochdir, noclose), -1)                                             \
	X(int, login_tty, (int fd), (fd), -1)                                                                          \
	X(int, openpty, (int *m, int *s, char *name, const struct termios *t, const struct winsize *w),                \
	  (m, s, name, t, w), -1)                                                                                      \
	X(int, forkpty, (int *m, char *name, const struct termios *t, const struct winsize *w), (m, name, t, w), -1)   \
	X(int, sockatmark, (int fd), (fd), -1)                                                                         \
	X(ssize_t, __read_chk, (int fd, void *buf, size_t n, size_t size), (fd, buf, n, size), -1)                     \
	X(ssize_t, __recv_chk, (int fd, void *buf, size_t n, size_t size, int flags), (fd, buf, n, size, flags), -1)   \
	X(ssize_t, __recvfrom_chk,                                                                                     \
	  (int fd, void *buf, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len),                  \
	  (fd, buf, n, size, flags, sa, len), -1)                                                                      \
	X(int, __poll_chk, (struct pollfd * fds, nfds_t n, int timeout, size_t size), (fds, n, timeout, size), -1)     \
	X(int, __ppoll_chk,                                                                                            \
	  (struct pollfd * fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size),          \
	  (fds, n, timeout, mask, size), -1)

struct vkr_real {
#define VKR_REAL_FIELD(ret, name, params, ...) ret(*name) params;
	VKR_REAL_RAW(VKR_REAL_FIELD)
	VKR_REAL_LAZY(VKR_REAL_FIELD)
#undef VKR_REAL_FIELD
	void (*quick_exit)(int);
};

extern VKR_LOCAL struct vkr_real vkr_real;

/* poll() without waiting. A signal that has come makes it EINTR all the same, and says nothing about the descriptors.
 */
static inline int vkr_poll_now(struct pollfd *fds, nfds_t n)
{
	int r;

	do
		r = vkr_real.poll(fds, n, 0);
	while (vkr_unlikely(r < 0) && errno == EINTR);
	return r;
}

/* Resolves everything and reads the configuration; called by the constructor, and by the first socket() or
 * epoll_create() before it. Cheap when done; keeps errno. */
void vkr_init(void);
/* The configuration has been read: vkr_active will not change any more. */
bool vkr_initialised(void);

#endif

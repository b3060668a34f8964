/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Inside the exported layer. Each intercepted call has three names: vkr_real.NAME (libc's), vkr_sock_NAME and its like
 * (the logic, socket.h), and vkr_call_NAME: the body that routes between the two. The exported names are aliases of
 * that body (VKR_NAME), so that syscall() and the fortified names reach it without going through the dynamic linker.
 *
 * A body that passes a call on does so outside any lock and as its last act, so that thread cancellation works as in
 * libc. It leaves errno alone on success.
 */
#ifndef VKR_INTERCEPT_H
#define VKR_INTERCEPT_H

#include "fdmap.h"
#include "guard.h"
#include "libc_real.h"
#include "socket.h"

/* Exports NAME, an alias of body in the same file. The C identifier is another one: libc's own declaration of NAME,
 * with its attributes and transparent unions, need not match ours. */
#define VKR_NAME(name, body)                                                                                           \
	extern __typeof__(body) vkr_exported_##name __asm__(#name) __attribute__((alias(#body), visibility("defaul"    \
													   "t")))

/* Turns a logic function's answer into libc's. */
#define VKR_ROUTE(logic, real)                                                                                         \
	do {                                                                                                           \
		int route_errno = errno;                                                                               \
		long route_answer = (logic);                                                                           \
                                                                                                                       \
		errno = route_errno;                                                                                   \
		if (route_answer == VKR_PASS)                                                                          \
			return real;                                                                                   \
		if (route_answer >= 0)                                                                                 \
			return route_answer;                                                                           \
		errno = (int)-route_answer;                                                                            \
		return -1;                                                                                             \
	} while (0)

/* True when this call is one of the application's and a rule is active. */
static inline bool vkr_on(void)
{
	return vkr_unlikely(vkr_load(&vkr_active)) && vkr_depth == 0;
}

/* The exported body: without a rule it is a look and a jump; the table of descriptors has nothing in it then.
 * active_NAME, not inlined so that its frame costs nothing here, has the rest, calls of the library itself (vkr_depth)
 * included. */
#define VKR_ACTIVE static __attribute__((noinline))
#define VKR_ENTRY_IF(ret, name, params, args, ours)                                                                    \
	ret vkr_call_##name params                                                                                     \
	{                                                                                                              \
		if (vkr_likely(!(ours)))                                                                               \
			return vkr_real.name args;                                                                     \
		return active_##name args;                                                                             \
	}                                                                                                              \
	VKR_NAME(name, vkr_call_##name)
/* The same where a call that is not ours is not quite libc's alone: `other` is what it comes to while a rule is active.
 */
#define VKR_ENTRY_OTHER(ret, name, params, args, ours, other)                                                          \
	ret vkr_call_##name params                                                                                     \
	{                                                                                                              \
		if (vkr_likely(!vkr_load(&vkr_active)))                                                                \
			return vkr_real.name args;                                                                     \
		if (vkr_unlikely(ours))                                                                                \
			return active_##name args;                                                                     \
		return other;                                                                                          \
	}                                                                                                              \
	VKR_NAME(name, vkr_call_##name)
#define VKR_ENTRY(ret, name, params, args) VKR_ENTRY_IF(ret, name, params, args, vkr_load(&vkr_active))

/* The usual call: the first parameter is `fd`, and vkr_sock_NAME takes the same arguments. With a rule, a descriptor
 * that is not tracked costs a look at the table more. */
#define VKR_FD_CALL(ret, name, params, args)                                                                           \
	VKR_ACTIVE ret active_##name params                                                                            \
	{                                                                                                              \
		if (vkr_depth)                                                                                         \
			return vkr_real.name args;                                                                     \
		VKR_ROUTE(vkr_sock_##name args, vkr_real.name args);                                                   \
	}                                                                                                              \
	VKR_ENTRY_IF(ret, name, params, args, vkr_fd_tracked(fd))

/* A low number that is surely neither tracked nor guarded; of most descriptors, and the cheapest to ask. */
static inline bool vkr_foreign(int fd)
{
	vkr_entry *chunk = vkr_load_acq(&vkr_fd_chunks[0]);

	return vkr_likely((unsigned)fd < vkr_load(&vkr_guard_low) && !(chunk && vkr_load(&chunk[(unsigned)fd])));
}

/* Fork handlers, once, before the first number is noted (intercept_process.c). */
void vkr_process_prepare(void);

/* True in a child that shares this memory without our vfork() (clone with CLONE_VM): it must change nothing here. A
 * system call; a child that was forked without handlers is put right first. */
static inline bool vkr_vforked(void)
{
	vkr_fork_check();
	return vkr_in_vfork_child();
}

/* ---- numbers that appear behind fdmap's back (intercept.c); all keep errno */

/* vkr_fd_fresh() if fd is valid and the call is the application's; returns fd. */
void vkr_note_stale(int fd);
static inline int vkr_note_fresh(int fd)
{
	if (fd >= 0 && vkr_unlikely(vkr_fd_tracked(fd)))
		vkr_note_stale(fd);
	return fd;
}
/* SCM_RIGHTS in a message that came: the kernel has filled it, so the pointers are good. */
void vkr_note_rights_in(const struct msghdr *m);
/* In one that is about to be sent. */
void vkr_note_rights_out(const struct msghdr *m);

/* Signal `sig` has a new disposition: remembers it. */
void vkr_note_signal(int sig);

/* ---- the bodies */

int vkr_call_socket(int domain, int type, int protocol);
int vkr_call_socketpair(int domain, int type, int protocol, int sv[2]);
int vkr_call_bind(int fd, const struct sockaddr *sa, socklen_t len);
int vkr_call_listen(int fd, int backlog);
int vkr_call_connect(int fd, const struct sockaddr *sa, socklen_t len);
int vkr_call_accept(int fd, struct sockaddr *sa, socklen_t *len);
int vkr_call_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags);
int vkr_call_getsockname(int fd, struct sockaddr *sa, socklen_t *len);
int vkr_call_getpeername(int fd, struct sockaddr *sa, socklen_t *len);
int vkr_call_getsockopt(int fd, int level, int name, void *val, socklen_t *len);
int vkr_call_setsockopt(int fd, int level, int name, const void *val, socklen_t len);
int vkr_call_shutdown(int fd, int how);
int vkr_call_sockatmark(int fd);

int vkr_call_close(int fd);
int vkr_call_close_range(unsigned first, unsigned last, int flags);
void vkr_call_closefrom(int low);
int vkr_call_dup(int fd);
int vkr_call_dup2(int oldfd, int newfd);
int vkr_call_dup3(int oldfd, int newfd, int flags);
int vkr_call_fcntl(int fd, int cmd, void *arg);
int vkr_call_ioctl(int fd, unsigned long request, void *arg);
int vkr_call_fclose(FILE *f);
FILE *vkr_call_fdopen(int fd, const char *mode);
FILE *vkr_call_freopen(const char *path, const char *mode, FILE *f);
FILE *vkr_call_freopen64(const char *path, const char *mode, FILE *f);

ssize_t vkr_call_read(int fd, void *buf, size_t n);
ssize_t vkr_call_readv(int fd, const struct iovec *iov, int cnt);
ssize_t vkr_call_recv(int fd, void *buf, size_t n, int flags);
ssize_t vkr_call_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len);
ssize_t vkr_call_recvmsg(int fd, struct msghdr *m, int flags);
int vkr_call_recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout);
ssize_t vkr_call_write(int fd, const void *buf, size_t n);
ssize_t vkr_call_writev(int fd, const struct iovec *iov, int cnt);
ssize_t vkr_call_send(int fd, const void *buf, size_t n, int flags);
ssize_t vkr_call_sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len);
ssize_t vkr_call_sendmsg(int fd, const struct msghdr *m, int flags);
int vkr_call_sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags);
ssize_t vkr_call_sendfile(int out, int in, off_t *offset, size_t n);
ssize_t vkr_call_splice(int in, off_t *in_off, int out, off_t *out_off, size_t n, unsigned flags);
ssize_t vkr_call_preadv2(int fd, const struct iovec *iov, int cnt, off_t off, int flags);
ssize_t vkr_call_pwritev2(int fd, const struct iovec *iov, int cnt, off_t off, int flags);
ssize_t vkr_call_read_chk(int fd, void *buf, size_t n, size_t size);
ssize_t vkr_call_recv_chk(int fd, void *buf, size_t n, size_t size, int flags);
ssize_t vkr_call_recvfrom_chk(int fd, void *buf, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len);

int vkr_call_epoll_create(int size);
int vkr_call_epoll_create1(int flags);
int vkr_call_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev);
int vkr_call_epoll_wait(int epfd, struct epoll_event *evs, int max, int timeout);
int vkr_call_epoll_pwait(int epfd, struct epoll_event *evs, int max, int timeout, const sigset_t *mask);
int vkr_call_epoll_pwait2(int epfd, struct epoll_event *evs, int max, const struct timespec *timeout,
			  const sigset_t *mask);
int vkr_call_poll(struct pollfd *fds, nfds_t n, int timeout);
int vkr_call_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int vkr_call_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *timeout);
int vkr_call_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask);
int vkr_call_poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
int vkr_call_ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);

int vkr_call_execve(const char *path, char *const argv[], char *const envp[]);
int vkr_call_execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags);
void vkr_call__exit(int status);

int vkr_call_getrlimit(int resource, struct rlimit *l);
int vkr_call_setrlimit(int resource, const struct rlimit *l);
int vkr_call_prlimit(pid_t pid, int resource, const struct rlimit *set, struct rlimit *old);

long vkr_call_syscall(long number, const long a[6]);

#endif

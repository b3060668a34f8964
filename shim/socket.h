/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The logic behind each intercepted call, for descriptors that fdmap tracks. Every function takes the arguments of its
 * libc namesake and returns its result, -errno, or VKR_PASS: "not ours after all (or only noted): make the real call".
 * None touches errno. intercept.c holds the exported names, one line of routing each:
 *
 *	VKR_EXPORT ssize_t read(int fd, void *buf, size_t n)
 *	{
 *		if (vkr_likely(!vkr_tracked(fd)))
 *			return vkr_real.read(fd, buf, n);
 *		VKR_ROUTE(vkr_sock_read(fd, buf, n), vkr_real.read(fd, buf, n));
 *	}
 */
#ifndef VKR_SOCKET_H
#define VKR_SOCKET_H

#include "base.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#define VKR_PASS INT32_MIN

/* Calls of the library itself (and of rdma-core underneath it) go straight to libc while this is > 0. */
extern VKR_LOCAL VKR_TLS int vkr_depth;

/* True from the first read of a configuration with a rule; false for ever otherwise. One load. */
extern VKR_LOCAL _Atomic bool vkr_active;

/*
 * fdmap.c's table, here because every call on every descriptor asks it. Two levels: the numbers of a container with
 * RLIMIT_NOFILE of one billion cost nothing until they are used.
 */
#define VKR_FD_CHUNK_BITS 13
#define VKR_FD_CHUNK_SIZE (1u << VKR_FD_CHUNK_BITS)
#define VKR_FD_CHUNKS     (1u << (32 - VKR_FD_CHUNK_BITS)) /* every int, negative ones too: no bounds to check */

struct vkr_file;
typedef _Atomic(struct vkr_file *) vkr_entry;
extern VKR_LOCAL _Atomic(vkr_entry *) vkr_fd_chunks[VKR_FD_CHUNKS];

static inline vkr_entry *vkr_fd_entry(int fd)
{
	vkr_entry *chunk;

	chunk = vkr_load_acq(&vkr_fd_chunks[(unsigned)fd >> VKR_FD_CHUNK_BITS]);
	return chunk ? &chunk[(unsigned)fd & (VKR_FD_CHUNK_SIZE - 1)] : NULL;
}

static inline bool vkr_fd_tracked(int fd)
{
	vkr_entry *e = vkr_fd_entry(fd);

	return e && vkr_load(e);
}

static inline bool vkr_tracked(int fd)
{
	return vkr_unlikely(vkr_load(&vkr_active)) && vkr_depth == 0 && vkr_fd_tracked(fd);
}

/* ---- numbers appearing and disappearing (fdmap.c) */

/* After a real socket(): notes a TCP socket that a rule could flag later. */
void vkr_fd_socket(int fd, int domain, int type, int protocol);
/* After a real epoll_create*: notes the set. */
int vkr_fd_epoll(int fd); /* 0, or -ENOMEM: then it is not known */
/* A number was handed out by the kernel through another call (accept of an untracked listener, open, ...): a stale
 * entry must go. Cheap. Called by every wrapper that returns a new descriptor from a real call. */
void vkr_fd_fresh(int fd);

int vkr_sock_close(int fd); /* guarded fd: -EBADF */
int vkr_sock_close_range(unsigned first, unsigned last, int flags);
void vkr_sock_closefrom(int lowfd);
int vkr_sock_dup(int fd, int min, bool cloexec); /* dup (min 0), F_DUPFD, F_DUPFD_CLOEXEC: the new number */
int vkr_sock_dup2(int oldfd, int newfd, int flags, bool is_dup3); /* either may be tracked, or newfd guarded */

/* ---- calls on one descriptor (socket.c) */
int vkr_sock_bind(int fd, const struct sockaddr *sa, socklen_t len);
int vkr_sock_listen(int fd, int backlog);
int vkr_sock_connect(int fd, const struct sockaddr *sa, socklen_t len);
int vkr_sock_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags);
int vkr_sock_getsockname(int fd, struct sockaddr *sa, socklen_t *len);
int vkr_sock_getpeername(int fd, struct sockaddr *sa, socklen_t *len);
int vkr_sock_getsockopt(int fd, int level, int name, void *val, socklen_t *len);
int vkr_sock_setsockopt(int fd, int level, int name, const void *val, socklen_t len);
int vkr_sock_shutdown(int fd, int how);
int vkr_sock_ioctl(int fd, unsigned long request, void *arg);
int vkr_sock_fcntl(int fd, int cmd, void *arg); /* F_DUPFD* come here too */

ssize_t vkr_sock_read(int fd, void *buf, size_t n);
ssize_t vkr_sock_readv(int fd, const struct iovec *iov, int cnt);
ssize_t vkr_sock_recv(int fd, void *buf, size_t n, int flags);
ssize_t vkr_sock_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len);
ssize_t vkr_sock_recvmsg(int fd, struct msghdr *m, int flags);
int vkr_sock_recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout);
ssize_t vkr_sock_write(int fd, const void *buf, size_t n);
ssize_t vkr_sock_writev(int fd, const struct iovec *iov, int cnt);
ssize_t vkr_sock_send(int fd, const void *buf, size_t n, int flags);
ssize_t vkr_sock_sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len);
ssize_t vkr_sock_sendmsg(int fd, const struct msghdr *m, int flags);
int vkr_sock_sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags);
ssize_t vkr_sock_sendfile(int out, int in, off_t *offset, size_t n);
/* splice, tee, copy_file_range, p{read,write}v* on a carried fd: what the kernel answers for a socket */
ssize_t vkr_sock_splice(int in, loff_t *in_off, int out, loff_t *out_off, size_t n, unsigned flags);
int vkr_sock_sockatmark(int fd);
/* Before fdopen, SCM_RIGHTS and whatever else uses the descriptor past our calls: pair mode (pump.h). */
void vkr_sock_share(int fd);
/* A number that came by SCM_RIGHTS or exec: tracked if it is a shared connection's. */
void vkr_sock_received(int fd);

/* ---- waiting (poll_emul.c). Routed here whenever vkr_active and depth is 0; return VKR_PASS when only kernel
 * descriptors are concerned. */
int vkr_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev);
/* left: ns, negative for ever. mask NULL: unchanged. */
int vkr_epoll_wait(int epfd, struct epoll_event *evs, int max, int64_t left, const sigset_t *mask);
/* The end of a wait past us (plain_wait.h) whose set was claimed meanwhile: n is what the kernel returned, left() its
 * time-out in ns. The rest of the wait, if nothing is left of that. */
struct vkr_plain;
int vkr_epoll_resume(struct vkr_plain *self, int n, int64_t (*left)(struct vkr_plain *was));
/* timeout NULL: for ever. */
int vkr_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
/* The remaining time is written to *left where left is not NULL (select does so on Linux). */
int vkr_select(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *timeout, const sigset_t *mask,
	       struct timespec *left);

/* ---- process (fdmap.c) */
void vkr_socket_fork_prepare(void);
void vkr_socket_fork_parent(void);
void vkr_socket_fork_child(void);
void vkr_socket_exit(
    void); /* flush carried connections, at most 1 s; idempotent; no-op in a vfork child or when nothing is carried */
/* Before exec*: heirs of ours get pair mode, and what this process carries itself is flushed and ended (in a vfork
 * child only the former). */
void vkr_socket_exec(void);
/* The program stays: its listeners are ours again. */
void vkr_socket_exec_failed(void);
/* Before a new program starts beside this one. */
void vkr_socket_spawn(void);

/* Signal dispositions as sigaction/signal/siginterrupt set them, for SA_RESTART; recorded by intercept.c. */
void vkr_signal_note(int sig, bool has_handler, bool restart);

#endif

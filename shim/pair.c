/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What a holder of a connection's descriptor does with it, in whatever process: asking the owner to switch, reading and
 * writing, and finding out what it is. See pump.h.
 */
#include "pump.h"

#include "epset.h"
#include "libc_real.h"
#include "log.h"
#include "socket.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define OWNER_MS 10000 /* a stopped owner: the holder sees an error in place of a hang for ever */

_Atomic bool vkr_pair_inherited;

/* ------------------------------------------------------------------ names */

struct pair_addr {
	uint16_t family, port; /* port in network order */
	uint32_t scope;
	uint8_t addr[16];
};

/* sun_path of a name: abstract, so it begins with a zero byte. */
struct pair_name {
	char magic[8];
	uint64_t unique; /* of the process's connections; a name must be nobody else's */
	int32_t pid;
	uint16_t domain, used;
	struct pair_addr local, peer;
};

static const char name_magic[8] = "\0vkrdma";

static void pack_addr(struct pair_addr *to, const struct sockaddr_storage *from)
{
	const struct sockaddr_in6 *in6 = (const void *)from;
	const struct sockaddr_in *in = (const void *)from;

	to->family = from->ss_family;
	if (from->ss_family == AF_INET) {
		to->port = in->sin_port;
		memcpy(to->addr, &in->sin_addr, sizeof(in->sin_addr));
	} else {
		to->port = in6->sin6_port;
		to->scope = in6->sin6_scope_id;
		memcpy(to->addr, &in6->sin6_addr, sizeof(in6->sin6_addr));
	}
}

/* A failure is harmless: then holders ask where they could know, and others do not know the pair for ours. */
static void bind_name(int fd, struct pair_name *name)
{
	static _Atomic uint64_t counter;
	struct sockaddr_un sun = {.sun_family = AF_UNIX};

	memcpy(name->magic, name_magic, sizeof(name_magic));
	name->pid = getpid();
	name->unique = (uint64_t)vkr_now_ns() + atomic_fetch_add(&counter, 1);
	memcpy(sun.sun_path, name, sizeof(*name));
	vkr_real.bind(fd, (struct sockaddr *)&sun, offsetof(struct sockaddr_un, sun_path) + sizeof(*name));
}

void vkr_pair_name(int fd, int domain, const struct sockaddr_storage *local, const struct sockaddr_storage *peer)
{
	struct pair_name name = {.domain = (uint16_t)domain};

	pack_addr(&name.local, local);
	pack_addr(&name.peer, peer);
	bind_name(fd, &name);
}

void vkr_pair_name_used(int fd)
{
	struct pair_name name = {.used = 1};

	bind_name(fd, &name);
}

/* True, with the name, if fd is the application's end of a pair of some process. */
static bool name_of(int fd, struct pair_name *name)
{
	struct sockaddr_un sun;
	socklen_t len = sizeof(sun);

	if (vkr_real.getsockname(fd, (struct sockaddr *)&sun, &len) < 0 || sun.sun_family != AF_UNIX ||
	    len != offsetof(struct sockaddr_un, sun_path) + sizeof(*name))
		return false;
	memcpy(name, sun.sun_path, sizeof(*name));
	return !memcmp(name->magic, name_magic, sizeof(name_magic)) && !name->used;
}

static void unpack_addr(struct sockaddr_storage *to, const struct pair_addr *from)
{
	struct sockaddr_in6 *in6 = (void *)to;
	struct sockaddr_in *in = (void *)to;

	memset(to, 0, sizeof(*to));
	to->ss_family = from->family;
	if (from->family == AF_INET) {
		in->sin_port = from->port;
		memcpy(&in->sin_addr, from->addr, sizeof(in->sin_addr));
	} else {
		in6->sin6_port = from->port;
		in6->sin6_scope_id = from->scope;
		memcpy(&in6->sin6_addr, from->addr, sizeof(in6->sin6_addr));
	}
}

bool vkr_pair_addrs(int fd, struct sockaddr_storage *local, struct sockaddr_storage *peer)
{
	struct pair_name name;

	if (!name_of(fd, &name))
		return false;
	unpack_addr(local, &name.local);
	unpack_addr(peer, &name.peer);
	return true;
}

/* The other end has a name, or is gone. */
static bool in_use(int fd)
{
	struct sockaddr_un sun;
	socklen_t len = sizeof(sun);

	return vkr_real.getpeername(fd, (struct sockaddr *)&sun, &len) < 0 ||
	       len > offsetof(struct sockaddr_un, sun_path);
}

/* ------------------------------------------------------------------ asking the owner */

int vkr_pair_pass(int fd, int right)
{
	union {
		struct cmsghdr h;
		char space[CMSG_SPACE(sizeof(int))];
	} u;
	struct iovec iov = {(char[]){0}, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof(u)};

	memset(&u, 0, sizeof(u));
	u.h.cmsg_level = SOL_SOCKET;
	u.h.cmsg_type = SCM_RIGHTS;
	u.h.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&u.h), &right, sizeof(int));
	return vkr_real.sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

/* Only system calls on descriptors of this process: a child of vfork comes here too. An owner that is gone has closed
 * its end, and the kernel's answers are the right ones. */
static void ask(int fd)
{
	int64_t end = vkr_now_ns() + OWNER_MS * 1000000ll;
	int p[2], r, cancel;
	struct pollfd pfd;
	bool piped;

	if (in_use(fd))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	/* Any descriptor makes it a request. The pipe hangs up when the owner closes its copy, or with the owner;
	 * without one the owner's end is looked at now and then. */
	piped = pipe2(p, O_CLOEXEC) == 0;
	r = vkr_pair_pass(fd, piped ? p[1] : fd);
	if (piped)
		vkr_real.close(p[1]);
	pfd = (struct pollfd){.fd = piped && !r ? p[0] : -1};
	while (!in_use(fd) && vkr_real.poll(&pfd, 1, pfd.fd >= 0 ? OWNER_MS : 1) <= 0) {
		if (vkr_now_ns() >= end) {
			vkr_warn("descriptor %d: its owner does not answer", fd);
			break;
		}
		if (r) /* too much of this user is on its way, or the pair is full for now */
			r = vkr_pair_pass(fd, fd);
	}
	if (piped)
		vkr_real.close(p[0]);
	pthread_setcancelstate(cancel, NULL);
}

void vkr_pair_share(struct vkr_sock *s, int fd)
{
	int saved = errno;

	if (vkr_sock_settle(s) == VKR_SOCK_CARRIED) {
		if (vkr_file_inherited(&s->file)) {
			ask(fd);
			vkr_store_rel(&s->state, VKR_SOCK_PAIRED);
		} else {
			vkr_pump_switch(s);
		}
	}
	errno = saved;
}

int vkr_pair_adopt(int fd, struct vkr_sock *listener)
{
	struct pair_name name;
	struct vkr_sock *s;

	if (!name_of(fd, &name))
		return -ENOTCONN;
	s = vkr_sock_new(name.domain, SOCK_STREAM, IPPROTO_TCP);
	if (!s)
		return -ENOMEM;
	vkr_store(&s->told, true);
	if (listener && vkr_options_room(s, listener)) {
		vkr_sock_put(s);
		return -ENOMEM;
	}
	if (listener)
		vkr_options_inherit(s, listener,
				    listener->kernel_fd >= 0 ? listener->kernel_fd : vkr_load(&listener->file.number));
	vkr_store_rel(&s->state, VKR_SOCK_PAIRED);
	return vkr_fd_track(fd, &s->file);
}

/* ------------------------------------------------------------------ exec */

/* vkr_ctl_lock held, but in a child of vfork. */
static bool stays_open(int fd)
{
	int flags = vkr_real.fcntl(fd, F_GETFD);

	return flags >= 0 && !(flags & FD_CLOEXEC);
}

struct heirs {
	int fd[64];
	int n, from;
};

static void note_heir(int fd, struct vkr_file *f, void *arg)
{
	struct heirs *h = arg;

	if (fd >= h->from && h->n < (int)VKR_ARRAY_SIZE(h->fd) && f->kind == VKR_KIND_SOCK &&
	    vkr_load(&((struct vkr_sock *)f)->state) == VKR_SOCK_CARRIED && stays_open(fd))
		h->fd[h->n++] = fd;
}

static void share_number(int fd)
{
	struct vkr_sock *s = vkr_sock_get(fd);

	if (!s)
		return;
	vkr_pair_share(s, fd);
	vkr_sock_put(s);
}

/* In a child of vfork the table is the parent's, and its numbers may be others here: the name tells. */
static void ask_by_name(int fd)
{
	struct pair_name name;

	if (stays_open(fd) && name_of(fd, &name))
		ask(fd);
}

void vkr_pair_exec(void)
{
	bool vforked = vkr_in_vfork_child();
	struct heirs h = {.from = 0};
	int i, saved = errno;

	for (i = 0; i <= 2 && vforked; i++)
		ask_by_name(i);
	do {
		h.n = 0;
		if (!vforked)
			pthread_mutex_lock(&vkr_ctl_lock);
		vkr_file_each_number(NULL, note_heir, &h);
		if (!vforked)
			pthread_mutex_unlock(&vkr_ctl_lock);
		for (i = 0; i < h.n; i++) {
			if (vforked)
				ask_by_name(h.fd[i]);
			else
				share_number(h.fd[i]);
			h.from = h.fd[i] + 1;
		}
	} while (h.n == (int)VKR_ARRAY_SIZE(h.fd));
	errno = saved;
}

/* ------------------------------------------------------------------ bytes */

/* MSG_TRUNC on a TCP socket drops the bytes (tcp(7)); the kernel has no such thing for AF_UNIX streams. */
static ssize_t recv_drop(int fd, size_t total, int flags)
{
	char sink[4096];
	size_t done = 0;
	ssize_t n;

	do {
		n = vkr_real.recv(fd, sink, vkr_min(sizeof(sink), total - done), flags);
		if (n > 0)
			done += (size_t)n;
		flags |= MSG_DONTWAIT;
	} while (n > 0 && done < total);
	return done ? (ssize_t)done : n;
}

/* TCP waits for all that is asked for, the kernel's AF_UNIX shows what is there. Rare enough to look now and then. */
static ssize_t peek_all(int fd, struct msghdr *m, size_t total, int flags)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};
	int64_t timeout = vkr_kernel_timeout(fd, SO_RCVTIMEO), end = timeout ? vkr_now_ns() + timeout : INT64_MAX;
	ssize_t n;

	for (;;) {
		n = vkr_real.recvmsg(fd, m, flags);
		if (n <= 0 || n >= (ssize_t)total || vkr_real.poll(&p, 1, 0) != 0 || vkr_now_ns() >= end)
			return n;
		if (vkr_real.poll(NULL, 0, 1) < 0)
			return n;
	}
}

static size_t total_of(const struct iovec *iov, int cnt)
{
	size_t n = 0;
	int i;

	for (i = 0; i < cnt; i++)
		n += iov[i].iov_len;
	return n;
}

ssize_t vkr_pair_recv(int fd, const struct iovec *iov, int cnt, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)cnt};
	ssize_t r;

	if (flags & MSG_OOB)
		return -EINVAL;
	if (flags & MSG_ERRQUEUE)
		return -EAGAIN;
	if ((flags & (MSG_TRUNC | MSG_PEEK)) == MSG_TRUNC)
		r = recv_drop(fd, total_of(iov, cnt), flags & ~MSG_TRUNC);
	else if (flags & MSG_PEEK && flags & MSG_WAITALL && !(flags & MSG_DONTWAIT))
		r = peek_all(fd, &m, total_of(iov, cnt), flags & ~MSG_TRUNC);
	else
		r = vkr_real.recvmsg(fd, &m, flags & ~MSG_TRUNC);
	return r < 0 ? -errno : r;
}

/* Without the address and the ancillary data, which TCP ignores and AF_UNIX would not. */
ssize_t vkr_pair_send(int fd, const struct iovec *iov, int cnt, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)cnt};
	ssize_t r;

	if (flags & MSG_OOB)
		return -EOPNOTSUPP;
	r = vkr_real.sendmsg(fd, &m, flags);
	return r < 0 ? -errno : r;
}

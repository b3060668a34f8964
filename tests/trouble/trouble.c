/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * libvkr-trouble.so: a libc that fails, for the library under test alone. It is preloaded after libvkrdma.so, which
 *then finds these functions where it looks for libc's. See README.md for the kinds; no kind does what the kernel would
 * not do in some circumstances, and calls that are the program's own are left alone.
 *
 *	VKR_TROUBLE         KIND=N,...: one of N opportunities at random; KIND@N: the N-th of the process, no other
 *	VKR_TROUBLE_SEED    names the sequence of random numbers
 *	VKR_TROUBLE_COUNTS  a file of counters, shared by all processes of a run: what there was, and what was done
 */
#include "trouble.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <poll.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static const char *const kinds[] = VKR_TROUBLE_KINDS;

static struct {
	bool on;
	unsigned long one_of[VKR_TROUBLE_N], nth[VKR_TROUBLE_N];
	uint64_t seed;
	int first; /* descriptors from here on are the library's */
	struct vkr_trouble_counts *counts;
} t;

static _Atomic uint64_t rolled;
static _Atomic unsigned long here[VKR_TROUBLE_N];

/* ------------------------------------------------------------------ libc's own */

/* Resolved on first use: other constructors call these before ours has run. */
#define NEXT(name) ((__typeof__(&name))next(#name, &real_##name))
#define REAL(name) static void *real_##name

static void *next(const char *name, void **at)
{
	void *p = __atomic_load_n(at, __ATOMIC_RELAXED);

	if (!p) {
		p = dlsym(RTLD_NEXT, name);
		__atomic_store_n(at, p, __ATOMIC_RELAXED);
	}
	return p;
}

/* ------------------------------------------------------------------ whose call is it */

/* Which object a return address lies in, remembered: dladdr() takes a lock and a while. */
static _Atomic uintptr_t places[4096];

enum place { ELSEWHERE, SHIM, SOFTVERBS };

static enum place place_of(const void *ra)
{
	uintptr_t a = (uintptr_t)ra, seen;
	_Atomic uintptr_t *at = &places[a / 2 % 4096];
	enum place place = ELSEWHERE;
	static __thread bool inside;
	Dl_info info;

	seen = atomic_load_explicit(at, memory_order_relaxed);
	if (seen >> 2 == a << 2 >> 2 && seen)
		return (enum place)(seen & 3);
	if (inside)
		return ELSEWHERE;
	inside = true;
	if (dladdr(ra, &info) && info.dli_fname)
		place = strstr(info.dli_fname, "libvkrdma.so")        ? SHIM
			: strstr(info.dli_fname, "libvkrdma-soft.so") ? SOFTVERBS
								      : ELSEWHERE;
	inside = false;
	atomic_store_explicit(at, a << 2 | place, memory_order_relaxed);
	return place;
}

#define FROM_LIBRARY (t.on && place_of(__builtin_return_address(0)) != ELSEWHERE)
/* softverbs stands for the device and its driver: their memory is not the program's. */
#define FROM_SHIM (t.on && place_of(__builtin_return_address(0)) == SHIM)

/* Among numbers the library's own are told by their height; the program's soft limit lies below them. */
static bool own(int fd)
{
	return t.on && fd >= t.first;
}

/* ------------------------------------------------------------------ chance */

static uint64_t roll(void)
{
	uint64_t x = t.seed + (atomic_fetch_add(&rolled, 1) + 1) * 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static bool strikes(enum vkr_trouble_kind kind)
{
	unsigned long n;
	bool hit;

	if (!t.one_of[kind] && !t.nth[kind])
		return false;
	n = atomic_fetch_add(&here[kind], 1) + 1;
	hit = t.nth[kind] ? n == t.nth[kind] : roll() % t.one_of[kind] == 0;
	if (t.counts) {
		atomic_fetch_add(&t.counts->seen[kind], 1);
		if (hit)
			atomic_fetch_add(&t.counts->done[kind], 1);
	}
	return hit;
}

static bool fails(enum vkr_trouble_kind kind, int err)
{
	if (!strikes(kind))
		return false;
	errno = err;
	return true;
}

/* ------------------------------------------------------------------ memory and threads */

REAL(malloc);
REAL(calloc);
REAL(realloc);
REAL(mmap);
REAL(pthread_create);

/* dlsym() may want memory before the allocator is known. */
static _Alignas(16) char early[4096];
static _Atomic size_t early_used;

static void *early_alloc(size_t n)
{
	size_t at = atomic_fetch_add(&early_used, (n + 15) & ~(size_t)15);

	return at + n <= sizeof(early) ? early + at : NULL;
}

static bool is_early(const void *p)
{
	return (const char *)p >= early && (const char *)p < early + sizeof(early);
}

/* NULL while this very thread is looking for the allocator. */
static void *allocator(const char *name, void **at)
{
	static __thread bool looking;
	void *p = __atomic_load_n(at, __ATOMIC_RELAXED);

	if (p || looking)
		return p;
	looking = true;
	p = next(name, at);
	looking = false;
	return p;
}

EXPORT void *malloc(size_t n)
{
	void *(*fn)(size_t) = (void *(*)(size_t))allocator("malloc", &real_malloc);

	if (!fn)
		return early_alloc(n);
	return FROM_SHIM && fails(VKR_TROUBLE_ALLOC, ENOMEM) ? NULL : fn(n);
}

EXPORT void *calloc(size_t n, size_t size)
{
	void *(*fn)(size_t, size_t) = (void *(*)(size_t, size_t))allocator("calloc", &real_calloc);

	if (!fn)
		return early_alloc(n * size);
	return FROM_SHIM && fails(VKR_TROUBLE_ALLOC, ENOMEM) ? NULL : fn(n, size);
}

EXPORT void *realloc(void *p, size_t n)
{
	void *(*fn)(void *, size_t) = (void *(*)(void *, size_t))allocator("realloc", &real_realloc);

	if (!fn)
		return NULL;
	return FROM_SHIM && n && fails(VKR_TROUBLE_ALLOC, ENOMEM) ? NULL : fn(p, n);
}

REAL(free);
EXPORT void free(void *p)
{
	void (*fn)(void *) = (void (*)(void *))allocator("free", &real_free);

	if (fn && !is_early(p)) /* without it, what dlsym() gives back now is lost */
		fn(p);
}

EXPORT void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	/* MAP_FIXED replaces what is there: that takes no address space, and the private pages are not counted. */
	if (FROM_SHIM && !(flags & MAP_FIXED) && fails(VKR_TROUBLE_ALLOC, ENOMEM))
		return MAP_FAILED;
	return NEXT(mmap)(at, n, prot, flags, fd, off);
}

EXPORT int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	if (FROM_SHIM && strikes(VKR_TROUBLE_ALLOC))
		return EAGAIN;
	return NEXT(pthread_create)(out, attr, fn, arg);
}

/* ------------------------------------------------------------------ descriptors */

REAL(eventfd);
REAL(memfd_create);
REAL(epoll_create1);
REAL(socketpair);
REAL(socket);
REAL(pipe2);
REAL(fcntl);
REAL(close);

/* libvkrdma.so passes on what the program creates; what it creates for itself is closed on exec. */
#define MAKES(mine) (FROM_LIBRARY && (mine) && fails(VKR_TROUBLE_FDS, roll() % 4 ? EMFILE : ENFILE))

EXPORT int eventfd(unsigned n, int flags)
{
	return MAKES(true) ? -1 : NEXT(eventfd)(n, flags);
}

EXPORT int memfd_create(const char *name, unsigned flags)
{
	return MAKES(true) ? -1 : NEXT(memfd_create)(name, flags);
}

EXPORT int epoll_create1(int flags)
{
	/* The program's own come by way of libvkrdma.so, with the same flags as its. */
	return t.on && place_of(__builtin_return_address(0)) == SOFTVERBS && MAKES(true) ? -1
											 : NEXT(epoll_create1)(flags);
}

EXPORT int socketpair(int domain, int type, int protocol, int sv[2])
{
	bool mine = domain == AF_UNIX && type & SOCK_CLOEXEC;
	int r = MAKES(mine) ? -1 : NEXT(socketpair)(domain, type, protocol, sv);

	/* The kernel's smallest: sends are short, and then EAGAIN, all the time. */
	for (int i = 0; i < 2 && r == 0 && mine && FROM_LIBRARY && strikes(VKR_TROUBLE_AGAIN); i++)
		setsockopt(sv[i], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int));
	return r;
}

EXPORT int socket(int domain, int type, int protocol)
{
	return MAKES(domain == AF_UNIX && type & SOCK_CLOEXEC) ? -1 : NEXT(socket)(domain, type, protocol);
}

EXPORT int pipe2(int p[2], int flags)
{
	return MAKES(true) ? -1 : NEXT(pipe2)(p, flags);
}

EXPORT int fcntl(int fd, int cmd, ...)
{
	void *arg;
	va_list ap;

	va_start(ap, cmd);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (cmd == F_DUPFD_CLOEXEC && MAKES((intptr_t)arg >= t.first || own(fd)))
		return -1;
	return NEXT(fcntl)(fd, cmd, arg);
}

/* ------------------------------------------------------------------ interrupted, short, not now */

REAL(ftruncate);
REAL(poll);
REAL(read);
REAL(write);
REAL(recv);
REAL(send);
REAL(recvmsg);
REAL(sendmsg);

static bool blocks(int fd, int flags)
{
	return !(flags & MSG_DONTWAIT) && !(NEXT(fcntl)(fd, F_GETFL) & O_NONBLOCK);
}

static bool is_socket(int fd, bool stream)
{
	int type = 0;
	socklen_t len = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && (!stream || type == SOCK_STREAM);
}

/* A signal's handler has run: close() has closed all the same. */
EXPORT int close(int fd)
{
	int r = NEXT(close)(fd);

	return r == 0 && own(fd) && fails(VKR_TROUBLE_INTR, EINTR) ? -1 : r;
}

EXPORT int ftruncate(int fd, off_t n)
{
	return FROM_LIBRARY && fails(VKR_TROUBLE_INTR, EINTR) ? -1 : NEXT(ftruncate)(fd, n);
}

/* Also without a time to wait poll() sees a signal that has come. */
EXPORT int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	bool mine = t.one_of[VKR_TROUBLE_INTR] && n && n <= 4 && FROM_LIBRARY;

	for (nfds_t i = 0; mine && i < n; i++)
		mine = own(fds[i].fd);
	if (mine && fails(VKR_TROUBLE_INTR, EINTR))
		return -1;
	return NEXT(poll)(fds, n, timeout);
}

/* Fails before anything moves? Only a call that may sleep is interrupted. */
static bool interrupted(int fd, int flags)
{
	return own(fd) && t.one_of[VKR_TROUBLE_INTR] && is_socket(fd, false) && blocks(fd, flags) &&
	       fails(VKR_TROUBLE_INTR, EINTR);
}

static size_t shorter(int fd, size_t n, int flags)
{
	if (n < 2 || !own(fd) || flags & (MSG_PEEK | MSG_TRUNC | MSG_WAITALL) || !t.one_of[VKR_TROUBLE_SHORT] ||
	    !is_socket(fd, true) || !strikes(VKR_TROUBLE_SHORT))
		return n;
	return 1 + roll() % (n - 1);
}

EXPORT ssize_t read(int fd, void *buf, size_t n)
{
	return interrupted(fd, 0) ? -1 : NEXT(read)(fd, buf, shorter(fd, n, 0));
}

EXPORT ssize_t write(int fd, const void *buf, size_t n)
{
	return interrupted(fd, 0) ? -1 : NEXT(write)(fd, buf, shorter(fd, n, 0));
}

EXPORT ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	return interrupted(fd, flags) ? -1 : NEXT(recv)(fd, buf, shorter(fd, n, flags), flags);
}

EXPORT ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	return interrupted(fd, flags) ? -1 : NEXT(send)(fd, buf, shorter(fd, n, flags), flags);
}

#define IOVS 16

/* The message with no more than `most` bytes; iov has room for IOVS. */
static struct msghdr clipped(const struct msghdr *m, size_t most, struct iovec *iov)
{
	struct msghdr c = *m;

	c.msg_iov = iov;
	for (c.msg_iovlen = 0; c.msg_iovlen < m->msg_iovlen && most; c.msg_iovlen++) {
		iov[c.msg_iovlen] = m->msg_iov[c.msg_iovlen];
		if (iov[c.msg_iovlen].iov_len > most)
			iov[c.msg_iovlen].iov_len = most;
		most -= iov[c.msg_iovlen].iov_len;
	}
	return c;
}

/* How many bytes of it are moved this time; false: all. */
static bool clip(int fd, const struct msghdr *m, int flags, size_t *most)
{
	size_t n = 0;

	if (!own(fd) || m->msg_iovlen > IOVS)
		return false;
	for (size_t i = 0; i < m->msg_iovlen; i++)
		n += m->msg_iov[i].iov_len;
	*most = shorter(fd, n, flags);
	return *most < n;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *m, int flags)
{
	struct iovec iov[IOVS];
	struct msghdr c;
	size_t most;
	ssize_t r;

	if (interrupted(fd, flags))
		return -1;
	if (!clip(fd, m, flags, &most))
		return NEXT(recvmsg)(fd, m, flags);
	c = clipped(m, most, iov);
	r = NEXT(recvmsg)(fd, &c, flags);
	m->msg_namelen = c.msg_namelen;
	m->msg_controllen = c.msg_controllen;
	m->msg_flags = c.msg_flags;
	return r;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	struct iovec iov[IOVS];
	struct msghdr c;
	size_t most;

	if (interrupted(fd, flags))
		return -1;
	/* Descriptors on their way have a limit too. The program's own messages come by way of libvkrdma.so. */
	if (m->msg_controllen && flags == (MSG_NOSIGNAL | MSG_DONTWAIT) && MAKES(true)) {
		errno = ETOOMANYREFS;
		return -1;
	}
	if (!clip(fd, m, flags, &most))
		return NEXT(sendmsg)(fd, m, flags);
	c = clipped(m, most, iov);
	return NEXT(sendmsg)(fd, &c, flags);
}

/* ------------------------------------------------------------------ what is wanted */

/* KIND=N or KIND@N; false: not understood. */
static bool parse_word(const char *w, size_t n)
{
	for (size_t k = 0; k < VKR_TROUBLE_N; k++) {
		size_t len = strlen(kinds[k]);

		if (n <= len + 1 || strncmp(w, kinds[k], len))
			continue;
		if (w[len] == '=')
			return (t.one_of[k] = strtoul(w + len + 1, NULL, 10)) > 0;
		if (w[len] == '@')
			return (t.nth[k] = strtoul(w + len + 1, NULL, 10)) > 0;
	}
	return false;
}

__attribute__((constructor)) static void construct(void)
{
	const char *what = getenv("VKR_TROUBLE"), *seed = getenv("VKR_TROUBLE_SEED"),
		   *file = getenv("VKR_TROUBLE_COUNTS");
	const char *first = getenv("VKR_TROUBLE_FIRST");
	void *map = MAP_FAILED;
	int fd;

	if (!what)
		return;
	for (const char *w = what; *w;) {
		size_t n = strcspn(w, ",");

		if (!parse_word(w, n)) {
			static const char text[] = "libvkr-trouble: VKR_TROUBLE is not understood\n";

			if (NEXT(write)(2, text, sizeof(text) - 1) < 0)
				abort();
			abort();
		}
		w += n + (w[n] == ',');
	}
	fd = file ? open(file, O_RDWR | O_CLOEXEC) : -1;
	if (fd >= 0)
		map = NEXT(mmap)(NULL, sizeof(*t.counts), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		NEXT(close)(fd);
	t.counts = map == MAP_FAILED ? NULL : map;
	t.first = first ? atoi(first) : 4096;
	t.seed = seed ? strtoull(seed, NULL, 10) : 1;
	t.on = true;
}

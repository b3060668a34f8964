/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Built with -O2 -D_FORTIFY_SOURCE=2, so that it imports __read_chk and its like. Without an argument everything fits
 * and bytes move; with one, that call overflows its buffer and must end in SIGABRT.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static char small[8];
static struct pollfd fds[2];

#ifdef __clang__ /* it does not see the sizes through libc's inline functions */
ssize_t __read_chk(int fd, void *buf, size_t n, size_t size);
ssize_t __recv_chk(int fd, void *buf, size_t n, size_t size, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len);
int __poll_chk(struct pollfd *p, nfds_t n, int timeout, size_t size);
int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);
#define read(fd, buf, n)                     __read_chk(fd, buf, n, sizeof(buf))
#define recv(fd, buf, n, flags)              __recv_chk(fd, buf, n, sizeof(buf), flags)
#define recvfrom(fd, buf, n, flags, sa, len) __recvfrom_chk(fd, buf, n, sizeof(buf), flags, sa, len)
#define poll(p, n, timeout)                  __poll_chk(p, n, timeout, sizeof(p))
#define ppoll(p, n, timeout, mask)           __ppoll_chk(p, n, timeout, mask, sizeof(p))
#endif

static int overflow(const char *name, int fd, size_t n)
{
	struct timespec now = {0, 0};

	if (!strcmp(name, "read"))
		return read(fd, small, n) > 0;
	if (!strcmp(name, "recv"))
		return recv(fd, small, n, 0) > 0;
	if (!strcmp(name, "recvfrom"))
		return recvfrom(fd, small, n, 0, NULL, NULL) > 0;
	if (!strcmp(name, "poll"))
		return poll(fds, n, 0) > 0;
	if (!strcmp(name, "ppoll"))
		return ppoll(fds, n, &now, NULL) > 0;
	return 2;
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"read", "recv", "recvfrom", "poll", "ppoll"};
	volatile size_t fits = 2;
	int sv[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) || write(sv[1], "0123456789", 10) != 10)
		return 3;
	fds[0] = (struct pollfd){.fd = sv[0], .events = POLLIN};
	fds[1].fd = -1;
	if (argc > 1)
		return overflow(argv[1], sv[0], fits * 50);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (overflow(names[i], sv[0], fits) != 1) {
			fprintf(stderr, "%s failed\n", names[i]);
			return 1;
		}
	}
	return 0;
}

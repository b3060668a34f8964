/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Every way to read and to write a socket, as functions of one shape, so that a test can try a behaviour on all of
 * them. Each makes exactly one call on fd; the vector calls split the buffer. Result as the call's: bytes, or -1 and
 * errno.
 */
#ifndef VKR_CONF_IO_H
#define VKR_CONF_IO_H

#include "conf.h"

struct conf_reader {
	const char *name;
	ssize_t (*fn)(int fd, void *buf, size_t n);
};

struct conf_writer {
	const char *name;
	ssize_t (*fn)(int fd, const void *buf, size_t n);
	bool can_fault; /* takes a user pointer, so EFAULT can be had */
};

extern const struct conf_reader conf_readers[];
extern const size_t conf_n_readers;
extern const struct conf_writer conf_writers[];
extern const size_t conf_n_writers;

/* The fortified entries of glibc, as a program built with _FORTIFY_SOURCE calls them. */
ssize_t __read_chk(int fd, void *buf, size_t n, size_t buflen);
ssize_t __recv_chk(int fd, void *buf, size_t n, size_t buflen, int flags);
ssize_t __recvfrom_chk(int fd, void *buf, size_t n, size_t buflen, int flags, struct sockaddr *sa, socklen_t *len);
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t fdslen);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t fdslen);

#endif

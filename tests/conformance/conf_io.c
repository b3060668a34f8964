/* SPDX-License-Identifier: BSD-2-Clause */
#include "conf_io.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

/* Two halves, so that the vectors are not trivial. */
static void split(struct iovec iov[2], const void *buf, size_t n)
{
	iov[0].iov_base = (void *)buf;
	iov[0].iov_len = n / 2;
	iov[1].iov_base = (char *)buf + n / 2;
	iov[1].iov_len = n - n / 2;
}

static ssize_t r_read(int fd, void *buf, size_t n)
{
	return read(fd, buf, n);
}

static ssize_t r_readv(int fd, void *buf, size_t n)
{
	struct iovec iov[2];

	split(iov, buf, n);
	return readv(fd, iov, 2);
}

static ssize_t r_recv(int fd, void *buf, size_t n)
{
	return recv(fd, buf, n, 0);
}

static ssize_t r_recvfrom(int fd, void *buf, size_t n)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);

	return recvfrom(fd, buf, n, 0, (struct sockaddr *)&ss, &len);
}

static ssize_t r_recvmsg(int fd, void *buf, size_t n)
{
	struct iovec iov[2];
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

	split(iov, buf, n);
	return recvmsg(fd, &m, 0);
}

static ssize_t r_recvmmsg(int fd, void *buf, size_t n)
{
	struct iovec iov[2];
	struct mmsghdr v = {.msg_hdr = {.msg_iov = iov, .msg_iovlen = 2}};
	int k;

	split(iov, buf, n);
	k = recvmmsg(fd, &v, 1, 0, NULL);
	return k == 1 ? (ssize_t)v.msg_len : k;
}

static ssize_t r_preadv2(int fd, void *buf, size_t n)
{
	struct iovec iov[2];

	split(iov, buf, n);
	return preadv2(fd, iov, 2, -1, 0);
}

static ssize_t r_read_chk(int fd, void *buf, size_t n)
{
	return __read_chk(fd, buf, n, n);
}

static ssize_t r_recv_chk(int fd, void *buf, size_t n)
{
	return __recv_chk(fd, buf, n, n, 0);
}

static ssize_t r_recvfrom_chk(int fd, void *buf, size_t n)
{
	return __recvfrom_chk(fd, buf, n, n, 0, NULL, NULL);
}

static ssize_t r_syscall_read(int fd, void *buf, size_t n)
{
	return syscall(SYS_read, fd, buf, n);
}

static ssize_t r_syscall_recvfrom(int fd, void *buf, size_t n)
{
	return syscall(SYS_recvfrom, fd, buf, n, 0, NULL, NULL);
}

const struct conf_reader conf_readers[] = {
    {"read", r_read},
    {"readv", r_readv},
    {"recv", r_recv},
    {"recvfrom", r_recvfrom},
    {"recvmsg", r_recvmsg},
    {"recvmmsg", r_recvmmsg},
    {"preadv2", r_preadv2},
    {"__read_chk", r_read_chk},
    {"__recv_chk", r_recv_chk},
    {"__recvfrom_chk", r_recvfrom_chk},
    {"syscall(SYS_read)", r_syscall_read},
    {"syscall(SYS_recvfrom)", r_syscall_recvfrom},
};
const size_t conf_n_readers = CONF_ARRAY_SIZE(conf_readers);

static ssize_t w_write(int fd, const void *buf, size_t n)
{
	return write(fd, buf, n);
}

static ssize_t w_writev(int fd, const void *buf, size_t n)
{
	struct iovec iov[2];

	split(iov, buf, n);
	return writev(fd, iov, 2);
}

static ssize_t w_send(int fd, const void *buf, size_t n)
{
	return send(fd, buf, n, 0);
}

static ssize_t w_sendto(int fd, const void *buf, size_t n)
{
	return sendto(fd, buf, n, 0, NULL, 0);
}

static ssize_t w_sendmsg(int fd, const void *buf, size_t n)
{
	struct iovec iov[2];
	struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};

	split(iov, buf, n);
	return sendmsg(fd, &m, 0);
}

static ssize_t w_sendmmsg(int fd, const void *buf, size_t n)
{
	struct iovec iov[2];
	struct mmsghdr v = {.msg_hdr = {.msg_iov = iov, .msg_iovlen = 2}};
	int k;

	split(iov, buf, n);
	k = sendmmsg(fd, &v, 1, 0);
	return k == 1 ? (ssize_t)v.msg_len : k;
}

static ssize_t w_pwritev2(int fd, const void *buf, size_t n)
{
	struct iovec iov[2];

	split(iov, buf, n);
	return pwritev2(fd, iov, 2, -1, 0);
}

static ssize_t from_file(int fd, const void *buf, size_t n, bool raw)
{
	int mem = memfd_create("conf", 0), e;
	off_t at = 0;
	ssize_t k;

	if (mem < 0 || write(mem, buf, n) != (ssize_t)n)
		conf_fail(CONF_WHERE, "memfd: %m");
	k = raw ? syscall(SYS_sendfile, fd, mem, &at, n) : sendfile(fd, mem, &at, n);
	e = errno;
	close(mem);
	errno = e;
	return k;
}

static ssize_t w_sendfile(int fd, const void *buf, size_t n)
{
	return from_file(fd, buf, n, false);
}

static ssize_t w_syscall_sendfile(int fd, const void *buf, size_t n)
{
	return from_file(fd, buf, n, true);
}

static ssize_t w_syscall_write(int fd, const void *buf, size_t n)
{
	return syscall(SYS_write, fd, buf, n);
}

static ssize_t w_syscall_sendto(int fd, const void *buf, size_t n)
{
	return syscall(SYS_sendto, fd, buf, n, 0, NULL, 0);
}

const struct conf_writer conf_writers[] = {
    {"write", w_write, true},
    {"writev", w_writev, true},
    {"send", w_send, true},
    {"sendto", w_sendto, true},
    {"sendmsg", w_sendmsg, true},
    {"sendmmsg", w_sendmmsg, true},
    {"pwritev2", w_pwritev2, true},
    {"sendfile", w_sendfile, false},
    {"syscall(SYS_write)", w_syscall_write, true},
    {"syscall(SYS_sendto)", w_syscall_sendto, true},
    {"syscall(SYS_sendfile)", w_syscall_sendfile, false},
};
const size_t conf_n_writers = CONF_ARRAY_SIZE(conf_writers);

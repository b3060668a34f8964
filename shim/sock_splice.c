/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * sendfile() and splice() with a carried socket at one end. No page changes hands: the bytes are copied, and what the
 * other end does not take stays where it was.
 */
#include "epset.h"
#include "libc_real.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK 16384

/*
 * The file's position moves by what was sent, so each chunk is read at an explicit offset: bytes that do not go are not
 * lost. The kernel accepts only files that it can map here (EINVAL otherwise).
 */
ssize_t vkr_sock_sendfile(int out, int in, off_t *offset, size_t n)
{
	char chunk[CHUNK];
	off_t at = offset ? *offset : lseek(in, 0, SEEK_CUR);
	size_t done = 0;
	ssize_t got, sent;
	struct stat st;
	int r;
	struct vkr_sock *s = vkr_carried_get(out, &r);

	if (!s)
		return r == VKR_PAIRED ? VKR_PASS : r;
	vkr_sock_put(s);
	if (fstat(in, &st) < 0)
		return -errno;
	if (at < 0 || !(S_ISREG(st.st_mode) || S_ISBLK(st.st_mode)))
		return -EINVAL;
	n = vkr_min(n, (size_t)0x7ffff000);
	while (done < n) {
		got = pread(in, chunk, vkr_min(sizeof(chunk), n - done), at);
		if (got <= 0) {
			if (got < 0 && !done)
				return -errno;
			break;
		}
		sent = vkr_sock_send(out, chunk, (size_t)got, 0);
		if (sent < 0 && !done)
			return sent;
		if (sent <= 0)
			break;
		done += (size_t)sent;
		at += sent;
		if (sent < got)
			break;
	}
	if (offset)
		*offset = at;
	else
		lseek(in, at, SEEK_SET);
	return (ssize_t)done;
}

/* ------------------------------------------------------------------ splice */

static bool is_pipe(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

static bool nonblocking(int fd, unsigned flags)
{
	return flags & SPLICE_F_NONBLOCK || vkr_real.fcntl(fd, F_GETFL) & O_NONBLOCK;
}

/* 0 once the pipe has bytes, an end, or room; -EAGAIN, -EINTR. */
static int pipe_wait(int pipe, short events, bool dont_wait)
{
	struct pollfd p = {.fd = pipe, .events = events};
	int r = dont_wait ? vkr_poll_now(&p, 1) : vkr_real.poll(&p, 1, -1);

	return r < 0 ? -errno : r ? 0 : -EAGAIN;
}

/* A page at a time, which goes whole into a pipe that has room at all. The stream is looked at first and read once the
 * bytes are in. */
static ssize_t to_pipe(int fd, int pipe, size_t n, unsigned flags)
{
	int dont_wait = nonblocking(pipe, flags);
	char page[PIPE_BUF];
	size_t done = 0;
	ssize_t got, put;
	int r;

	do {
		got = vkr_sock_recv(fd, page, vkr_min(sizeof(page), n - done), MSG_PEEK | (done ? MSG_DONTWAIT : 0));
		if (got <= 0)
			return done ? (ssize_t)done : got;
		r = pipe_wait(pipe, POLLOUT, dont_wait || done);
		if (r < 0)
			return done ? (ssize_t)done : r;
		put = vkr_real.write(pipe, page, (size_t)got); /* EPIPE comes with its signal, as from splice() */
		if (put <= 0)
			return done ? (ssize_t)done : put < 0 ? -errno : 0;
		vkr_sock_recv(fd, page, (size_t)put, MSG_DONTWAIT);
		done += (size_t)put;
	} while (done < n);
	return (ssize_t)done;
}

/* tee() shows the bytes without taking them. */
static ssize_t from_pipe(int fd, int pipe, size_t n, unsigned flags)
{
	char chunk[CHUNK];
	ssize_t got, sent = 0, k;
	int look[2], r;

	r = pipe_wait(pipe, POLLIN, nonblocking(pipe, flags));
	if (r < 0)
		return r;
	if (pipe2(look, O_CLOEXEC) < 0)
		return -errno;
	got = tee(pipe, look[1], vkr_min(n, sizeof(chunk)), SPLICE_F_NONBLOCK);
	got = got < 0 ? -errno : got ? vkr_real.read(look[0], chunk, (size_t)got) : 0;
	vkr_real.close(look[0]);
	vkr_real.close(look[1]);
	if (got <= 0)
		return got;
	sent = vkr_sock_send(fd, chunk, (size_t)got, flags & SPLICE_F_NONBLOCK ? MSG_DONTWAIT : 0);
	for (got = 0; got < sent; got += k) {
		k = vkr_real.read(pipe, chunk, (size_t)(sent - got));
		if (k <= 0)
			break;
	}
	return sent;
}

ssize_t vkr_sock_splice(int in, loff_t *in_off, int out, loff_t *out_off, size_t n, unsigned flags)
{
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *a = vkr_sock_get(in);
	VKR_CLEANUP(vkr_sock_putp) struct vkr_sock *b = vkr_sock_get(out);
	bool from, to;

	if (a)
		vkr_pair_heir(&a->file, in);
	if (b)
		vkr_pair_heir(&b->file, out);
	from = a && vkr_sock_settle(a) == VKR_SOCK_CARRIED;
	to = b && vkr_sock_settle(b) == VKR_SOCK_CARRIED;
	if (!from && !to)
		return VKR_PASS;
	if (flags & ~(unsigned)(SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT))
		return -EINVAL;
	if (!n)
		return 0;
	if (!is_pipe(from ? out : in))
		return -EINVAL;
	if (from ? out_off : in_off)
		return -ESPIPE;
	if (from ? in_off : out_off)
		return -EINVAL;
	n = vkr_min(n, (size_t)0x7ffff000);
	return from ? to_pipe(in, out, n, flags) : from_pipe(out, in, n, flags);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Bytes in and out. */
#include "intercept.h"

VKR_FD_CALL(ssize_t, read, (int fd, void *buf, size_t n), (fd, buf, n));
VKR_NAME(__read, vkr_call_read);
VKR_FD_CALL(ssize_t, readv, (int fd, const struct iovec *iov, int cnt), (fd, iov, cnt));
VKR_FD_CALL(ssize_t, recv, (int fd, void *buf, size_t n, int flags), (fd, buf, n, flags));
VKR_FD_CALL(ssize_t, recvfrom, (int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len),
	    (fd, buf, n, flags, sa, len));
VKR_FD_CALL(ssize_t, write, (int fd, const void *buf, size_t n), (fd, buf, n));
VKR_NAME(__write, vkr_call_write);
VKR_FD_CALL(ssize_t, writev, (int fd, const struct iovec *iov, int cnt), (fd, iov, cnt));
VKR_FD_CALL(ssize_t, send, (int fd, const void *buf, size_t n, int flags), (fd, buf, n, flags));
VKR_NAME(__send, vkr_call_send);
VKR_FD_CALL(ssize_t, sendto, (int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len),
	    (fd, buf, n, flags, sa, len));

/* ------------------------------------------------------------------ messages: they may carry descriptors */

static VKR_INLINE ssize_t recvmsg_real(int fd, struct msghdr *m, int flags)
{
	ssize_t ret = vkr_real.recvmsg(fd, m, flags);

	if (ret >= 0 && vkr_unlikely(m->msg_controllen))
		vkr_note_rights_in(m);
	return ret;
}

VKR_ACTIVE ssize_t active_recvmsg(int fd, struct msghdr *m, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.recvmsg(fd, m, flags);
	VKR_ROUTE(vkr_sock_recvmsg(fd, m, flags), recvmsg_real(fd, m, flags));
}
VKR_ENTRY_OTHER(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), vkr_fd_tracked(fd),
		recvmsg_real(fd, m, flags));

static int recvmmsg_real(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout)
{
	int ret = vkr_real.recvmmsg(fd, v, n, flags, timeout);

	for (int i = 0; i < ret; i++)
		vkr_note_rights_in(&v[i].msg_hdr);
	return ret;
}

VKR_ACTIVE int active_recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.recvmmsg(fd, v, n, flags, timeout);
	if (!vkr_fd_tracked(fd))
		return recvmmsg_real(fd, v, n, flags, timeout);
	VKR_ROUTE(vkr_sock_recvmmsg(fd, v, n, flags, timeout), recvmmsg_real(fd, v, n, flags, timeout));
}
VKR_ENTRY(int, recvmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *timeout),
	  (fd, v, n, flags, timeout));

static VKR_INLINE ssize_t sendmsg_real(int fd, const struct msghdr *m, int flags)
{
	if (vkr_bad_pointer(m, sizeof(*m)) || vkr_unlikely(m->msg_controllen))
		vkr_note_rights_out(m);
	return vkr_real.sendmsg(fd, m, flags);
}

VKR_ACTIVE ssize_t active_sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.sendmsg(fd, m, flags);
	VKR_ROUTE(vkr_sock_sendmsg(fd, m, flags), sendmsg_real(fd, m, flags));
}
VKR_ENTRY_OTHER(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags), vkr_fd_tracked(fd),
		sendmsg_real(fd, m, flags));

static int sendmmsg_real(int fd, struct mmsghdr *v, unsigned n, int flags)
{
	for (unsigned i = 0; i < n && !vkr_bad_pointer(v, n * sizeof(*v)); i++)
		vkr_note_rights_out(&v[i].msg_hdr);
	return vkr_real.sendmmsg(fd, v, n, flags);
}

VKR_ACTIVE int active_sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.sendmmsg(fd, v, n, flags);
	if (!vkr_fd_tracked(fd))
		return sendmmsg_real(fd, v, n, flags);
	VKR_ROUTE(vkr_sock_sendmmsg(fd, v, n, flags), sendmmsg_real(fd, v, n, flags));
}
VKR_ENTRY(int, sendmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags), (fd, v, n, flags));

/* ------------------------------------------------------------------ file to socket, pipe to socket */

VKR_ACTIVE ssize_t active_sendfile(int out, int in, off_t *offset, size_t n)
{
	if (vkr_likely(!vkr_tracked(out)))
		return vkr_real.sendfile(out, in, offset, n);
	VKR_ROUTE(vkr_sock_sendfile(out, in, offset, n), vkr_real.sendfile(out, in, offset, n));
}
VKR_ENTRY(ssize_t, sendfile, (int out, int in, off_t *offset, size_t n), (out, in, offset, n));
VKR_NAME(sendfile64, vkr_call_sendfile);

VKR_ACTIVE ssize_t active_splice(int in, off_t *in_off, int out, off_t *out_off, size_t n, unsigned flags)
{
	if (vkr_likely(!vkr_tracked(in) && !vkr_tracked(out)))
		return vkr_real.splice(in, in_off, out, out_off, n, flags);
	VKR_ROUTE(vkr_sock_splice(in, in_off, out, out_off, n, flags),
		  vkr_real.splice(in, in_off, out, out_off, n, flags));
}
VKR_ENTRY(ssize_t, splice, (int in, off_t *in_off, int out, off_t *out_off, size_t n, unsigned flags),
	  (in, in_off, out, out_off, n, flags));

/* ------------------------------------------------------------------ positions: -1 is "as readv", all else is ESPIPE */

static int rwf_to_msg(int flags)
{
	return flags & RWF_NOWAIT ? MSG_DONTWAIT : 0;
}

/* HIPRI and the sync flags mean nothing to a socket. An unknown flag is the kernel's to refuse. */
static bool rwf_known(int flags)
{
	return !(flags & ~(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT));
}

VKR_ACTIVE ssize_t active_preadv2(int fd, const struct iovec *iov, int cnt, off_t off, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = cnt};

	if (vkr_likely(!vkr_tracked(fd)) || off != -1 || !rwf_known(flags))
		return vkr_real.preadv2(fd, iov, cnt, off, flags);
	if (!rwf_to_msg(flags))
		VKR_ROUTE(vkr_sock_readv(fd, iov, cnt), vkr_real.preadv2(fd, iov, cnt, off, flags));
	VKR_ROUTE(cnt < 0 || cnt > 1024 ? -EINVAL : vkr_sock_recvmsg(fd, &m, rwf_to_msg(flags)),
		  vkr_real.preadv2(fd, iov, cnt, off, flags));
}
VKR_ENTRY(ssize_t, preadv2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags),
	  (fd, iov, cnt, off, flags));
VKR_NAME(preadv64v2, vkr_call_preadv2);

VKR_ACTIVE ssize_t active_pwritev2(int fd, const struct iovec *iov, int cnt, off_t off, int flags)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = cnt};

	if (vkr_likely(!vkr_tracked(fd)) || off != -1 || !rwf_known(flags))
		return vkr_real.pwritev2(fd, iov, cnt, off, flags);
	if (!rwf_to_msg(flags))
		VKR_ROUTE(vkr_sock_writev(fd, iov, cnt), vkr_real.pwritev2(fd, iov, cnt, off, flags));
	VKR_ROUTE(cnt < 0 || cnt > 1024 ? -EINVAL : vkr_sock_sendmsg(fd, &m, rwf_to_msg(flags)),
		  vkr_real.pwritev2(fd, iov, cnt, off, flags));
}
VKR_ENTRY(ssize_t, pwritev2, (int fd, const struct iovec *iov, int cnt, off_t off, int flags),
	  (fd, iov, cnt, off, flags));
VKR_NAME(pwritev64v2, vkr_call_pwritev2);

/* ------------------------------------------------------------------ fortified names: libc's own reports the overflow
 */

ssize_t vkr_call_read_chk(int fd, void *buf, size_t n, size_t size)
{
	return vkr_unlikely(n > size) ? vkr_real.__read_chk(fd, buf, n, size) : vkr_call_read(fd, buf, n);
}
VKR_NAME(__read_chk, vkr_call_read_chk);

ssize_t vkr_call_recv_chk(int fd, void *buf, size_t n, size_t size, int flags)
{
	return vkr_unlikely(n > size) ? vkr_real.__recv_chk(fd, buf, n, size, flags) : vkr_call_recv(fd, buf, n, flags);
}
VKR_NAME(__recv_chk, vkr_call_recv_chk);

ssize_t vkr_call_recvfrom_chk(int fd, void *buf, size_t n, size_t size, int flags, struct sockaddr *sa, socklen_t *len)
{
	if (vkr_unlikely(n > size))
		return vkr_real.__recvfrom_chk(fd, buf, n, size, flags, sa, len);
	return vkr_call_recvfrom(fd, buf, n, flags, sa, len);
}
VKR_NAME(__recvfrom_chk, vkr_call_recvfrom_chk);

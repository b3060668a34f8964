/* SPDX-License-Identifier: BSD-2-Clause */
/* Descriptors appearing, disappearing and being renumbered. The other families are in intercept_*.c. */
#include "intercept.h"

#include <fcntl.h>
#include <unistd.h>

void vkr_note_stale(int fd)
{
	int saved = errno;

	if (vkr_on())
		vkr_fd_fresh(fd);
	errno = saved;
}

static void each_right(const struct msghdr *m, void (*fn)(int fd))
{
	struct msghdr *h = (struct msghdr *)m; /* CMSG_NXTHDR wants it so; nothing is written */

	if (!m->msg_control)
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			__builtin_memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			fn(fd);
		}
	}
}

static void passed_on(int fd)
{
	if (vkr_fd_tracked(fd))
		vkr_sock_share(fd);
}

static void received(int fd)
{
	vkr_fd_fresh(fd);
	vkr_sock_received(fd);
}

void vkr_note_rights_in(const struct msghdr *m)
{
	int saved = errno;

	if (vkr_on())
		each_right(m, received);
	errno = saved;
}

void vkr_note_rights_out(const struct msghdr *m)
{
	int saved = errno;

	if (!vkr_bad_pointer(m, sizeof(*m)) && !vkr_bad_pointer(m->msg_control, m->msg_controllen))
		each_right(m, passed_on);
	errno = saved;
}

/* A number that an application's call may not simply overwrite or close. The logic knows what a vfork child may do. */
static bool ours(int fd)
{
	return vkr_fd_tracked(fd) || vkr_guard_has(fd);
}

VKR_ACTIVE int active_close(int fd)
{
	if (!vkr_on() || !ours(fd))
		return vkr_real.close(fd);
	VKR_ROUTE(vkr_sock_close(fd), vkr_real.close(fd));
}
VKR_ENTRY_IF(int, close, (int fd), (fd), !vkr_foreign(fd));
VKR_NAME(__close, vkr_call_close);

VKR_ACTIVE int active_close_range(unsigned first, unsigned last, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.close_range(first, last, flags);
	VKR_ROUTE(vkr_sock_close_range(first, last, flags), vkr_real.close_range(first, last, flags));
}
VKR_ENTRY(int, close_range, (unsigned first, unsigned last, int flags), (first, last, flags));

void vkr_call_closefrom(int low)
{
	int saved = errno;

	if (vkr_likely(!vkr_on())) {
		vkr_real.closefrom(low);
		return;
	}
	vkr_sock_closefrom(low);
	errno = saved;
}
VKR_NAME(closefrom, vkr_call_closefrom);

VKR_ACTIVE int active_dup(int fd)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.dup(fd);
	if (!ours(fd))
		return vkr_note_fresh(vkr_real.dup(fd));
	VKR_ROUTE(vkr_sock_dup(fd, 0, false), vkr_note_fresh(vkr_real.dup(fd)));
}
VKR_ENTRY_OTHER(int, dup, (int fd), (fd), !vkr_foreign(fd), vkr_note_fresh(vkr_real.dup(fd)));

/* dup2(fd, fd) replaces nothing. */
static int note_replaced(int oldfd, int newfd)
{
	return newfd == oldfd ? newfd : vkr_note_fresh(newfd);
}

VKR_ACTIVE int active_dup2(int oldfd, int newfd)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.dup2(oldfd, newfd);
	if (!ours(oldfd) && !ours(newfd))
		return note_replaced(oldfd, vkr_real.dup2(oldfd, newfd));
	VKR_ROUTE(vkr_sock_dup2(oldfd, newfd, 0, false), note_replaced(oldfd, vkr_real.dup2(oldfd, newfd)));
}
VKR_ENTRY(int, dup2, (int oldfd, int newfd), (oldfd, newfd));
VKR_NAME(__dup2, vkr_call_dup2);

VKR_ACTIVE int active_dup3(int oldfd, int newfd, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.dup3(oldfd, newfd, flags);
	if (!ours(oldfd) && !ours(newfd))
		return vkr_note_fresh(vkr_real.dup3(oldfd, newfd, flags));
	VKR_ROUTE(vkr_sock_dup2(oldfd, newfd, flags, true), vkr_note_fresh(vkr_real.dup3(oldfd, newfd, flags)));
}
VKR_ENTRY(int, dup3, (int oldfd, int newfd, int flags), (oldfd, newfd, flags));

static int fcntl_real(int fd, int cmd, void *arg)
{
	int ret = vkr_real.fcntl(fd, cmd, arg);

	return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? vkr_note_fresh(ret) : ret;
}

/* Variadic in the header only: an int or a pointer travels in the same register. */
VKR_ACTIVE int active_fcntl(int fd, int cmd, void *arg)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.fcntl(fd, cmd, arg);
	if (!vkr_fd_tracked(fd))
		return fcntl_real(fd, cmd, arg);
	VKR_ROUTE(vkr_sock_fcntl(fd, cmd, arg), fcntl_real(fd, cmd, arg));
}
VKR_ENTRY_IF(int, fcntl, (int fd, int cmd, void *arg), (fd, cmd, arg),
	     !vkr_foreign(fd) || (unsigned)cmd - 1 >= F_DUPFD_CLOEXEC - 1); /* F_DUPFD is 0; those above are rare */
VKR_NAME(fcntl64, vkr_call_fcntl);
VKR_NAME(__fcntl, vkr_call_fcntl);

VKR_FD_CALL(int, ioctl, (int fd, unsigned long request, void *arg), (fd, request, arg));

/* ------------------------------------------------------------------ stdio, which closes past interposition */

/*
 * Takes a tracked number out of our hands before stdio closes it: what stdio holds is sent, and /dev/null stands in its
 * place until then. Closing ours first instead would let another thread's socket have the number.
 */
static void hand_over(FILE *f)
{
	int saved = errno, fd = vkr_on() ? fileno(f) : -1, null;

	if (fd >= 0 && vkr_fd_tracked(fd) && !vkr_vforked()) {
		fflush(f);
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null >= 0) {
			vkr_call_dup3(null, fd, O_CLOEXEC);
			vkr_real.close(null);
		}
	}
	errno = saved;
}

int vkr_call_fclose(FILE *f)
{
	if (vkr_unlikely(vkr_load(&vkr_active)))
		hand_over(f);
	return vkr_real.fclose(f);
}
VKR_NAME(fclose, vkr_call_fclose);

FILE *vkr_call_fdopen(int fd, const char *mode)
{
	if (vkr_tracked(fd))
		vkr_sock_share(fd);
	return vkr_real.fdopen(fd, mode);
}
VKR_NAME(fdopen, vkr_call_fdopen);

static int call_vdprintf(int fd, const char *format, va_list ap)
{
	if (vkr_tracked(fd))
		vkr_sock_share(fd);
	return vkr_real.vdprintf(fd, format, ap);
}
VKR_NAME(vdprintf, call_vdprintf);

static int call_vdprintf_chk(int fd, int flag, const char *format, va_list ap)
{
	if (vkr_tracked(fd))
		vkr_sock_share(fd);
	return vkr_real.__vdprintf_chk(fd, flag, format, ap);
}
VKR_NAME(__vdprintf_chk, call_vdprintf_chk);

static int call_dprintf(int fd, const char *format, ...)
{
	va_list ap;
	int ret;

	va_start(ap, format);
	ret = call_vdprintf(fd, format, ap);
	va_end(ap);
	return ret;
}
VKR_NAME(dprintf, call_dprintf);

static int call_dprintf_chk(int fd, int flag, const char *format, ...)
{
	va_list ap;
	int ret;

	va_start(ap, format);
	ret = call_vdprintf_chk(fd, flag, format, ap);
	va_end(ap);
	return ret;
}
VKR_NAME(__dprintf_chk, call_dprintf_chk);

FILE *vkr_call_freopen(const char *path, const char *mode, FILE *f)
{
	if (vkr_unlikely(vkr_load(&vkr_active)) && path)
		hand_over(f);
	return vkr_real.freopen(path, mode, f);
}
VKR_NAME(freopen, vkr_call_freopen);

FILE *vkr_call_freopen64(const char *path, const char *mode, FILE *f)
{
	if (vkr_unlikely(vkr_load(&vkr_active)) && path)
		hand_over(f);
	return vkr_real.freopen64(path, mode, f);
}
VKR_NAME(freopen64, vkr_call_freopen64);

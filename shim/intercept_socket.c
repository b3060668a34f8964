/* SPDX-License-Identifier: BSD-2-Clause */
/* Sockets: made, connected, configured. */
#include "intercept.h"

int vkr_call_socket(int domain, int type, int protocol)
{
	int fd, saved;

	vkr_init(); /* another library's constructor may come before ours */
	fd = vkr_real.socket(domain, type, protocol);
	if (vkr_likely(!vkr_on()) || fd < 0 || vkr_vforked())
		return fd;
	saved = errno;
	vkr_process_prepare();
	vkr_fd_socket(fd, domain, type, protocol);
	errno = saved;
	return fd;
}
VKR_NAME(socket, vkr_call_socket);

int vkr_call_socketpair(int domain, int type, int protocol, int sv[2])
{
	int ret = vkr_real.socketpair(domain, type, protocol, sv);

	if (ret == 0 && vkr_on()) {
		vkr_note_fresh(sv[0]);
		vkr_note_fresh(sv[1]);
	}
	return ret;
}
VKR_NAME(socketpair, vkr_call_socketpair);

VKR_FD_CALL(int, bind, (int fd, const struct sockaddr *sa, socklen_t len), (fd, sa, len));
VKR_FD_CALL(int, listen, (int fd, int backlog), (fd, backlog));
VKR_FD_CALL(int, connect, (int fd, const struct sockaddr *sa, socklen_t len), (fd, sa, len));
VKR_NAME(__connect, vkr_call_connect);
VKR_FD_CALL(int, getsockname, (int fd, struct sockaddr *sa, socklen_t *len), (fd, sa, len));
VKR_FD_CALL(int, getpeername, (int fd, struct sockaddr *sa, socklen_t *len), (fd, sa, len));
VKR_FD_CALL(int, getsockopt, (int fd, int level, int name, void *val, socklen_t *len), (fd, level, name, val, len));
VKR_FD_CALL(int, setsockopt, (int fd, int level, int name, const void *val, socklen_t len),
	    (fd, level, name, val, len));
VKR_FD_CALL(int, shutdown, (int fd, int how), (fd, how));
VKR_FD_CALL(int, sockatmark, (int fd), (fd));

VKR_ACTIVE int active_accept(int fd, struct sockaddr *sa, socklen_t *len)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.accept(fd, sa, len);
	VKR_ROUTE(vkr_sock_accept4(fd, sa, len, 0), vkr_note_fresh(vkr_real.accept(fd, sa, len)));
}
VKR_ENTRY_OTHER(int, accept, (int fd, struct sockaddr *sa, socklen_t *len), (fd, sa, len), vkr_fd_tracked(fd),
		vkr_note_fresh(vkr_real.accept(fd, sa, len)));

VKR_ACTIVE int active_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	if (vkr_likely(!vkr_on()))
		return vkr_real.accept4(fd, sa, len, flags);
	VKR_ROUTE(vkr_sock_accept4(fd, sa, len, flags), vkr_note_fresh(vkr_real.accept4(fd, sa, len, flags)));
}
VKR_ENTRY_OTHER(int, accept4, (int fd, struct sockaddr *sa, socklen_t *len, int flags), (fd, sa, len, flags),
		vkr_fd_tracked(fd), vkr_note_fresh(vkr_real.accept4(fd, sa, len, flags)));

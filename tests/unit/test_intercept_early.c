/* SPDX-License-Identifier: BSD-2-Clause */
/* A preloaded library that uses sockets in its constructor, which may run before libvkrdma's own. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEED(cond)                                                                                                     \
	do {                                                                                                           \
		if (!(cond)) {                                                                                         \
			fprintf(stderr, "constructor: %s failed, errno %d\n", #cond, errno);                           \
			_exit(9);                                                                                      \
		}                                                                                                      \
	} while (0)

static void on_signal(int sig)
{
	(void)sig;
}

static void talk(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sa);
	int ls = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0), s, ep = epoll_create1(0);
	struct epoll_event ev = {.events = EPOLLIN};
	struct pollfd pfd;
	char buf[4];

	NEED(bind(ls, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(ls, 1) == 0);
	NEED(getsockname(ls, (struct sockaddr *)&sa, &len) == 0);
	NEED(epoll_ctl(ep, EPOLL_CTL_ADD, ls, &ev) == 0);
	NEED(connect(c, (struct sockaddr *)&sa, sizeof(sa)) == 0);
	NEED(epoll_wait(ep, &ev, 1, 5000) == 1);
	s = accept(ls, NULL, NULL);
	pfd = (struct pollfd){.fd = s, .events = POLLIN};
	NEED(s >= 0 && send(c, "abc", 3, MSG_NOSIGNAL) == 3);
	NEED(poll(&pfd, 1, 5000) == 1 && recv(s, buf, 4, 0) == 3);
	NEED(close(c) == 0 && recv(s, buf, 4, 0) == 0);
	NEED(close(s) == 0 && close(ls) == 0 && syscall(SYS_close, ep) == 0);
}

__attribute__((constructor)) static void construct(void)
{
	struct rlimit l;
	int status;
	pid_t pid;

	talk();
	NEED(signal(SIGUSR2, on_signal) == SIG_DFL && signal(SIGUSR2, SIG_DFL) == on_signal);
	NEED(getrlimit(RLIMIT_NOFILE, &l) == 0 && sysconf(_SC_OPEN_MAX) == (long)l.rlim_cur);
	pid = fork();
	if (pid == 0) {
		talk();
		_exit(6);
	}
	NEED(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 6);
	pid = vfork();
	if (pid == 0)
		_exit(7);
	NEED(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the preloaded library adds to calls on descriptors that no rule names: counted instruction by instruction
 * (PTRACE_SINGLESTEP), in three kinds of process: without a rule, with a rule for another port, and beside a listener
 * that is flagged. A call that costs more than its line in `calls` says is a failure.
 *
 *	test_unflagged_cost LIBRARY
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHARED_FD 99

/* ------------------------------------------------------------------ the calls */

static int in, out; /* a TCP connection, two ends, something to read at `in` */
static int listener, ep, spare, dialled;
static struct sockaddr_in name;
static char byte;

static void ready(void)
{
	char more = 0;

	if (recv(in, &more, 1, MSG_PEEK | MSG_DONTWAIT) != 1 && write(out, &more, 1) != 1)
		_exit(3);
	while (recv(in, &more, 1, MSG_PEEK) != 1)
		;
}

static struct iovec iov = {&byte, 1};
static struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
static struct epoll_event events[4];
static struct pollfd polled[8];
static const struct timespec zero;

static int do_read(void)
{
	return read(in, &byte, 1) == 1;
}

static int do_write(void)
{
	return write(out, &byte, 1) == 1;
}

static int do_readv(void)
{
	return readv(in, &iov, 1) == 1;
}

static int do_writev(void)
{
	return writev(out, &iov, 1) == 1;
}

static int do_recv(void)
{
	return recv(in, &byte, 1, 0) == 1;
}

static int do_send(void)
{
	return send(out, &byte, 1, MSG_NOSIGNAL) == 1;
}

static int do_recvmsg(void)
{
	return recvmsg(in, &msg, 0) == 1;
}

static int do_sendmsg(void)
{
	return sendmsg(out, &msg, 0) == 1;
}

static int do_epoll_wait(void)
{
	return epoll_wait(ep, events, 4, -1) == 1;
}

static int do_epoll_pwait(void)
{
	return epoll_pwait(ep, events, 4, 1000, NULL) == 1;
}

static int do_epoll_pwait2(void)
{
	return epoll_pwait2(ep, events, 4, NULL, NULL) == 1 || errno == ENOSYS;
}

static int do_epoll_mod(void)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = in};

	return epoll_ctl(ep, EPOLL_CTL_MOD, in, &ev) == 0;
}

static int do_epoll_add(void)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.fd = out};

	return epoll_ctl(ep, EPOLL_CTL_ADD, out, &ev) == 0;
}

static int do_epoll_del(void)
{
	return epoll_ctl(ep, EPOLL_CTL_DEL, out, NULL) == 0;
}

static int poll_of(nfds_t n)
{
	nfds_t i;

	for (i = 0; i < n; i++)
		polled[i] = (struct pollfd){.fd = i ? out : in, .events = POLLIN};
	return poll(polled, n, 1000) == 1;
}

static int do_poll_1(void)
{
	return poll_of(1);
}

static int do_poll_8(void)
{
	return poll_of(8);
}

static int do_ppoll_1(void)
{
	polled[0] = (struct pollfd){.fd = in, .events = POLLIN};
	return ppoll(polled, 1, &zero, NULL) == 1;
}

static int select_of(int width, bool p)
{
	struct timeval tv = {0, 0};
	fd_set r;

	FD_ZERO(&r);
	FD_SET(in, &r);
	return (p ? pselect(width, &r, NULL, NULL, &zero, NULL) : select(width, &r, NULL, NULL, &tv)) == 1;
}

static int do_select(void)
{
	return select_of(in + 1, false);
}

static int do_select_1024(void)
{
	return select_of(1024, false);
}

static int do_pselect(void)
{
	return select_of(in + 1, true);
}

static int do_fcntl(void)
{
	return fcntl(in, F_GETFL) >= 0;
}

static int do_ioctl(void)
{
	int n;

	return ioctl(in, FIONREAD, &n) == 0;
}

static int do_getsockopt(void)
{
	int v;
	socklen_t len = sizeof(v);

	return getsockopt(in, SOL_SOCKET, SO_ERROR, &v, &len) == 0;
}

static int do_setsockopt(void)
{
	int v = 1;

	return setsockopt(in, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof(v)) == 0;
}

static int do_getsockname(void)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	return getsockname(in, (struct sockaddr *)&a, &len) == 0;
}

static int do_shutdown(void)
{
	return shutdown(dialled, SHUT_WR) == 0;
}

static int do_accept(void)
{
	spare = accept(listener, NULL, NULL);
	return spare >= 0;
}

static int do_accept4(void)
{
	spare = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	return spare >= 0;
}

static int do_close(void)
{
	return close(spare) == 0;
}

static int do_socket(void)
{
	dialled = socket(AF_INET, SOCK_STREAM, 0);
	return dialled >= 0;
}

static int do_connect(void)
{
	return connect(dialled, (struct sockaddr *)&name, sizeof(name)) == 0;
}

static int do_dup(void)
{
	spare = dup(in);
	return spare >= 0;
}

static void dial(void)
{
	if (!do_socket() || !do_connect())
		_exit(3);
}

static void undial(void)
{
	close(dialled);
}

/*
 * In the kinds of process that the file's head names: instructions, at most. Fifteen, but for what is once in a
 * connection's life (a new number, and whether it is to be remembered), for messages that may carry descriptors, and
 * for polls beside something that is ours: they look at each of their descriptors.
 */
enum { NO_RULE, RULE, BESIDE, KINDS };
static const char *const kind_names[KINDS] = {"no rule", "a rule", "beside a flagged listener"};

static const struct call {
	const char *name;
	int (*run)(void);
	void (*before)(void), (*after)(void);
	unsigned limit[KINDS];
} calls[] = {
    {"read", do_read, ready, NULL, {15, 15, 15}},
    {"write", do_write, NULL, NULL, {15, 15, 15}},
    {"readv", do_readv, ready, NULL, {15, 15, 15}},
    {"writev", do_writev, NULL, NULL, {15, 15, 15}},
    {"recv", do_recv, ready, NULL, {15, 15, 15}},
    {"send", do_send, NULL, NULL, {15, 15, 15}},
    {"recvmsg", do_recvmsg, ready, NULL, {15, 25, 25}},
    {"sendmsg", do_sendmsg, NULL, NULL, {15, 28, 28}},
    {"epoll_wait", do_epoll_wait, ready, NULL, {15, 15, 15}},
    {"epoll_pwait", do_epoll_pwait, ready, NULL, {15, 15, 15}},
    {"epoll_pwait2", do_epoll_pwait2, ready, NULL, {15, 15, 15}},
    {"epoll_ctl MOD", do_epoll_mod, NULL, NULL, {15, 15, 15}},
    {"epoll_ctl ADD", do_epoll_add, NULL, NULL, {15, 15, 15}},
    {"epoll_ctl DEL", do_epoll_del, NULL, NULL, {15, 15, 15}},
    {"poll, 1 descriptor", do_poll_1, ready, NULL, {15, 15, 50}},
    {"poll, 8 descriptors", do_poll_8, ready, NULL, {15, 15, 150}},
    {"ppoll, 1 descriptor", do_ppoll_1, ready, NULL, {15, 15, 50}},
    {"select, 1 descriptor", do_select, ready, NULL, {15, 15, 120}},
    {"select, 1024 wide", do_select_1024, ready, NULL, {15, 15, 350}},
    {"pselect, 1 descriptor", do_pselect, ready, NULL, {15, 15, 120}},
    {"fcntl", do_fcntl, NULL, NULL, {15, 15, 15}},
    {"ioctl", do_ioctl, NULL, NULL, {15, 15, 15}},
    {"getsockopt", do_getsockopt, NULL, NULL, {15, 15, 15}},
    {"setsockopt", do_setsockopt, NULL, NULL, {15, 15, 15}},
    {"getsockname", do_getsockname, NULL, NULL, {15, 15, 15}},
    {"socket", do_socket, NULL, NULL, {35, 270, 270}},
    {"connect", do_connect, NULL, NULL, {15, 400, 400}},
    {"accept", do_accept, NULL, NULL, {15, 35, 35}},
    {"close", do_close, NULL, NULL, {15, 15, 15}},
    {"shutdown", do_shutdown, NULL, undial, {15, 15, 15}},
    {"accept4", do_accept4, dial, NULL, {15, 35, 35}},
    {"dup", do_dup, NULL, NULL, {15, 35, 35}},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

/* ------------------------------------------------------------------ the process that is counted */

struct shared {
	uintptr_t begin, end;  /* the library's code */
	volatile int counting; /* 1 + the call that is being made, or 0 */
	volatile int done;
};

static bool find_library(struct shared *sh)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512], perms[8];
	unsigned long long from, to;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%llx-%llx %7s", &from, &to, perms) == 3 && strstr(line, "libvkrdma.so") &&
		    perms[2] == 'x') {
			sh->begin = from;
			sh->end = to;
		}
	if (f)
		fclose(f);
	return sh->end;
}

static int make_listener(void)
{
	socklen_t len = sizeof(name);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	name = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	if (fd < 0 || bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0 || listen(fd, 16) < 0 ||
	    getsockname(fd, (struct sockaddr *)&name, &len) < 0)
		_exit(3);
	return fd;
}

/* All calls once: first for what is done once in a process, then counted. */
static void round_of_calls(struct shared *sh, bool counted)
{
	size_t i;

	for (i = 0; i < CALLS; i++) {
		if (calls[i].before)
			calls[i].before();
		if (counted)
			sh->counting = (int)i + 1;
		if (!calls[i].run()) {
			fprintf(stderr, "%s: errno %d\n", calls[i].name, errno);
			_exit(3);
		}
		sh->counting = 0;
		if (calls[i].after)
			calls[i].after();
	}
	close(spare);
}

static int counted_process(int flagged_port)
{
	struct shared *sh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
	struct epoll_event ev = {.events = EPOLLIN};
	struct sockaddr_in flagged = {.sin_family = AF_INET, .sin_port = htons((uint16_t)flagged_port)};
	int fd, i;

	if (sh == MAP_FAILED || !find_library(sh))
		return 3;
	if (flagged_port) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		flagged.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (bind(fd, (struct sockaddr *)&flagged, sizeof(flagged)) < 0 || listen(fd, 1) < 0)
			return 3;
	}
	listener = make_listener();
	dial();
	out = dialled;
	in = accept(listener, NULL, NULL);
	ep = epoll_create1(0);
	ev.data.fd = in;
	if (in < 0 || ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, in, &ev) < 0)
		return 3;
	for (i = 0; i < 2; i++)
		round_of_calls(sh, false);
	raise(SIGTRAP);
	round_of_calls(sh, true);
	sh->done = 1;
	raise(SIGTRAP);
	return 0;
}

/* ------------------------------------------------------------------ who counts */

static pid_t start(const char *self, const char *library, int kind, int port)
{
	char other[16], flagged[16];
	pid_t pid = fork();

	if (pid)
		return pid;
	snprintf(flagged, sizeof(flagged), "%d", kind == BESIDE ? port : 0);
	snprintf(other, sizeof(other), "%d", port);
	setenv("LD_PRELOAD", library, 1);
	setenv("VKRDMA_PROVIDER", "soft", 1);
	setenv("VKRDMA_LOG", "none", 1);
	if (kind != NO_RULE)
		setenv("VKRDMA_LISTEN", other, 1);
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(77);
	execl(self, self, "counted", flagged, (char *)NULL);
	_exit(3);
}

/* Steps the process from its first trap to its second. False: it ended. */
static bool count(pid_t pid, const struct shared *sh, unsigned *counts)
{
	struct user_regs_struct regs;
	bool stepping = false;
	int status, sig = 0;

	for (;;) {
		if (ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL, (void *)(intptr_t)sig) < 0 ||
		    waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
			return false;
		sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		if (sh->done)
			return true;
		stepping = stepping || (WSTOPSIG(status) == SIGTRAP && sh->end);
		if (!sh->counting)
			continue;
		if (ptrace(PTRACE_GETREGS, pid, NULL, &regs) < 0)
			return false;
		if (regs.rip >= sh->begin && regs.rip < sh->end)
			counts[sh->counting - 1]++;
	}
}

static int free_port(void)
{
	int fd = make_listener();

	close(fd);
	return ntohs(name.sin_port);
}

static int run_kind(const char *self, const char *library, int kind, unsigned *counts)
{
	int memfd = memfd_create("shared", 0), status = 0;
	struct shared *sh;
	bool ok;
	pid_t pid;

	if (memfd < 0 || ftruncate(memfd, 4096) < 0 || dup2(memfd, SHARED_FD) < 0)
		return 1;
	close(memfd);
	sh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
	if (sh == MAP_FAILED)
		return 1;
	pid = start(self, library, kind, free_port());
	if (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 77)
		return 77;
	ok = count(pid, sh, counts);
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	munmap(sh, 4096);
	close(SHARED_FD);
	if (!ok)
		printf("%s: the process did not come to its end (status %#x)\n", kind_names[kind], (unsigned)status);
	return !ok;
}

int main(int argc, char **argv)
{
	unsigned counts[KINDS][CALLS] = {{0}};
	int failed = 0, kind, r;
	size_t i;

	if (argc == 3 && !strcmp(argv[1], "counted"))
		return counted_process(atoi(argv[2]));
#ifndef __x86_64__
	printf("skipped: x86-64 only\n");
	return 77;
#endif
	for (kind = 0; kind < KINDS; kind++) {
		r = run_kind("/proc/self/exe", argv[1], kind, counts[kind]);
		if (r == 77)
			printf("skipped: no ptrace here\n");
		if (r)
			return r;
	}
	printf("%-24s%12s%12s%12s\n", "instructions added to", "no rule", "a rule", "beside");
	for (i = 0; i < CALLS; i++) {
		printf("%-24s", calls[i].name);
		for (kind = 0; kind < KINDS; kind++) {
			bool over = counts[kind][i] > calls[i].limit[kind];

			failed += over || !counts[kind][i];
			printf("%11u%s", counts[kind][i], over ? "!" : " ");
		}
		printf("\n");
	}
	if (failed)
		printf("%d failed: marked, or not seen at all\n", failed);
	return failed != 0;
}

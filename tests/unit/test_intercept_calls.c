/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The exported names behave as libc's: each case passes natively, with the library preloaded and no rule, and with a
 * rule that flags every port. test_intercept.py runs them so, each in a process of its own: argv[1] is the case, --list
 * prints the names.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utmp.h>

extern char **environ;

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* old names are the point */

static void *volatile bad_pointer = (void *)1;

/* Both values are shown: a number that differs says more than "failed". */
#define CHECK_INT(got, want)                                                                                           \
	do {                                                                                                           \
		long long got_ = (got), want_ = (want);                                                                \
                                                                                                                       \
		if (got_ != want_) {                                                                                   \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (errno %d)\n", __FILE__, __LINE__, #got, got_,    \
				want_, errno);                                                                         \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)
#define CHECK(cond) CHECK_INT(!!(cond), 1)
#define FAILS(call, error)                                                                                             \
	do {                                                                                                           \
		errno = 0;                                                                                             \
		CHECK_INT(call, -1);                                                                                   \
		CHECK_INT(errno, error);                                                                               \
	} while (0)

static void pair(int sv[2])
{
	CHECK_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
}

/* A listening TCP socket, flagged where a rule is active. */
static int listener(struct sockaddr_in *sa)
{
	socklen_t len = sizeof(*sa);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	*sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	CHECK_INT(bind(fd, (struct sockaddr *)sa, sizeof(*sa)), 0);
	CHECK_INT(listen(fd, 8), 0);
	CHECK_INT(getsockname(fd, (struct sockaddr *)sa, &len), 0);
	return fd;
}

static int status_of(pid_t pid)
{
	int status;

	CHECK(pid > 0);
	CHECK_INT(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* ------------------------------------------------------------------ syscall() */

static void syscall_six_args(void)
{
	char name[] = "/tmp/vkr-six-XXXXXX";
	int fd = mkstemp(name);
	char *p;

	CHECK(fd >= 0);
	unlink(name);
	CHECK_INT(ftruncate(fd, 12288), 0);
	CHECK_INT(pwrite(fd, "third", 5, 8192), 5);
	p = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 8192L);
	CHECK(p != MAP_FAILED);
	CHECK_INT(memcmp(p, "third", 5), 0);
	FAILS(syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 17L), EINVAL);
	FAILS(syscall(100000), ENOSYS);
	FAILS(syscall(-1L), ENOSYS);
}

static void syscall_descriptors(void)
{
	int p[2], fd;
	char c = 0;

	CHECK_INT(pipe(p), 0);
	CHECK_INT(syscall(SYS_write, p[1], "x", 1), 1);
	CHECK_INT(syscall(SYS_read, p[0], &c, 1), 1);
	CHECK_INT(c, 'x');
	fd = syscall(SYS_dup, p[0]);
	CHECK(fd > p[1]);
	CHECK_INT(syscall(SYS_dup3, p[1], fd, O_CLOEXEC), fd);
	CHECK_INT(syscall(SYS_fcntl, fd, F_GETFD), FD_CLOEXEC);
	FAILS(syscall(SYS_dup3, fd, fd, 0), EINVAL);
	CHECK_INT(syscall(SYS_close, fd), 0);
	FAILS(syscall(SYS_close, fd), EBADF);
	fd = syscall(SYS_socket, AF_INET, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	CHECK_INT(syscall(SYS_close, fd), 0);
	FAILS(syscall(SYS_read, fd, &c, 1), EBADF);
	CHECK_INT(syscall(SYS_close_range, p[0], p[1], 0), 0);
	FAILS(fcntl(p[0], F_GETFD), EBADF);
}

static void syscall_clone(void)
{
	int local = 41;
	pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	if (pid == 0) {
		local++;
		syscall(SYS_exit_group, local);
	}
	CHECK_INT(status_of(pid), 42);
	CHECK_INT(local, 41);
}

static void syscall_time_left(void)
{
	struct timespec ts = {100, 0};
	struct pollfd pfd = {.events = POLLIN};
	fd_set set;
	sigset_t mask;
	struct {
		void *mask;
		size_t size;
	} arg = {&mask, 8};
	int p[2];

	sigemptyset(&mask);
	CHECK_INT(pipe(p), 0);
	CHECK_INT(write(p[1], "x", 1), 1);
	pfd.fd = p[0];
	CHECK_INT(syscall(SYS_ppoll, &pfd, 1, &ts, &mask, 8), 1);
	CHECK(ts.tv_sec == 99 || (ts.tv_sec == 100 && ts.tv_nsec == 0));
	FD_ZERO(&set);
	FD_SET(p[0], &set);
	CHECK_INT(syscall(SYS_pselect6, p[0] + 1, &set, NULL, NULL, &ts, &arg), 1);
	CHECK(ts.tv_sec >= 98);
	ts = (struct timespec){0, 2000000};
	CHECK_INT(syscall(SYS_ppoll, NULL, 0, &ts, NULL, 8), 0);
	CHECK_INT(ts.tv_sec, 0);
	CHECK_INT(ts.tv_nsec, 0);
	FAILS(syscall(SYS_ppoll, &pfd, 1, &ts, &mask, 16), EINVAL);
	arg.size = 16;
	FAILS(syscall(SYS_pselect6, p[0] + 1, &set, NULL, NULL, &ts, &arg), EINVAL);
}

static void syscall_epoll(void)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = 0x1122334455667788};
	int ep = syscall(SYS_epoll_create1, EPOLL_CLOEXEC), p[2];
	sigset_t mask;

	sigemptyset(&mask);
	CHECK_INT(pipe(p), 0);
	CHECK_INT(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	ev.data.u64 = 0;
	CHECK_INT(syscall(SYS_epoll_pwait, ep, &ev, 1, 0, &mask, 8), 0);
	CHECK_INT(write(p[1], "x", 1), 1);
	CHECK_INT(syscall(SYS_epoll_pwait, ep, &ev, 1, -1, &mask, 8), 1);
	CHECK(ev.data.u64 == 0x1122334455667788);
	FAILS(syscall(SYS_epoll_pwait, ep, &ev, 1, -1, &mask, 4), EINVAL);
	FAILS(syscall(SYS_epoll_pwait, ep, &ev, 0, 0, NULL, 8), EINVAL);
}

/* ------------------------------------------------------------------ processes */

static int run_exec(int form)
{
	char *argv[] = {"sh", "-c", "exit $((40 + $# + ${VKR_T:-0}))", "sh", "1", "2", NULL};
	char *env[] = {"VKR_T=1", "PATH=/bin:/usr/bin", NULL};
	pid_t pid = fork();

	if (pid)
		return status_of(pid);
	switch (form) {
	case 0:
		execl("/bin/sh", argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], NULL);
		break;
	case 1:
		execlp("sh", argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], NULL);
		break;
	case 2:
		execle("/bin/sh", argv[0], argv[1], argv[2], argv[3], argv[4], argv[5], NULL, env);
		break;
	case 3:
		execv("/bin/sh", argv);
		break;
	case 4:
		execvp("sh", argv);
		break;
	case 5:
		execvpe("sh", argv, env);
		break;
	case 6:
		execve("/bin/sh", argv, env);
		break;
	case 7:
		fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), argv, env);
		break;
	case 8:
		execveat(AT_FDCWD, "/bin/sh", argv, env, 0);
		break;
	case 9:
		syscall(SYS_execve, "/bin/sh", argv, env);
		break;
	}
	_exit(99);
}

static void exec_forms(void)
{
	static const int with_env[] = {0, 0, 1, 0, 0, 1, 1, 1, 1, 1};
	struct sockaddr_in sa;

	unsetenv("VKR_T");
	listener(&sa);
	for (int i = 0; i < 10; i++)
		CHECK_INT(run_exec(i), 42 + with_env[i]);
	FAILS(execl("/nonexistent/x", "x", NULL), ENOENT);
	FAILS(execlp("vkr-nonexistent", "x", NULL), ENOENT);
	FAILS(execv("/etc/passwd", environ), EACCES);
	FAILS(execl("/", "x", NULL), EACCES);
}

static void vfork_children(void)
{
	volatile int local = 1;
	struct sockaddr_in sa;
	int fd = listener(&sa);
	char *argv[] = {"sh", "-c", "exit 7", NULL};
	pid_t pid, inner;

	for (int i = 0; i < 200; i++) {
		pid = vfork();
		if (pid == 0) {
			local++; /* shared */
			_exit(3);
		}
		CHECK_INT(status_of(pid), 3);
	}
	CHECK_INT(local, 201);
	pid = vfork();
	if (pid == 0) {
		close(fd); /* the child's table only */
		execv("/bin/sh", argv);
		_exit(99);
	}
	CHECK_INT(status_of(pid), 7);
	pid = vfork();
	if (pid == 0) {
		inner = vfork();
		if (inner == 0)
			_exit(5);
		_exit(status_of(inner) == 5 ? 6 : 1);
	}
	CHECK_INT(status_of(pid), 6);
	CHECK(fcntl(fd, F_GETFD) >= 0);
	/* Were the depth left raised, a flagged socket would go unnoticed from here on: limits_seen would tell. */
	CHECK_INT(close(fd), 0);
}

static void vfork_refused(void)
{
	struct rlimit none = {0, 0};
	pid_t pid;

	if (setresuid(65534, 65534, 65534) < 0)
		exit(77);
	CHECK_INT(setrlimit(RLIMIT_NPROC, &none), 0);
	errno = 0;
	pid = vfork();
	if (pid == 0)
		_exit(0);
	CHECK_INT(pid, -1);
	CHECK_INT(errno, EAGAIN);
}

static void spawn_forms(void)
{
	char *argv[] = {"sh", "-c", "echo out; exit 9", NULL}, buf[16] = "";
	posix_spawn_file_actions_t fa;
	struct sockaddr_in sa;
	int p[2];
	pid_t pid;
	FILE *f;

	listener(&sa);
	CHECK_INT(pipe(p), 0);
	CHECK_INT(posix_spawn_file_actions_init(&fa), 0);
	CHECK_INT(posix_spawn_file_actions_adddup2(&fa, p[1], 1), 0);
	CHECK_INT(posix_spawn(&pid, "/bin/sh", &fa, NULL, argv, environ), 0);
	CHECK_INT(status_of(pid), 9);
	CHECK_INT(posix_spawnp(&pid, "sh", &fa, NULL, argv, environ), 0);
	CHECK_INT(status_of(pid), 9);
	CHECK_INT(read(p[0], buf, sizeof(buf)), 8);
	CHECK_INT(memcmp(buf, "out\nout\n", 8), 0);
	CHECK_INT(posix_spawn(&pid, "/nonexistent", NULL, NULL, argv, environ), ENOENT);
	f = popen("echo piped; exit 4", "r");
	CHECK(f && fgets(buf, sizeof(buf), f));
	CHECK_INT(strcmp(buf, "piped\n"), 0);
	CHECK_INT(WEXITSTATUS(pclose(f)), 4);
	CHECK_INT(WEXITSTATUS(system("exit 5")), 5);
}

static void *fork_meanwhile(void *arg)
{
	atomic_int *stop = arg;

	while (!atomic_load(stop)) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);

		CHECK(fd >= 0);
		CHECK_INT(close(fd), 0);
	}
	return NULL;
}

static void fork_threads(void)
{
	atomic_int stop = 0;
	pthread_t t;

	CHECK_INT(pthread_create(&t, NULL, fork_meanwhile, &stop), 0);
	for (int i = 0; i < 100; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			int fd = socket(AF_INET, SOCK_STREAM, 0);

			_exit(fd >= 0 && close(fd) == 0 ? 11 : 1);
		}
		CHECK_INT(status_of(pid), 11);
	}
	atomic_store(&stop, 1);
	pthread_join(t, NULL);
}

/* A handler that runs between ours, since it was registered before: it may use sockets. */
static void use_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), two = dup(fd);

	CHECK(fd >= 0 && two >= 0);
	CHECK_INT(close(two), 0);
	CHECK_INT(close(fd), 0);
}

static void fork_handlers(void)
{
	struct sockaddr_in sa;
	pid_t pid;
	int fd;

	CHECK_INT(pthread_atfork(use_socket, use_socket, use_socket), 0);
	fd = listener(&sa);
	pid = fork();
	if (pid == 0)
		_exit(close(fd) == 0 && close(listener(&sa)) == 0 ? 12 : 1);
	CHECK_INT(status_of(pid), 12);
	CHECK_INT(close(fd), 0);
}

static void exit_forms(void)
{
	for (int form = 0; form < 5; form++) {
		struct sockaddr_in sa;
		pid_t pid = fork();

		if (pid == 0) {
			listener(&sa);
			if (form == 0)
				exit(20);
			if (form == 1)
				_exit(21);
			if (form == 2)
				_Exit(22);
			if (form == 3)
				quick_exit(23);
			syscall(SYS_exit_group, 24);
		}
		CHECK_INT(status_of(pid), 20 + form);
	}
}

static void terminals(void)
{
	int m, s;
	pid_t pid;
	char buf[64];

	CHECK_INT(openpty(&m, &s, NULL, NULL, NULL), 0);
	CHECK(isatty(s));
	pid = fork();
	if (pid == 0)
		_exit(login_tty(s) == 0 && isatty(0) && write(1, "tty", 3) == 3 ? 0 : 1);
	CHECK_INT(status_of(pid), 0);
	CHECK_INT(read(m, buf, sizeof(buf)), 3);
	pid = forkpty(&m, NULL, NULL, NULL);
	if (pid == 0)
		_exit(write(1, "pty", 3) == 3 ? 0 : 1);
	CHECK_INT(read(m, buf, sizeof(buf)), 3);
	CHECK_INT(status_of(pid), 0);
	pid = fork();
	if (pid == 0)
		_exit(daemon(0, 0) == 0 && isatty(0) == 0 ? 0 : 1);
	CHECK_INT(status_of(pid), 0);
}

/* ------------------------------------------------------------------ limits */

static rlim_t real_soft(void)
{
	char line[256];
	unsigned long long soft = 0;
	FILE *f = fopen("/proc/self/limits", "r");

	CHECK(f != NULL);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Max open files %llu", &soft) == 1)
			break;
	fclose(f);
	return soft;
}

/* What `ulimit -n` says in a child that was made in the given way. */
static int child_sees(int way)
{
	char *argv[] = {"sh", "-c", "ulimit -Sn", NULL}, buf[32] = "";
	posix_spawn_file_actions_t fa;
	int p[2];
	pid_t pid = 0;
	FILE *f;

	if (way == 3) {
		f = popen("ulimit -Sn", "r");
		CHECK(f && fgets(buf, sizeof(buf), f));
		CHECK_INT(pclose(f), 0);
		return atoi(buf);
	}
	CHECK_INT(pipe(p), 0);
	if (way == 0) {
		pid = fork();
	} else if (way == 1) {
		pid = vfork();
	} else {
		CHECK_INT(posix_spawn_file_actions_init(&fa), 0);
		CHECK_INT(posix_spawn_file_actions_adddup2(&fa, p[1], 1), 0);
		CHECK_INT(posix_spawn(&pid, "/bin/sh", &fa, NULL, argv, environ), 0);
	}
	if (pid == 0) {
		dup2(p[1], 1);
		execv("/bin/sh", argv);
		_exit(99);
	}
	CHECK_INT(status_of(pid), 0);
	CHECK(read(p[0], buf, sizeof(buf)) > 0);
	close(p[0]);
	close(p[1]);
	return atoi(buf);
}

static void limits_seen(void)
{
	struct rlimit l = {500, 4000}, old;
	struct sockaddr_in sa;

	CHECK_INT(setrlimit(RLIMIT_NOFILE, &l), 0);
	vfork_children();
	listener(&sa);
	if (getenv("VKR_TEST_RAISED"))
		CHECK_INT(real_soft(), 4000);
	CHECK_INT(getrlimit(RLIMIT_NOFILE, &l), 0);
	CHECK_INT(l.rlim_cur, 500);
	CHECK_INT(l.rlim_max, 4000);
	CHECK_INT(sysconf(_SC_OPEN_MAX), 500);
	CHECK_INT(getdtablesize(), 500);
	l.rlim_cur = 600;
	CHECK_INT(prlimit(0, RLIMIT_NOFILE, &l, &old), 0);
	CHECK_INT(old.rlim_cur, 500);
	CHECK_INT(prlimit(getpid(), RLIMIT_NOFILE, NULL, &old), 0);
	CHECK_INT(old.rlim_cur, 600);
	l = (struct rlimit){700, 3000};
	CHECK_INT(setrlimit(RLIMIT_NOFILE, &l), 0);
	CHECK_INT(syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &old), 0);
	CHECK_INT(old.rlim_cur, 700);
	CHECK_INT(old.rlim_max, 3000);
	l = (struct rlimit){800, 700};
	FAILS(setrlimit(RLIMIT_NOFILE, &l), EINVAL);
	for (int way = 0; way < 4; way++)
		CHECK_INT(child_sees(way), 700);
	CHECK_INT(sysconf(_SC_OPEN_MAX), 700);
	FAILS(execl("/nonexistent/x", "x", NULL), ENOENT);
	if (getenv("VKR_TEST_RAISED"))
		CHECK_INT(real_soft(), 3000);
	CHECK(sysconf(_SC_PAGESIZE) > 0);
}

/* ------------------------------------------------------------------ signals */

static volatile sig_atomic_t hits;

static void on_signal(int sig)
{
	(void)sig;
	hits++;
}

static void signal_dispositions(void)
{
	struct sigaction sa;

	CHECK(signal(SIGUSR1, on_signal) == SIG_DFL);
	CHECK_INT(sigaction(SIGUSR1, NULL, &sa), 0);
	CHECK(sa.sa_handler == on_signal && (sa.sa_flags & SA_RESTART));
	CHECK_INT(raise(SIGUSR1), 0);
	CHECK_INT(hits, 1);
	CHECK_INT(siginterrupt(SIGUSR1, 1), 0);
	CHECK_INT(sigaction(SIGUSR1, NULL, &sa), 0);
	CHECK(!(sa.sa_flags & SA_RESTART));
	CHECK(sigset(SIGUSR1, SIG_IGN) == on_signal);
	CHECK(sigset(SIGUSR1, SIG_HOLD) == SIG_IGN);
	CHECK_INT(sigignore(SIGUSR2), 0);
	CHECK_INT(sigaction(SIGUSR2, NULL, &sa), 0);
	CHECK(sa.sa_handler == SIG_IGN);
	CHECK(signal(SIGKILL, on_signal) == SIG_ERR);
	CHECK_INT(errno, EINVAL);
	FAILS(sigaction(1000, NULL, NULL), EINVAL);
}

/* ------------------------------------------------------------------ descriptors and stdio */

static void dup_errors(void)
{
	struct sockaddr_in sa;
	int fd = listener(&sa), other;

	FAILS(dup(-1), EBADF);
	FAILS(dup(900), EBADF);
	CHECK_INT(dup2(fd, fd), fd);
	FAILS(dup2(900, 900), EBADF);
	FAILS(dup2(fd, -1), EBADF);
	FAILS(dup3(fd, fd, 0), EINVAL);
	FAILS(dup3(fd, 50, 12345), EINVAL);
	other = fcntl(fd, F_DUPFD, 40);
	CHECK(other >= 40);
	CHECK_INT(fcntl(other, F_GETFD), 0);
	CHECK_INT(close(other), 0);
	other = fcntl(fd, F_DUPFD_CLOEXEC, 40);
	CHECK_INT(fcntl(other, F_GETFD), FD_CLOEXEC);
	CHECK_INT(dup3(fd, other, O_CLOEXEC), other);
	CHECK_INT(fcntl(other, F_GETFD), FD_CLOEXEC);
	CHECK_INT(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	CHECK(fcntl(other, F_GETFL) & O_NONBLOCK);
	FAILS(accept(other, NULL, NULL), EAGAIN);
	CHECK_INT(close(fd), 0);
	FAILS(close(fd), EBADF);
	FAILS(accept(other, NULL, NULL), EAGAIN);
	closefrom(3);
	FAILS(fcntl(other, F_GETFD), EBADF);
	FAILS(close_range(10, 5, 0), EINVAL);
	FAILS(close_range(3, 5, 1 << 20), EINVAL);
}

static void stdio_socket(void)
{
	struct sockaddr_in sa;
	int ls = listener(&sa), fd = socket(AF_UNIX, SOCK_STREAM, 0), sv[2], again;
	char buf[16];
	FILE *f;

	close(fd);
	pair(sv);
	f = fdopen(sv[0], "r+");
	CHECK(f && fputs("bye", f) >= 0);
	CHECK_INT(fclose(f), 0);
	CHECK_INT(read(sv[1], buf, sizeof(buf)), 3);
	CHECK_INT(read(sv[1], buf, sizeof(buf)), 0);
	FAILS(fcntl(sv[0], F_GETFD), EBADF);
	/* a number that the library tracks */
	f = fdopen(ls, "r");
	CHECK(f != NULL);
	CHECK_INT(fclose(f), 0);
	FAILS(fcntl(ls, F_GETFD), EBADF);
	again = open("/dev/null", O_RDWR);
	FAILS(listen(again, 1), ENOTSOCK);
	ls = listener(&sa);
	f = fdopen(ls, "r");
	CHECK(freopen("/dev/zero", "r", f) != NULL);
	CHECK_INT(fgetc(f), 0);
	CHECK_INT(fclose(f), 0);
	CHECK(fdopen(-1, "r") == NULL);
	CHECK_INT(errno, EBADF);
}

static void rights_pass(void)
{
	union {
		struct cmsghdr h;
		char buf[CMSG_SPACE(2 * sizeof(int))];
	} c = {0};
	struct iovec iov = {"x", 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof(c)};
	struct sockaddr_in sa;
	struct stat a, b;
	int sv[2], fds[2];
	char byte;

	pair(sv);
	fds[0] = listener(&sa);
	fds[1] = sv[1];
	c.h = (struct cmsghdr){CMSG_LEN(sizeof(fds)), SOL_SOCKET, SCM_RIGHTS};
	memcpy(CMSG_DATA(&c.h), fds, sizeof(fds));
	CHECK_INT(sendmsg(sv[0], &m, 0), 1);
	iov.iov_base = &byte;
	CHECK_INT(recvmsg(sv[1], &m, MSG_CMSG_CLOEXEC), 1);
	CHECK_INT(m.msg_controllen, CMSG_SPACE(sizeof(fds)));
	CHECK_INT(fstat(fds[0], &a), 0);
	memcpy(fds, CMSG_DATA(&c.h), sizeof(fds));
	CHECK_INT(fstat(fds[0], &b), 0);
	CHECK_INT(a.st_ino, b.st_ino);
	CHECK(S_ISSOCK(b.st_mode));
	FAILS(sendmsg(sv[0], bad_pointer, 0), EFAULT);
	FAILS(recvmsg(sv[0], bad_pointer, MSG_DONTWAIT), EFAULT);
}

static void errno_kept(void)
{
	struct sockaddr_in sa;
	struct pollfd pfd;
	struct epoll_event ev = {.events = EPOLLIN};
	int fd, ep, two;

	errno = 77;
	fd = listener(&sa);
	ep = epoll_create1(0);
	pfd = (struct pollfd){.fd = fd, .events = POLLIN};
	CHECK_INT(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	CHECK_INT(epoll_wait(ep, &ev, 1, 0), 0);
	CHECK_INT(poll(&pfd, 1, 0), 0);
	two = dup(fd);
	CHECK_INT(close(two), 0);
	CHECK_INT(close(ep), 0);
	CHECK_INT(close(fd), 0);
	CHECK_INT(errno, 77);
}

/* ------------------------------------------------------------------ waiting, moving bytes */

static void select_time(void)
{
	struct timeval tv = {50, 0};
	struct timespec ts = {50, 0};
	fd_set set;
	int p[2];

	CHECK_INT(pipe(p), 0);
	CHECK_INT(write(p[1], "x", 1), 1);
	FD_ZERO(&set);
	FD_SET(p[0], &set);
	CHECK_INT(select(p[0] + 1, &set, NULL, NULL, &tv), 1);
	CHECK(tv.tv_sec == 49 || tv.tv_sec == 50);
	CHECK_INT(pselect(p[0] + 1, &set, NULL, NULL, &ts, NULL), 1);
	CHECK_INT(ts.tv_sec, 50);
	tv = (struct timeval){0, 1500};
	CHECK_INT(select(0, NULL, NULL, NULL, &tv), 0);
	CHECK_INT(tv.tv_sec * 1000000 + tv.tv_usec, 0);
	tv = (struct timeval){0, 60000000}; /* a minute in microseconds is allowed */
	CHECK_INT(select(p[0] + 1, &set, NULL, NULL, &tv), 1);
	CHECK(tv.tv_sec >= 58);
	tv = (struct timeval){-1, 0};
	FAILS(select(0, NULL, NULL, NULL, &tv), EINVAL);
	ts = (struct timespec){0, 1000000000};
	FAILS(pselect(0, NULL, NULL, NULL, &ts, NULL), EINVAL);
	FAILS(ppoll(NULL, 0, &ts, NULL), EINVAL);
	tv = (struct timeval){0, 0};
	close(p[0]);
	FAILS(select(p[0] + 1, &set, NULL, NULL, &tv), EBADF);
	FAILS(select(-1, NULL, NULL, NULL, &tv), EINVAL);
}

static void io_forms(void)
{
	char buf[32] = "";
	struct iovec iov = {buf, 5};
	struct mmsghdr mm = {.msg_hdr = {.msg_iov = &iov, .msg_iovlen = 1}};
	int sv[2], p[2], file = open("/etc/passwd", O_RDONLY);
	off_t off = 0;

	pair(sv);
	CHECK_INT(pipe(p), 0);
	CHECK_INT(pwritev2(sv[0], &(struct iovec){"hello", 5}, 1, -1, 0), 5);
	CHECK_INT(preadv2(sv[1], &iov, 1, -1, 0), 5);
	CHECK_INT(memcmp(buf, "hello", 5), 0);
	FAILS(preadv2(sv[1], &iov, 1, -1, RWF_NOWAIT), EAGAIN);
	FAILS(preadv2(sv[1], &iov, 1, 0, 0), ESPIPE);
	CHECK_INT(sendmmsg(sv[0], &mm, 1, 0), 1);
	CHECK_INT(recvmmsg(sv[1], &mm, 1, 0, NULL), 1);
	CHECK_INT(mm.msg_len, 5);
	CHECK_INT(sendfile(sv[0], file, &off, 4), 4);
	CHECK_INT(off, 4);
	CHECK_INT(splice(sv[1], NULL, p[1], NULL, 4, 0), 4);
	CHECK_INT(read(p[0], buf, 32), 4);
	CHECK_INT(memcmp(buf, "root", 4), 0);
	CHECK_INT(send(sv[0], "abc", 3, 0), 3);
	CHECK_INT(recvfrom(sv[1], buf, 32, MSG_PEEK, NULL, NULL), 3);
	CHECK_INT(readv(sv[1], &iov, 1), 3);
	FAILS(recv(sv[1], buf, 1, MSG_DONTWAIT), EAGAIN);
	CHECK_INT(send(sv[0], "z", 1, 0), 1);
	CHECK_INT(ioctl(sv[1], FIONREAD, &file), 0);
	CHECK_INT(file, 1);
	FAILS(read(sv[1], bad_pointer, 1), EFAULT);
	FAILS(sockatmark(p[0]), ENOTTY);
}

static void *block(void *arg)
{
	int *fds = arg;
	struct pollfd pfd = {.fd = fds[1], .events = POLLIN};
	struct epoll_event ev;
	char c;

	atomic_store((atomic_int *)&fds[3], gettid());
	switch (fds[0]) {
	case 0:
		return (void *)read(fds[1], &c, 1);
	case 1:
		return (void *)recv(fds[1], &c, 1, 0);
	case 2:
		return (void *)(long)poll(&pfd, 1, -1);
	case 3:
		return (void *)(long)epoll_wait(fds[2], &ev, 1, -1);
	default:
		return (void *)(long)accept(fds[2], NULL, NULL);
	}
}

/* The thread sleeps in the kernel: its state says so. */
static void wait_asleep(int tid)
{
	char path[64], state;
	FILE *f;

	do {
		sched_yield();
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
		f = fopen(path, "r");
		CHECK(f && fscanf(f, "%*d %*s %c", &state) == 1);
		fclose(f);
	} while (state != 'S');
}

static void cancelled(void)
{
	struct sockaddr_in sa;
	int sv[2], ls = listener(&sa), ep = epoll_create1(0);

	pair(sv);
	for (int i = 0; i < 5; i++) {
		int fds[4] = {i, sv[0], i == 3 ? ep : ls, 0};
		pthread_t t;
		void *ret;

		CHECK_INT(pthread_create(&t, NULL, block, fds), 0);
		while (!atomic_load((atomic_int *)&fds[3]))
			sched_yield();
		wait_asleep(fds[3]);
		CHECK_INT(pthread_cancel(t), 0);
		CHECK_INT(pthread_join(t, &ret), 0);
		CHECK(ret == PTHREAD_CANCELED);
	}
}

/* ------------------------------------------------------------------ */

#define CASE(name)                                                                                                     \
	{                                                                                                              \
#name, name                                                                                            \
	}
static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
    CASE(syscall_six_args), CASE(syscall_descriptors), CASE(syscall_clone),       CASE(syscall_time_left),
    CASE(syscall_epoll),    CASE(exec_forms),          CASE(vfork_children),      CASE(vfork_refused),
    CASE(spawn_forms),      CASE(fork_threads),        CASE(fork_handlers),       CASE(exit_forms),
    CASE(terminals),        CASE(limits_seen),         CASE(signal_dispositions), CASE(dup_errors),
    CASE(stdio_socket),     CASE(rights_pass),         CASE(errno_kept),          CASE(select_time),
    CASE(io_forms),         CASE(cancelled),
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (argc == 2 && !strcmp(argv[1], "--list")) {
			puts(cases[i].name);
		} else if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	}
	return argc == 2 && !strcmp(argv[1], "--list") ? 0 : 2;
}

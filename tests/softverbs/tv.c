/* SPDX-License-Identifier: BSD-2-Clause */
/* Processes, checks and small tools of the verbs tests: see tv.h. */
#include "tv.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <time.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <cmocka.h>

#define SKIP_STATUS 77

_Noreturn void tv_fail(const char *file, int line, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	int n;

	n = snprintf(text, sizeof(text), "%s:%d: [%d] ", file, line, getpid());
	va_start(ap, fmt);
	n += vsnprintf(text + n, sizeof(text) - n - 1, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof(text) - 2)
		n = sizeof(text) - 2;
	text[n] = '\n';
	n = write(2, text, n + 1);
	_exit(1);
}

_Noreturn void tv_skip(const char *why)
{
	dprintf(2, "skipped: %s\n", why);
	_exit(SKIP_STATUS);
}

void tv_check_mem(const char *file, int line, const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;

	for (size_t i = 0; i < n; i++)
		if (x[i] != y[i])
			tv_fail(file, line, "byte %zu of %zu is %#x, should be %#x", i, n, x[i], y[i]);
}

bool tv_strict(void)
{
	const char *s = getenv("TV_STRICT");

	return s && *s == '1';
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLOWER 4
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SLOWER 4
#endif
#endif
#ifndef SLOWER
#define SLOWER 1
#endif

unsigned tv_scale(void)
{
	const char *s = getenv("TV_SCALE");
	int n = s ? atoi(s) : 1;

	return SLOWER * (n > 0 ? (unsigned)n : 1);
}

/* A child of a process with threads has threads of its own when it opens the device. ThreadSanitizer asks this. */
__attribute__((visibility("default"))) const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0";
}

/* The numbers of descriptors are moved while the thread sleeps on one: it sleeps on the file. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "race:^set_fd_hooks$\n";
}

/* ---------------------------------------------------------------- roles */

void tv_socketpair(int sv[2])
{
	CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
}

pid_t tv_spawn(tv_role role, int ctl, int close_fd, void *arg, unsigned seconds)
{
	static const int fatal[] = {SIGFPE, SIGILL, SIGSEGV, SIGBUS, SIGSYS};
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* cmocka's handlers would go on with the next test, in here. */
	for (unsigned i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		signal(fatal[i], SIG_DFL);
	alarm(seconds * tv_scale());
	if (close_fd >= 0)
		close(close_fd);
	role(&(struct tv_side){.ctl = ctl, .arg = arg});
	if (ctl >= 0)
		shutdown(ctl, SHUT_WR);
	exit(0);
}

static int judge(int status)
{
	if (WIFSIGNALED(status)) {
		int sig = WTERMSIG(status);

		dprintf(2, "killed by signal %d%s\n", sig, sig == SIGALRM ? " (time limit)" : "");
		return -1;
	}
	return WEXITSTATUS(status);
}

int tv_wait(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		assert_int_equal(errno, EINTR);
	return judge(status);
}

static void verdict(int rc)
{
	if (rc == SKIP_STATUS)
		skip();
	assert_int_equal(rc, 0);
}

void tv_solo(tv_role role, unsigned seconds)
{
	pid_t pid = tv_spawn(role, -1, -1, NULL, seconds);

	assert_true(pid > 0);
	verdict(tv_wait(pid));
}

void tv_procs(tv_role a, tv_role b, unsigned seconds)
{
	int sv[2], rc = 0;
	pid_t pid[2];

	tv_socketpair(sv);
	pid[0] = tv_spawn(a, sv[0], sv[1], NULL, seconds);
	pid[1] = tv_spawn(b, sv[1], sv[0], NULL, seconds);
	assert_true(pid[0] > 0 && pid[1] > 0);
	close(sv[0]);
	close(sv[1]);
	for (int left = 2; left; left--) {
		int status, one;
		pid_t p = waitpid(-1, &status, 0);

		assert_true(p == pid[0] || p == pid[1]);
		one = judge(status);
		if (one && one != SKIP_STATUS)
			dprintf(2, "(that was role %c, in a process of its own)\n", p == pid[0] ? 'a' : 'b');
		if (!rc)
			rc = one;
		/* The other side would only run into its time limit. */
		if (one && left == 2)
			kill(p == pid[0] ? pid[1] : pid[0], SIGKILL);
	}
	verdict(rc);
}

struct duo {
	tv_role role[2];
	int sv[2];
	unsigned next;
};

static void *duo_thread(void *arg)
{
	struct duo *d = arg;
	unsigned i = __atomic_fetch_add(&d->next, 1, __ATOMIC_SEQ_CST);

	d->role[i](&(struct tv_side){.ctl = d->sv[i], .threads = true});
	shutdown(d->sv[i], SHUT_WR);
	return NULL;
}

static void run_duo(struct tv_side *s)
{
	struct duo *d = s->arg;
	pthread_t t[2];

	tv_socketpair(d->sv);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, duo_thread, d), 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

void tv_pair(tv_role a, tv_role b, unsigned seconds)
{
	struct duo d = {.role = {a, b}};
	pid_t pid;
	int rc;

	tv_procs(a, b, seconds);
	pid = tv_spawn(run_duo, -1, -1, &d, seconds);
	assert_true(pid > 0);
	rc = tv_wait(pid);
	if (rc)
		dprintf(2, "(that was both roles as threads of one process)\n");
	verdict(rc);
}

/* ---------------------------------------------------------------- control channel */

void tv_put(int ctl, const void *p, size_t n)
{
	CHECK_EQ(send(ctl, p, n, MSG_NOSIGNAL), n);
}

bool tv_ctl_try(int ctl, void *p, size_t n)
{
	ssize_t got;

	do
		got = recv(ctl, p, n, MSG_WAITALL);
	while (got < 0 && errno == EINTR);
	if (got == 0 || (got < 0 && errno == ECONNRESET))
		return false;
	CHECK_EQ(got, n);
	return true;
}

void tv_get(int ctl, void *p, size_t n)
{
	if (!tv_ctl_try(ctl, p, n))
		tv_fail(__FILE__, __LINE__, "the other side has ended");
}

void tv_sync(struct tv_side *s)
{
	char c = 's';

	tv_put(s->ctl, &c, 1);
	tv_get(s->ctl, &c, 1);
	CHECK_EQ(c, 's');
}

/* ---------------------------------------------------------------- tools */

uint64_t tv_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ull + ts.tv_nsec / 1000000;
}

/*
 * Not sched_yield(): on two cores with other work each yield costs whole time slices, while a sleeper is run as soon as
 * its timer fires.
 */
void tv_relax(void)
{
	struct timespec ts = {.tv_nsec = 20000};

	nanosleep(&ts, NULL);
}

static uint8_t pattern(uint32_t seed, size_t i)
{
	return (uint8_t)((i * 2654435761u) >> 13) ^ (uint8_t)(seed * 197 + i);
}

void tv_fill(void *p, size_t n, uint32_t seed)
{
	uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		b[i] = pattern(seed, i);
}

void tv_check_fill(const char *file, int line, const void *p, size_t n, uint32_t seed)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		if (b[i] != pattern(seed, i))
			tv_fail(file, line, "byte %zu of %zu is %#x, should be %#x", i, n, b[i], pattern(seed, i));
}

int tv_fd_count(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n - 3; /* . and .. and the directory's own */
}

long tv_rss_kib(void)
{
	char line[256];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");

	CHECK(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "VmRSS: %ld kB", &kib) == 1)
			break;
	fclose(f);
	CHECK_OP(kib, >, 0);
	return kib;
}

bool tv_readable(int fd, int ms)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint64_t end = tv_ms() + ms;
	int rc;

	do {
		int left = (int)(end - tv_ms());

		rc = poll(&p, 1, left < 0 ? 0 : left);
	} while (rc < 0 && errno == EINTR);
	CHECK_OP(rc, >=, 0);
	return rc && (p.revents & POLLIN);
}

void tv_nonblock(int fd)
{
	int fl = fcntl(fd, F_GETFL);

	CHECK_OP(fl, >=, 0);
	CHECK_EQ(fcntl(fd, F_SETFL, fl | O_NONBLOCK), 0);
}

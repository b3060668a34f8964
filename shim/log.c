/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Log lines. The standard error stream is not duplicated: a copy held here would keep a pipe open behind a program that
 * daemonised, and its reader would wait for ever. Instead descriptor 2 is remembered by device and inode when the log
 * is opened, and every line checks that it still is the same file. A log file of our own is a guarded descriptor.
 *
 * A line that cannot be written at once is dropped: whoever logs may hold locks that the data path needs.
 */
#include "log.h"
#include "guard.h"
#include "libc_real.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_SIZE 1024
#define MORE_SIZE 40 /* of it, for the number of lines left out */

enum vkr_log_level vkr_log_level = VKR_LOG_WARN;

static const char *const level_names[] = {"none", "error", "warn", "info", "debug"};

/* Identity of descriptor 2: 0 not looked at yet, 1 known, 2 there was none. Racing first lookers store the same. */
static _Atomic int stderr_known;
static dev_t stderr_dev;
static ino_t stderr_ino;

static char file_path[PATH_MAX]; /* absolute; empty: stderr */
static int file_fd = -1;         /* guarded; moved by vkr_guard_evict() */
static _Atomic bool file_failed;

static void stderr_remember(void)
{
	struct stat st;

	if (fstat(STDERR_FILENO, &st) < 0) {
		vkr_store_rel(&stderr_known, 2);
		return;
	}
	stderr_dev = st.st_dev;
	stderr_ino = st.st_ino;
	vkr_store_rel(&stderr_known, 1);
}

/* Descriptor 2 if it is what it was when the log was opened, otherwise -1. */
static int stderr_target(void)
{
	struct stat st;

	if (!vkr_load_acq(&stderr_known))
		stderr_remember();
	if (vkr_load_acq(&stderr_known) != 1 || fstat(STDERR_FILENO, &st) < 0)
		return -1;
	return st.st_dev == stderr_dev && st.st_ino == stderr_ino ? STDERR_FILENO : -1;
}

/* Opens the log file, once; racing openers keep the first. Returns the descriptor or -1. */
static int file_target(void)
{
	int fd = __atomic_load_n(&file_fd, __ATOMIC_ACQUIRE);
	int none = -1;

	if (fd >= 0 || vkr_load(&file_failed))
		return fd;
	fd = open(file_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644);
	if (fd < 0) {
		vkr_store(&file_failed, true);
		return -1;
	}
	fd = vkr_guard_fd(fd);
	if (!__atomic_compare_exchange_n(&file_fd, &none, fd, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		vkr_guard_close(fd);
		return none;
	}
	vkr_guard_slot(fd, &file_fd);
	return fd;
}

static void file_drop(void)
{
	int fd = __atomic_exchange_n(&file_fd, -1, __ATOMIC_ACQ_REL);

	if (fd >= 0)
		vkr_guard_close(fd);
}

/* The program may change its directory before the file has to be opened again (after fork). */
static int file_set(const char *file)
{
	size_t n = 0;

	if (file[0] != '/') {
		if (!getcwd(file_path, sizeof(file_path)))
			return -errno;
		n = strlen(file_path);
		if (n + 1 < sizeof(file_path))
			file_path[n++] = '/';
	}
	if (n + strlen(file) >= sizeof(file_path))
		return -ENAMETOOLONG;
	strcpy(file_path + n, file);
	return 0;
}

void vkr_log_open(enum vkr_log_level level, const char *file_or_null)
{
	int saved = errno;
	int rc = 0;

	vkr_log_level = level;
	stderr_remember();
	file_drop();
	file_path[0] = '\0';
	vkr_store(&file_failed, false);
	if (file_or_null) {
		rc = file_set(file_or_null);
		if (rc == 0 && file_target() < 0)
			rc = -errno;
	}
	if (rc < 0) {
		file_path[0] = '\0';
		vkr_error("log file %s cannot be opened (%s): logging to standard error", file_or_null,
			  strerrordesc_np(-rc));
	}
	errno = saved;
}

/* ------------------------------------------------------------------ peers that make us warn without end */

#define KINDS    64 /* of warnings: more than there are */
#define QUIET_NS 1000000000ll

/* A kind is a format, of which each warning has one of its own. */
static struct kind {
	_Atomic(const char *) fmt;
	_Atomic int64_t until; /* the next line, CLOCK_MONOTONIC */
	_Atomic unsigned left_out;
} kinds[KINDS];

static struct kind *kind_of(const char *fmt)
{
	size_t i, first = (uintptr_t)fmt / 8 % KINDS;

	for (i = 0; i < KINDS; i++) {
		struct kind *k = &kinds[(first + i) % KINDS];
		const char *none = NULL;

		if (vkr_load(&k->fmt) == fmt || atomic_compare_exchange_strong(&k->fmt, &none, fmt) || none == fmt)
			return k;
	}
	return NULL;
}

/* False: this one is left out. Else *more are told of with it that were. */
static bool kind_may(const char *fmt, unsigned *more)
{
	struct kind *k = kind_of(fmt);
	struct timespec ts;
	int64_t now, until;

	if (!k)
		return true;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = ts.tv_sec * 1000000000ll + ts.tv_nsec;
	until = vkr_load(&k->until);
	if (now < until || !atomic_compare_exchange_strong(&k->until, &until, now + QUIET_NS)) {
		atomic_fetch_add(&k->left_out, 1);
		return false;
	}
	*more = atomic_exchange(&k->left_out, 0);
	return true;
}

static void kinds_forget(void)
{
	size_t i;

	for (i = 0; i < KINDS; i++) {
		vkr_store(&kinds[i].until, 0);
		vkr_store(&kinds[i].left_out, 0);
	}
}

/* ------------------------------------------------------------------ lines */

/* Formats one line; returns its length, newline included. Control characters would forge lines or drive a terminal. */
static VKR_PRINTF(4, 0) size_t
    line_format(char *line, enum vkr_log_level level, unsigned more, const char *fmt, va_list ap)
{
	int head = snprintf(line, LINE_SIZE, "libvkrdma[%d] %s: ", (int)getpid(), level_names[level]);
	int body = vsnprintf(line + head, LINE_SIZE - head, fmt, ap);
	size_t len = head + (body > 0 ? body : 0), most = LINE_SIZE - (more ? MORE_SIZE : 2);
	size_t i;

	if (len > most) {
		len = most;
		memcpy(line + len - 3, "...", 3);
	}
	if (more)
		len += (size_t)snprintf(line + len, MORE_SIZE, " (and %u like it before)", more);
	for (i = head; i < len; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	line[len++] = '\n';
	return len;
}

/*
 * A pipe without a reader must not kill the program (SIGPIPE), a terminal must not stop it when it is in the background
 * (SIGTTOU). Both are blocked around the write; a SIGPIPE that this write raised is taken back.
 */
static void line_emit(int fd, const char *line, size_t len)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	const struct timespec now = {0, 0};
	sigset_t block, before, pending, pipe_only;
	ssize_t rc;

	if (vkr_poll_now(&p, 1) != 1 || !(p.revents & POLLOUT))
		return;
	sigemptyset(&pipe_only);
	sigaddset(&pipe_only, SIGPIPE);
	block = pipe_only;
	sigaddset(&block, SIGTTOU);
	if (pthread_sigmask(SIG_BLOCK, &block, &before) != 0)
		return;
	sigpending(&pending);
	do
		rc = vkr_real.write(fd, line, len);
	while (rc < 0 && errno == EINTR);
	if (rc < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
		while (sigtimedwait(&pipe_only, NULL, &now) < 0 && errno == EINTR)
			;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void vkr_log_write(enum vkr_log_level level, const char *fmt, ...)
{
	char line[LINE_SIZE];
	int saved = errno, cancel;
	unsigned more = 0;
	va_list ap;
	size_t len;
	int fd;

	if (level <= VKR_LOG_NONE || level > VKR_LOG_DEBUG || (level == VKR_LOG_WARN && !kind_may(fmt, &more)))
		return;
	/* Lines are written with locks held: a cancelled thread must not end here. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	fd = file_path[0] ? file_target() : stderr_target();
	if (fd >= 0) {
		va_start(ap, fmt);
		errno = saved; /* for %m */
		len = line_format(line, level, more, fmt, ap);
		va_end(ap);
		line_emit(fd, line, len);
	}
	pthread_setcancelstate(cancel, NULL);
	errno = saved;
}

void vkr_log_forked(void)
{
	__atomic_store_n(&file_fd, -1, __ATOMIC_RELEASE);
	vkr_store(&file_failed, false);
	kinds_forget();
}

const char *vkr_address_text(const struct sockaddr *sa, char *buf, size_t size)
{
	char ip[INET6_ADDRSTRLEN] = "?";

	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *in = (const void *)sa;

		inet_ntop(AF_INET, &in->sin_addr, ip, sizeof(ip));
		snprintf(buf, size, "%s:%u", ip, ntohs(in->sin_port));
	} else {
		const struct sockaddr_in6 *in6 = (const void *)sa;

		inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof(ip));
		snprintf(buf, size, "[%s]:%u", ip, ntohs(in6->sin6_port));
	}
	return buf;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Log lines: their form, their target, and that they never hurt the program. */
#include "unit.h"

#include "guard.h"
#include "log.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Standard error is a pipe during each test. */
static int saved_stderr = -1, tap = -1;

static int capture(void **state)
{
	int p[2];

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return -1;
	saved_stderr = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10);
	if (saved_stderr < 0 || dup2(p[1], STDERR_FILENO) < 0)
		return -1;
	close(p[1]);
	tap = p[0];
	return 0;
}

static int release(void **state)
{
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	if (tap >= 0)
		close(tap);
	tap = -1;
	vkr_log_open(VKR_LOG_WARN, NULL);
	return 0;
}

static const char *got(void)
{
	static char buf[8192];
	ssize_t n = read(tap, buf, sizeof(buf) - 1);

	buf[n > 0 ? n : 0] = '\0';
	return buf;
}

static void test_form(void **state)
{
	char expect[128];

	vkr_log_open(VKR_LOG_INFO, NULL);
	vkr_info("port %d, %s", 6379, "rdma");
	sprintf(expect, "libvkrdma[%d] info: port 6379, rdma\n", (int)getpid());
	assert_string_equal(got(), expect);
}

static void test_levels(void **state)
{
	vkr_log_open(VKR_LOG_WARN, NULL);
	vkr_debug("d");
	vkr_info("i");
	assert_string_equal(got(), "");
	vkr_warn("w");
	assert_non_null(strstr(got(), "] warn: w\n"));
	vkr_error("e");
	assert_non_null(strstr(got(), "] error: e\n"));
	vkr_log_open(VKR_LOG_NONE, NULL);
	vkr_error("e");
	assert_string_equal(got(), "");
	vkr_log_open(VKR_LOG_DEBUG, NULL);
	vkr_debug("d");
	assert_non_null(strstr(got(), "] debug: d\n"));
}

static void test_errno_is_kept(void **state)
{
	vkr_log_open(VKR_LOG_INFO, NULL);
	errno = EXDEV;
	vkr_info("why: %m");
	assert_int_equal(errno, EXDEV);
	assert_non_null(strstr(got(), "why: Invalid cross-device link\n"));
	close(STDERR_FILENO);
	errno = EXDEV;
	vkr_info("nowhere");
	assert_int_equal(errno, EXDEV);
	errno = EXDEV;
	vkr_log_open(VKR_LOG_INFO, "/nonexistent/file");
	assert_int_equal(errno, EXDEV);
}

static void test_long_lines_are_cut(void **state)
{
	char text[5000];
	const char *line;

	memset(text, 'a', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	vkr_log_open(VKR_LOG_INFO, NULL);
	vkr_info("%s", text);
	line = got();
	assert_int_equal(strlen(line), 1023);
	assert_string_equal(line + 1023 - 6, "aa...\n");
}

static void test_one_message_is_one_line(void **state)
{
	const char *line;

	vkr_log_open(VKR_LOG_INFO, NULL);
	vkr_info("a\nlibvkrdma[1] error: forged\033[2J\x7f\tz");
	line = got();
	assert_non_null(strstr(line, "a?libvkrdma[1] error: forged?[2J??z\n"));
	assert_ptr_equal(strchr(line, '\n'), line + strlen(line) - 1);
}

static void warn(int i)
{
	vkr_warn("peer %d broke the protocol", i);
}

static size_t lines_of(const char *text, const char *what)
{
	size_t n = 0;

	while ((text = strstr(text, what))) {
		text++;
		n++;
	}
	return n;
}

/* A peer that makes the library warn again and again does not fill the log, and hides no other warning. */
static void test_warnings_do_not_flood(void **state)
{
	struct timespec ts = {.tv_nsec = 20000000};
	const char *text;
	int i;

	vkr_log_open(VKR_LOG_INFO, NULL);
	for (i = 0; i < 500; i++) {
		warn(i);
		vkr_info("connection %d", i % 4);
		if (i % 4 == 3)
			vkr_warn("something else");
		if (i == 19) {
			text = got();
			assert_int_equal(lines_of(text, "broke the protocol\n"), 1);
			assert_non_null(strstr(text, "peer 0 broke"));
			assert_int_equal(lines_of(text, "something else\n"), 1);
			assert_int_equal(lines_of(text, "connection"), 20);
			vkr_log_level = VKR_LOG_WARN;
		}
	}
	for (i = 0; i < 500 && !*(text = got()); i++) {
		nanosleep(&ts, NULL);
		warn(1000);
	}
	assert_int_equal(lines_of(text, "peer 1000 broke the protocol (and "), 1);
	assert_in_range(atoi(strstr(text, "(and ") + 5), 499, 999);
	assert_int_equal(lines_of(text, " like it before)\n"), 1);
	/* A child's first is not left out on its parent's account. */
	warn(1);
	assert_string_equal(got(), "");
	vkr_log_forked();
	warn(2);
	assert_non_null(strstr(got(), "peer 2 broke the protocol\n"));
}

static void test_closed_stderr(void **state)
{
	vkr_log_open(VKR_LOG_INFO, NULL);
	close(STDERR_FILENO);
	vkr_info("lost");
	assert_string_equal(got(), "");
}

/* The number 2 went to another file: a database, perhaps. */
static void test_reused_stderr(void **state)
{
	char name[] = "/tmp/vkrdma-test-XXXXXX";
	struct stat st;
	int fd = mkstemp(name);

	assert_true(fd >= 0);
	vkr_log_open(VKR_LOG_INFO, NULL);
	assert_int_equal(dup2(fd, STDERR_FILENO), STDERR_FILENO);
	vkr_info("not here");
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	close(fd);
	unlink(name);
}

static void test_stderr_reused_by_another_pipe(void **state)
{
	int p[2];
	char c;

	assert_int_equal(pipe2(p, O_CLOEXEC | O_NONBLOCK), 0);
	vkr_log_open(VKR_LOG_INFO, NULL);
	assert_int_equal(dup2(p[1], STDERR_FILENO), STDERR_FILENO);
	vkr_info("not here");
	assert_int_equal(read(p[0], &c, 1), -1);
	assert_int_equal(errno, EAGAIN);
	close(p[0]);
	close(p[1]);
}

/* No copy of standard error stays behind: its reader sees the end when the program closes it. */
static void test_stderr_is_not_held_open(void **state)
{
	char c;

	vkr_log_open(VKR_LOG_INFO, NULL);
	vkr_info("x");
	assert_non_null(strstr(got(), "x\n"));
	close(STDERR_FILENO);
	assert_int_equal(read(tap, &c, 1), 0);
	assert_int_equal(vkr_guard_next(0), -1);
}

static void test_reader_has_gone(void **state)
{
	sigset_t set;

	vkr_log_open(VKR_LOG_INFO, NULL);
	close(tap);
	tap = -1;
	vkr_info("nobody listens"); /* SIGPIPE would end the test */
	sigpending(&set);
	assert_false(sigismember(&set, SIGPIPE));
	pthread_sigmask(SIG_BLOCK, NULL, &set);
	assert_false(sigismember(&set, SIGPIPE));
}

/* A full pipe: the line is dropped, the caller does not wait. */
static void test_reader_does_not_read(void **state)
{
	static char fill[1 << 20];
	int fl = fcntl(STDERR_FILENO, F_GETFL);
	ssize_t full;

	vkr_log_open(VKR_LOG_INFO, NULL);
	full = write(STDERR_FILENO, fill, sizeof(fill));
	assert_true(full > 0 && full < (ssize_t)sizeof(fill));
	assert_int_equal(fcntl(STDERR_FILENO, F_SETFL, fl & ~O_NONBLOCK), 0);
	alarm(10);
	vkr_info("dropped");
	alarm(0);
}

static size_t file_size(const char *name)
{
	struct stat st;

	return stat(name, &st) < 0 ? 0 : (size_t)st.st_size;
}

static void test_file(void **state)
{
	char dir[] = "/tmp/vkrdma-test-XXXXXX", name[64];
	size_t before;
	int fd, status;
	pid_t pid;

	assert_non_null(mkdtemp(dir));
	assert_int_equal(chdir(dir), 0);
	vkr_log_open(VKR_LOG_INFO, "log");
	assert_int_equal(chdir("/"), 0);
	sprintf(name, "%s/log", dir);
	vkr_info("first");
	assert_string_equal(got(), "");
	before = file_size(name);
	assert_true(before > 0);
	fd = vkr_guard_next(0);
	assert_true(fd > 255);
	/* the application takes the number */
	assert_int_equal(vkr_guard_evict(fd), 0);
	assert_int_equal(dup2(STDERR_FILENO, fd), fd);
	vkr_info("second");
	assert_string_equal(got(), "");
	assert_true(file_size(name) > before);
	close(fd);
	/* a child closes what is guarded and opens the file again */
	before = file_size(name);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		vkr_guard_close(vkr_guard_next(0));
		vkr_log_forked();
		vkr_info("child");
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(file_size(name) > before);
	vkr_log_open(VKR_LOG_WARN, NULL);
	assert_int_equal(vkr_guard_next(0), -1);
	unlink(name);
	rmdir(dir);
}

static void test_file_that_cannot_be_opened(void **state)
{
	const char *line;

	vkr_log_open(VKR_LOG_INFO, "/nonexistent/file");
	line = got();
	assert_non_null(strstr(line, "/nonexistent/file"));
	assert_non_null(strstr(line, "No such file"));
	vkr_info("still there");
	assert_non_null(strstr(got(), "still there\n"));
}

static void *log_cancelled(void *behind)
{
	pthread_cancel(pthread_self());
	vkr_warn("with a lock in hand");
	*(bool *)behind = true;
	pthread_testcancel();
	return NULL;
}

static void test_no_cancellation_point(void **state)
{
	bool behind = false;
	pthread_t thread;
	void *end;

	vkr_log_open(VKR_LOG_INFO, NULL);
	assert_int_equal(pthread_create(&thread, NULL, log_cancelled, &behind), 0);
	assert_int_equal(pthread_join(thread, &end), 0);
	assert_true(end == PTHREAD_CANCELED);
	assert_true(behind);
	assert_non_null(strstr(got(), "with a lock in hand\n"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, capture, release)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    CASE(test_form),
	    CASE(test_levels),
	    CASE(test_errno_is_kept),
	    CASE(test_long_lines_are_cut),
	    CASE(test_one_message_is_one_line),
	    CASE(test_warnings_do_not_flood),
	    CASE(test_closed_stderr),
	    CASE(test_reused_stderr),
	    CASE(test_stderr_reused_by_another_pipe),
	    CASE(test_stderr_is_not_held_open),
	    CASE(test_reader_has_gone),
	    CASE(test_reader_does_not_read),
	    CASE(test_file),
	    CASE(test_file_that_cannot_be_opened),
	    CASE(test_no_cancellation_point),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

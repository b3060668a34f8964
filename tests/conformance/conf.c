/* SPDX-License-Identifier: BSD-2-Clause */
#include "conf.h"
#include "conf_evidence.h"

#include <stdarg.h>
#include <dirent.h>
#include <sys/prctl.h>

static const char *volatile last_file = "start";
static volatile int last_line;
static __thread char note[160];
static const char *program = "conf";

_Atomic int conf_caught;

int64_t conf_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000LL + ts.tv_nsec;
}

int64_t conf_ms(void)
{
	return conf_ns() / 1000000;
}

void conf_pause(void)
{
	struct timespec ts = {.tv_nsec = 1000000};

	nanosleep(&ts, NULL);
}

void conf_at(const char *file, int line)
{
	last_file = file;
	last_line = line;
}

void conf_note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(note, sizeof(note), fmt, ap);
	va_end(ap);
}

/* One write: output of several processes and threads stays readable, and stdio's locks are not needed. */
static void say(const char *fmt, ...)
{
	char line[700];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (n > 0 && write(2, line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1) < 0)
		_exit(1);
}

void conf_fail(const char *file, int line, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	say("%s[%d]: %s:%d: %s%s%s%s\n", program, getpid(), file, line, text, *note ? " [" : "", note,
	    *note ? "]" : "");
	_exit(1);
}

void conf_skip(const char *fmt, ...)
{
	char text[300];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	say("%s: skipped: %s\n", program, text);
	_exit(77);
}

static const char *errno_name(int e)
{
	const char *name = strerrorname_np(e);

	return name ? name : "?";
}

long long conf_check_ok(const char *file, int line, const char *expr, long long got)
{
	int e = errno;

	if (got < 0)
		conf_fail(file, line, "%s = %lld %s, expected success", expr, got, errno_name(e));
	return got;
}

void conf_check_err(const char *file, int line, const char *expr, long long got, int want)
{
	int e = errno;

	if (got != -1 || e != want)
		conf_fail(file, line, "%s = %lld %s, expected -1 %s", expr, got, errno_name(e), errno_name(want));
}

void conf_check_cmp(const char *file, int line, const char *a_text, const char *op, const char *b_text, long long a,
		    long long b)
{
	bool holds = op[0] == '=' ? a == b : op[0] == '!' ? a != b : op[0] == '>' ? a >= b : a <= b;

	if (!holds)
		conf_fail(file, line, "%s %s %s does not hold: %lld and %lld (errno %s)", a_text, op, b_text, a, b,
			  errno_name(errno));
}

static void events_text(uint32_t ev, char *out, size_t len)
{
	static const struct {
		uint32_t bit;
		const char *name;
	} names[] = {
	    {EPOLLIN, "IN"},         {EPOLLPRI, "PRI"},  {EPOLLOUT, "OUT"},         {EPOLLERR, "ERR"},
	    {EPOLLHUP, "HUP"},       {POLLNVAL, "NVAL"}, {EPOLLRDHUP, "RDHUP"},     {EPOLLRDNORM, "RDNORM"},
	    {EPOLLWRNORM, "WRNORM"}, {EPOLLET, "ET"},    {EPOLLONESHOT, "ONESHOT"},
	};
	size_t used = (size_t)snprintf(out, len, "0x%x", ev);

	for (size_t i = 0; i < CONF_ARRAY_SIZE(names); i++)
		if (ev & names[i].bit && used < len)
			used += (size_t)snprintf(out + used, len - used, " %s", names[i].name);
}

void conf_check_events(const char *file, int line, uint32_t got, uint32_t want)
{
	char g[128], w[128];

	if (got == want)
		return;
	events_text(got, g, sizeof(g));
	events_text(want, w, sizeof(w));
	conf_fail(file, line, "events %s, expected %s", g, w);
}

uint32_t conf_rand(uint32_t *state)
{
	uint32_t x = *state;

	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	return *state = x;
}

/* ---- watchdog */

static void dump_tasks(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *d;
	char path[320], text[200];

	while (dir && (d = readdir(dir))) {
		ssize_t n = -1;
		int fd;

		if (d->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%s/syscall", d->d_name);
		fd = open(path, O_RDONLY);
		if (fd >= 0) {
			n = read(fd, text, sizeof(text) - 1);
			close(fd);
		}
		text[n > 0 ? n : 0] = 0;
		say("%s:   thread %s: system call %s", program, d->d_name, n > 0 ? text : "?\n");
	}
}

static void on_alarm(int sig)
{
	(void)sig;
	say("%s[%d]: watchdog: hung; last check passed at or before %s:%d [%s]\n", program, getpid(), last_file,
	    last_line, note);
	/* Not async-signal-safe, which is why the line above is out first and the next alarm is deadly. */
	signal(SIGALRM, SIG_DFL);
	alarm(2);
	dump_tasks();
	_exit(124);
}

int conf_scale(void)
{
	const char *s = getenv("CONF_SCALE");
	int n = s ? atoi(s) : 1;

	return n > 0 ? n : 1;
}

static void watchdog(void)
{
	/* SA_RESTART: a handler without it may change how other signals' restarts look to a library. */
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};

	sigaction(SIGALRM, &sa, NULL);
	alarm((conf_flags & CONF_LONG ? 90u : 30u) * (unsigned)conf_scale());
}

/* ---- threads, processes */

static void *thread_main(void *p)
{
	struct conf_thread *t = p;
	void *ret;

	atomic_store(&t->tid, (pid_t)syscall(SYS_gettid));
	ret = t->fn(t->arg);
	t->err = errno;
	atomic_store(&t->done, true);
	return ret;
}

void conf_one_cpu(void)
{
	cpu_set_t one;

	CONF_OK(sched_getaffinity(0, sizeof(one), &one));
	for (int i = 0, seen = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &one) && seen++)
			CPU_CLR(i, &one);
	CONF_OK(sched_setaffinity(0, sizeof(one), &one));
}

void conf_thread_start(struct conf_thread *t, void *(*fn)(void *), void *arg)
{
	t->tid = 0;
	t->done = false;
	t->fn = fn;
	t->arg = arg;
	CONF_EQ(pthread_create(&t->thread, NULL, thread_main, t), 0);
	CONF_UNTIL(atomic_load(&t->tid) != 0);
}

void *conf_thread_join(struct conf_thread *t)
{
	void *ret = NULL;

	CONF_EQ(pthread_join(t->thread, &ret), 0);
	return ret;
}

/* State letter and the count of voluntary switches of a task. */
static bool task_look(const char *path, char *state, unsigned long *switches)
{
	char text[4096], *p;
	ssize_t n;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (n <= 0)
		return false;
	text[n] = 0;
	p = strstr(text, "\nState:");
	*state = p ? p[8] : '?';
	p = strstr(text, "\nvoluntary_ctxt_switches:");
	*switches = p ? strtoul(p + 25, NULL, 10) : 0;
	return true;
}

static void wait_asleep(const char *path, struct conf_thread *t)
{
	int64_t end = conf_ms() + CONF_PATIENCE_MS;
	unsigned long seen = 0, now;
	char state = '?';
	int still = 0;

	while (still < 15) {
		if (t && atomic_load(&t->done))
			conf_fail(CONF_WHERE, "the thread ended, it should be blocked (errno %s)", errno_name(t->err));
		if (!task_look(path, &state, &now))
			conf_fail(CONF_WHERE, "%s: cannot be read: the task ended, it should be blocked", path);
		still = state == 'S' && now == seen ? still + 1 : 0;
		seen = now;
		if (conf_ms() > end)
			conf_fail(CONF_WHERE, "%s: never blocked (state %c)", path, state);
		conf_pause();
	}
}

void conf_thread_asleep(struct conf_thread *t)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)atomic_load(&t->tid));
	wait_asleep(path, t);
}

void conf_process_asleep(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	wait_asleep(path, NULL);
}

pid_t conf_fork(void (*fn)(void *arg), void *arg)
{
	pid_t parent = getpid(), pid = (pid_t)CONF_OK(fork());

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	watchdog();
	fn(arg);
	exit(conf_end());
}

void conf_join(pid_t pid)
{
	int status = 0;

	CONF_EQ(waitpid(pid, &status, 0), pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		conf_fail(CONF_WHERE, "child %d: %s %d", (int)pid, WIFEXITED(status) ? "exit status" : "signal",
			  WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

struct two {
	int pipe[2];
	bool listens;
	void (*child)(int fd);
};

static int two_end(int pipe[2], bool listens)
{
	struct sockaddr_in sin;
	int fd, l;

	if (listens) {
		struct sockaddr_storage ss;

		l = conf_listener(AF_INET, 4);
		conf_name(l, &ss);
		memcpy(&sin, &ss, sizeof(sin));
		CONF_EQ(write(pipe[1], &sin, sizeof(sin)), sizeof(sin));
		fd = (int)CONF_OK(accept(l, NULL, NULL));
		close(l);
	} else {
		CONF_EQ(read(pipe[0], &sin, sizeof(sin)), sizeof(sin));
		fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
		CONF_OK(connect(fd, (struct sockaddr *)&sin, sizeof(sin)));
	}
	close(pipe[0]);
	close(pipe[1]);
	return fd;
}

static void two_child(void *arg)
{
	struct two *t = arg;

	t->child(two_end(t->pipe, t->listens));
}

static void two_run(void (*parent)(int fd, pid_t child), void (*child)(int fd), bool child_listens)
{
	struct two t = {.listens = child_listens, .child = child};
	pid_t pid;

	conf_note("%s listens", child_listens ? "child" : "parent");
	CONF_OK(pipe(t.pipe));
	pid = conf_fork(two_child, &t);
	parent(two_end(t.pipe, !child_listens), pid);
}

struct two_first {
	void (*parent)(int fd, pid_t child);
	void (*child)(int fd);
};

static void two_first(void *arg)
{
	struct two_first *f = arg;

	two_run(f->parent, f->child, true);
}

void conf_two(void (*parent)(int fd, pid_t child), void (*child)(int fd))
{
	struct two_first f = {parent, child};

	/* The first arrangement gets a process of its own: no socket may exist when the second one forks. */
	conf_join(conf_fork(two_first, &f));
	two_run(parent, child, false);
}

__attribute__((weak)) int conf_plain(const char *arg, int port)
{
	(void)arg;
	(void)port;
	return 1;
}

pid_t conf_spawn_plain(const char *arg, int port)
{
	char number[16], *argv[] = {(char *)"conf-plain", (char *)"--plain", (char *)arg, number, NULL};
	pid_t pid;

	snprintf(number, sizeof(number), "%d", port);
	pid = (pid_t)CONF_OK(fork());
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsetenv("LD_PRELOAD");
	unsetenv("CONF_EXPECT_RDMA");
	execv("/proc/self/exe", argv);
	_exit(126);
}

static void count_signal(int sig)
{
	(void)sig;
	atomic_fetch_add(&conf_caught, 1);
}

void conf_catch(int sig, int sa_flags)
{
	struct sigaction sa = {.sa_handler = count_signal, .sa_flags = sa_flags};

	CONF_OK(sigaction(sig, &sa, NULL));
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/');

	program = slash ? slash + 1 : argv[0];
	watchdog();
	if (argc == 4 && !strcmp(argv[1], "--plain"))
		return conf_plain(argv[2], atoi(argv[3]));
	conf_run();
	conf_note("%s", "");
	return conf_end();
}

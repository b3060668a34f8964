/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The worker: reads a script (operations, "run", and carried the states that were seen natively, "go"), runs it, and
 * writes for each operation a line with its results and a line with the state after it, then "end" with the evidence.
 */
#include "worker.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS  4000000000ll /* for a carried state to become what it was natively */
#define HALF_OPEN_NS 300000000ll  /* for the other end of a connection to have it too */
#define STUCK_NS     8000000000ll /* for an interrupted call to return */

__thread int diff_pipes;
static struct world world;

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void nap(int us)
{
	struct timespec ts = {.tv_nsec = us * 1000L};

	nanosleep(&ts, NULL);
}

/* ------------------------------------------------------------------ what the driver reads */

static char out[DIFF_TEXT];
static volatile size_t out_length;

static void out_flush(void)
{
	size_t done = 0;

	while (done < out_length) {
		ssize_t r = write(1, out + done, out_length - done);

		if (r <= 0)
			_exit(1);
		done += (size_t)r;
	}
	out_length = 0;
}

__attribute__((format(printf, 1, 2))) static void out_print(const char *fmt, ...)
{
	va_list ap;

	if (sizeof(out) - out_length < 16384)
		out_flush();
	va_start(ap, fmt);
	out_length += (size_t)vsnprintf(out + out_length, sizeof(out) - out_length, fmt, ap);
	va_end(ap);
}

/* It dies, or the driver has waited too long (SIGQUIT): how far it had come is told. */
static void on_death(int sig)
{
	out_flush();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* ------------------------------------------------------------------ threads */

static void on_signal(int sig)
{
	if (sig == SIGPIPE)
		diff_pipes++;
}

static void futex_wait(_Atomic int *word, int value)
{
	syscall(SYS_futex, word, 0 /* FUTEX_WAIT */, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic int *word)
{
	syscall(SYS_futex, word, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
}

static void *task_main(void *arg)
{
	struct task *t = arg;
	int state;

	atomic_store(&t->tid, (int)syscall(SYS_gettid));
	for (;;) {
		state = atomic_load(&t->state);
		if (state != TASK_GIVEN) {
			futex_wait(&t->state, state);
			continue;
		}
		atomic_store(&t->state, TASK_RUNNING);
		call_perform(&t->job);
		atomic_store(&t->state, TASK_DONE);
	}
	return NULL;
}

static void task_start(struct task *t)
{
	char path[64];

	t->job.in = malloc(JOB_BUFFER);
	if (!t->job.in || pthread_create(&t->thread, NULL, task_main, t))
		abort();
	while (!atomic_load(&t->tid))
		nap(100);
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&t->tid));
	t->stat = open(path, O_RDONLY | O_CLOEXEC);
	if (t->stat < 0)
		abort();
}

/* Ended, or asleep inside its call: two looks, since a thread may sleep for a moment on a lock. */
static bool task_settled(struct task *t)
{
	char text[256], *p;
	ssize_t n;
	int state = atomic_load(&t->state);

	if (state == TASK_IDLE || state == TASK_DONE)
		return true;
	if (state == TASK_GIVEN)
		return false;
	for (int i = 0; i < 2; i++) {
		n = pread(t->stat, text, sizeof(text) - 1, 0);
		text[n > 0 ? n : 0] = 0;
		p = strrchr(text, ')');
		if (!p || p[1] != ' ' || p[2] != 'S')
			return atomic_load(&t->state) == TASK_DONE;
		sched_yield();
	}
	return true;
}

static bool tasks_settled(void)
{
	for (int i = 1; i <= DIFF_THREADS; i++)
		if (!task_settled(&world.tasks[i]))
			return false;
	return true;
}

/* ------------------------------------------------------------------ quiescent points */

static bool stuffed_by(const struct slot *s)
{
	return s->what == SLOT_END && world.ends[s->end].stuffed;
}

static bool stuffed_at(const struct slot *s)
{
	struct end *e = s->what == SLOT_END ? &world.ends[s->end] : NULL;

	return e && e->peer >= 0 && world.ends[e->peer].stuffed;
}

/*
 * What can be seen of everything without changing it. Of an end that was written to until nothing went only what both
 * transports promise: not OUT, nor a set's state that may follow from it, nor how much has arrived, until all of it has
 * been read (docs/semantics.md: buffer sizes
 * are the transport's).
 */
static void look(char *buf, size_t size)
{
	struct pollfd p[DIFF_SLOTS];
	char name[4], text[160];
	size_t n = 0;
	int q;

	for (int i = 0; i < DIFF_SLOTS; i++) {
		p[i].fd = world.slots[i].fd;
		p[i].events = POLLIN | POLLPRI | POLLOUT | POLLRDHUP;
		p[i].revents = 0;
	}
	if (poll(p, DIFF_SLOTS, 0) < 0)
		p[0].revents = 0x4000;
	*buf = 0;
	for (unsigned i = 0; i < DIFF_SLOTS; i++) {
		struct slot *s = &world.slots[i];

		if (s->fd < 0)
			continue;
		if (stuffed_by(s))
			p[i].revents &= ~POLLOUT;
		if (s->what == SLOT_SET && call_any_stuffed(&world))
			continue;
		diff_slot_name(i, name);
		diff_events_print((uint32_t)p[i].revents, text, sizeof(text));
		n += (size_t)snprintf(buf + n, size - n, " %s=%s", name, text);
		if (s->what == SLOT_SET)
			continue;
		if (stuffed_at(s))
			n += (size_t)snprintf(buf + n, size - n, "/+");
		else if (ioctl(s->fd, FIONREAD, &q) < 0)
			n += (size_t)snprintf(buf + n, size - n, "/%s", strerrorname_np(errno));
		else
			n += (size_t)snprintf(buf + n, size - n, "/%d", q);
	}
	for (int i = 1; i <= DIFF_THREADS; i++)
		if (atomic_load(&world.tasks[i].state) == TASK_RUNNING)
			n += (size_t)snprintf(buf + n, size - n, " t%d=%s", i,
					      diff_calls[world.tasks[i].job.op.kind].name);
}

/* The other end was closed: bytes that it has not acknowledged are about to be answered with a reset. */
static bool reset_under_way(const struct slot *s)
{
	int q, peer = world.ends[s->end].peer;

	return peer >= 0 && !end_is_named(&world, peer) && ioctl(s->fd, SIOCOUTQ, &q) == 0 && q > 0;
}

/*
 * Natively: an end of a stream that the other TCP has not acknowledged yet, or an answer that is to come. It may take
 * its time, and edge-triggered members hear of it.
 */
static bool end_under_way(void)
{
	struct tcp_info info;
	socklen_t len;

	if (world.carried || !world.torn)
		return false;
	for (int i = 0; i < DIFF_SOCKETS; i++) {
		const struct slot *s = &world.slots[i];

		len = sizeof(info);
		if (s->what != SLOT_END || stuffed_by(s) || getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
		    info.tcpi_state == TCP_CLOSE)
			continue;
		if (reset_under_way(s) || info.tcpi_state == TCP_FIN_WAIT1 || info.tcpi_state == TCP_CLOSING ||
		    info.tcpi_state == TCP_LAST_ACK)
			return true;
	}
	return false;
}

static bool counters(uint64_t *rdma, uint64_t *tcp, uint64_t *immediates);

/*
 * Carried: a connection that one end has and the other not yet. Its listener may have to hear of it. Some never get
 * their other end: after a while that is how it is.
 */
static bool half_open(int64_t since)
{
	static uint64_t odd;
	uint64_t rdma, tcp, immediates;

	if (!world.carried || !counters(&rdma, &tcp, &immediates) || (rdma & 1) == odd)
		return false;
	if (now_ns() - since < HALF_OPEN_NS)
		return true;
	odd ^= 1;
	return false;
}

/* False: it did not become what was wanted. */
static bool settle(const char *want, char *buf, size_t size)
{
	char before[1024] = "?";
	int64_t start = now_ns(), end = start + PATIENCE_NS;

	for (int turn = 0;; turn++) {
		if (tasks_settled()) {
			look(buf, size);
			if (want ? !strcmp(want, buf) && !half_open(start) : !strcmp(before, buf) && !end_under_way())
				return true;
			snprintf(before, sizeof(before), "%s", buf);
		}
		if (now_ns() > end) {
			look(buf, size);
			return !want;
		}
		/* Natively two looks in a row will do; carried the progress thread may have to have its turn. */
		if (turn > 2)
			nap(turn < 200 ? 30 : 1000);
	}
}

/* ------------------------------------------------------------------ evidence */

/* The library's counters of this process, found in its own mapping of them. */
static bool counters(uint64_t *rdma, uint64_t *tcp, uint64_t *immediates)
{
	static struct vkr_stats_map *map;
	unsigned long from, offset;
	char line[512];
	FILE *f = map || !world.carried ? NULL : fopen("/proc/self/maps", "re");

	while (f && !map && fgets(line, sizeof(line), f))
		if (strstr(line, "vkrdma-stats") && sscanf(line, "%lx-%*x %*s %lx", &from, &offset) == 2 && offset == 0)
			map = (struct vkr_stats_map *)from; /* NOLINT(performance-no-int-to-ptr) */
	if (f)
		fclose(f);
	*rdma = *tcp = *immediates = 0;
	if (!map || map->header.magic != VKR_STATS_MAGIC || map->header.version != VKR_STATS_VERSION)
		return false;
	*rdma = atomic_load(&map->header.closed.conns_rdma);
	*tcp = atomic_load(&map->header.closed.conns_tcp);
	*immediates = atomic_load(&map->header.closed.immediates_out);
	return true;
}

/* ------------------------------------------------------------------ a script */

static void finish_tasks(char *buf, size_t size)
{
	size_t n = strlen(buf);

	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct task *t = &world.tasks[i];

		if (atomic_load(&t->state) != TASK_DONE)
			continue;
		n += (size_t)snprintf(buf + n, size - n, "; t%d %s ", i, diff_calls[t->job.op.kind].name);
		n += (size_t)call_finish(&world, &t->job, buf + n, size - n);
		atomic_store(&t->state, TASK_IDLE);
	}
}

static void run_op(const struct diff_op *op, char *buf, size_t size)
{
	static struct job job;
	const char *why = call_unfit(&world, op);
	struct task *t;

	*buf = 0;
	if (why) {
		snprintf(buf, size, "left out: %s", why);
		return;
	}
	if (call_direct(&world, op, buf, size))
		return;
	if (op->kind == DIFF_EPWAIT || op->kind == DIFF_EPSLEEP)
		nap(60); /* a wait that has events of ours asks the kernel for its own every 50 us */
	if (!op->thread) {
		job.in = world.main_in;
		call_prepare(&world, op, &job);
		call_perform(&job);
		call_finish(&world, &job, buf, size);
		return;
	}
	t = &world.tasks[op->thread];
	call_prepare(&world, op, &t->job);
	atomic_store(&t->state, TASK_GIVEN);
	futex_wake(&t->state);
}

static bool wake_everybody(void)
{
	int64_t end = now_ns() + STUCK_NS;

	for (int i = 1; i <= DIFF_THREADS; i++) {
		struct task *t = &world.tasks[i];
		int state;

		while ((state = atomic_load(&t->state)) == TASK_GIVEN || state == TASK_RUNNING) {
			pthread_kill(t->thread, SIGUSR1);
			nap(100);
			if (now_ns() > end)
				return false;
		}
		if (state == TASK_DONE && t->job.made >= 0 &&
		    (t->job.op.kind == DIFF_ACCEPT || t->job.op.kind == DIFF_DIAL))
			close(t->job.made);
		atomic_store(&t->state, TASK_IDLE);
	}
	return true;
}

static void reset(void)
{
	for (int i = 0; i < DIFF_SLOTS; i++) {
		slot_close(&world.slots[i]);
		world.slots[i].last = -1;
	}
	world.end_count = world.identities = world.pairs = 0;
	world.nested = world.torn = world.renumbered = false;
}

static void note_numbers(void)
{
	for (int i = 1; i <= DIFF_THREADS; i++)
		if (world.tasks[i].job.op.kind == DIFF_ACCEPT && atomic_load(&world.tasks[i].state) == TASK_RUNNING)
			world.renumbered = true;
}

static void run_script(const struct diff_script *s, char (*states)[1024])
{
	static char result[8192], state[1024];
	uint64_t rdma[2], tcp[2], imm[2];
	bool ok, same;

	counters(&rdma[0], &tcp[0], &imm[0]);
	for (world.index = 0; world.index < s->n; world.index++) {
		run_op(&s->op[world.index], result, sizeof(result));
		same = settle(states ? states[world.index] : NULL, state, sizeof(state));
		world_learn_ports(&world);
		note_numbers();
		finish_tasks(result, sizeof(result));
		out_print("%d %s\n=%s\n", world.index, result, state);
		if (!same)
			out_flush(); /* the driver has seen enough */
	}
	ok = wake_everybody();
	reset();
	if (!ok) {
		out_print("stuck: a signal does not end a call\n");
		out_flush();
		_exit(3);
	}
	counters(&rdma[1], &tcp[1], &imm[1]);
	out_print("end rdma %llu tcp %llu immediates %llu\n", (unsigned long long)(rdma[1] - rdma[0]),
		  (unsigned long long)(tcp[1] - tcp[0]), (unsigned long long)(imm[1] - imm[0]));
	out_flush();
}

static bool read_states(char (*states)[1024], int n)
{
	char line[1100];
	int i = 0;

	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "go"))
			return true;
		if (line[0] == '=' && i < n)
			memcpy(states[i++], line + 1, 1023); /* zeroed before; `line` is longer */
	}
	return false;
}

int diff_worker(bool carried)
{
	static char states[DIFF_MAX_OPS][1024];
	static struct diff_script script;
	static const int deaths[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGQUIT};
	struct sigaction sa = {.sa_handler = on_signal};

	for (size_t i = 0; i < DIFF_ARRAY_SIZE(deaths); i++)
		signal(deaths[i], on_death);
	prctl(PR_SET_TIMERSLACK, 1UL); /* naps as short as they are meant */
	sigaction(SIGPIPE, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	world.carried = carried;
	world.base = -1;
	world.pattern = malloc(DIFF_BIG + 1024);
	world.main_in = malloc(JOB_BUFFER);
	if (!world.pattern || !world.main_in)
		return 1;
	for (size_t i = 0; i < DIFF_BIG + 1024; i++)
		world.pattern[i] = (char)(i % 251);
	for (int i = 0; i < DIFF_SLOTS; i++)
		world.slots[i].fd = -1;
	for (int i = 1; i <= DIFF_THREADS; i++)
		task_start(&world.tasks[i]);
	reset();
	while (diff_script_read(stdin, &script)) {
		memset(states, 0, sizeof(states));
		if (carried && !read_states(states, script.n))
			return 1;
		run_script(&script, carried ? states : NULL);
	}
	return 0;
}

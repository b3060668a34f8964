/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver: sequences to both workers, their answers compared, a difference shrunk and shown. */
#include "diff.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANG_MS 30000 /* without a line from a worker */
#define REPEATS 8     /* of what differs, from fresh workers, before it counts as one that does not repeat */

struct worker {
	bool carried;
	pid_t pid;
	FILE *to;
	int from;
	char buf[DIFF_TEXT];
	size_t have, used;
};

struct trace {
	char text[DIFF_TEXT];
	size_t length;
	int lines;
	char *line[2 * DIFF_MAX_OPS + 2];
	unsigned long long rdma, tcp, immediates;
};

struct options {
	const char *shim, *replay, *out;
	unsigned long long sequences, seed;
	long seconds, max_differences;
	bool verbose;
};

static struct options options = {.out = ".", .max_differences = 1};
static struct worker native, carried = {.carried = true};
static struct {
	unsigned long long sequences, operations, rdma, tcp, immediates, unstable, passing, failed;
} total;

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ll + ts.tv_nsec / 1000000;
}

/* ------------------------------------------------------------------ workers */

static void worker_exec(bool is_carried)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	unsetenv("LD_PRELOAD");
	if (is_carried) {
		setenv("LD_PRELOAD", options.shim, 1);
		setenv("VKRDMA_PROVIDER", "soft", 0);
		setenv("VKRDMA_LISTEN", "*", 1);
		setenv("VKRDMA_CONNECT", "*", 1);
	}
	execl("/proc/self/exe", "vkr-diff", "--worker", is_carried ? "carried" : "native", (char *)NULL);
	_exit(127);
}

static void worker_start(struct worker *w)
{
	int to[2], from[2];

	if (w->pid)
		return;
	if (pipe2(to, 0) < 0 || pipe2(from, 0) < 0)
		abort();
	w->pid = fork();
	if (w->pid == 0) {
		dup2(to[0], 0);
		dup2(from[1], 1);
		close(to[0]);
		close(to[1]);
		close(from[0]);
		close(from[1]);
		worker_exec(w->carried);
	}
	close(to[0]);
	close(from[1]);
	fcntl(to[1], F_SETFD, FD_CLOEXEC);
	fcntl(from[0], F_SETFD, FD_CLOEXEC);
	w->to = fdopen(to[1], "w");
	w->from = from[0];
	w->have = w->used = 0;
}

static int worker_stop(struct worker *w)
{
	int status = 0;

	if (!w->pid)
		return 0;
	kill(w->pid, SIGKILL);
	waitpid(w->pid, &status, 0);
	fclose(w->to);
	close(w->from);
	w->pid = 0;
	return status;
}

/* The next line into buf, without its newline; false: the worker has died or says nothing for too long. */
static bool worker_line(struct worker *w, char *buf, size_t size, const char **why)
{
	for (;;) {
		char *end = memchr(w->buf + w->used, '\n', w->have - w->used);
		struct pollfd p = {.fd = w->from, .events = POLLIN};
		ssize_t r;

		if (end) {
			size_t n = (size_t)(end - (w->buf + w->used));

			snprintf(buf, size, "%.*s", (int)n, w->buf + w->used);
			w->used += n + 1;
			return true;
		}
		memmove(w->buf, w->buf + w->used, w->have - w->used);
		w->have -= w->used;
		w->used = 0;
		*why = "HANGS";
		if (w->have == sizeof(w->buf) || poll(&p, 1, HANG_MS) <= 0)
			return false;
		*why = "DIED";
		r = read(w->from, w->buf + w->have, sizeof(w->buf) - w->have);
		if (r <= 0)
			return false;
		w->have += (size_t)r;
	}
}

static void trace_add(struct trace *t, const char *line)
{
	size_t n = strlen(line) + 1;

	if (t->length + n > sizeof(t->text) || t->lines == (int)DIFF_ARRAY_SIZE(t->line))
		return;
	t->line[t->lines++] = memcpy(t->text + t->length, line, n);
	t->length += n;
}

/* Gives the worker a sequence; carried: with the states that are wanted. */
static void run_begin(struct worker *w, const struct diff_script *s, const struct trace *want)
{
	worker_start(w);
	diff_script_print(w->to, s);
	fprintf(w->to, "run\n");
	if (w->carried) {
		for (int i = 0; want && i < want->lines; i++)
			if (want->line[i][0] == '=')
				fprintf(w->to, "%s\n", want->line[i]);
		fprintf(w->to, "go\n");
	}
	fflush(w->to);
}

/*
 * What the worker has to say into t. With `want` it is stopped at the first line that differs. False: it was stopped,
 * died or hung (then the last line says so).
 */
static bool run_end(struct worker *w, const struct trace *want, struct trace *t)
{
	char line[9000], why_text[64];
	const char *why = "", *dead = NULL;

	t->length = 0;
	t->lines = 0;
	for (;;) {
		if (!worker_line(w, line, sizeof(line), &why)) {
			if (!dead && !strcmp(why, "HANGS") && kill(w->pid, SIGQUIT) == 0) {
				dead = why; /* it tells how far it had come, and ends */
				continue;
			}
			snprintf(why_text, sizeof(why_text), "%s (status %#x)", dead ? dead : why, worker_stop(w));
			trace_add(t, why_text);
			return false;
		}
		if (sscanf(line, "end rdma %llu tcp %llu immediates %llu", &t->rdma, &t->tcp, &t->immediates) == 3)
			return true;
		trace_add(t, line);
		if (want && (t->lines > want->lines || strcmp(line, want->line[t->lines - 1]))) {
			worker_stop(w);
			return false;
		}
	}
}

static bool run_in(struct worker *w, const struct diff_script *s, const struct trace *want, struct trace *t)
{
	run_begin(w, s, want);
	return run_end(w, want, t);
}

/* ------------------------------------------------------------------ a sequence */

enum verdict { SAME, DIFFERENT, UNSTABLE };

static struct trace tcp_traces[2], *by_tcp = &tcp_traces[0], by_rdma, again, first;

static bool same_trace(const struct trace *a, const struct trace *b)
{
	if (a->lines != b->lines)
		return false;
	for (int i = 0; i < a->lines; i++)
		if (strcmp(a->line[i], b->line[i]))
			return false;
	return true;
}

static enum verdict compare(const struct diff_script *s)
{
	if (!run_in(&native, s, NULL, by_tcp))
		return UNSTABLE;
	return run_in(&carried, s, by_tcp, &by_rdma) ? SAME : DIFFERENT;
}

static void trace_copy(struct trace *to, const struct trace *from)
{
	to->length = 0;
	to->lines = 0;
	for (int i = 0; i < from->lines; i++)
		trace_add(to, from->line[i]);
}

/* From fresh workers, and natively twice: what TCP itself does not repeat is no yardstick. */
static enum verdict confirm(const struct diff_script *s)
{
	enum verdict v;

	worker_stop(&native);
	if (!run_in(&native, s, NULL, &again) || !same_trace(&again, &first))
		return UNSTABLE;
	worker_stop(&carried);
	v = compare(s);
	return same_trace(&first, by_tcp) ? v : UNSTABLE;
}

/* No matter of timing: a failure though it were seen once. */
static bool is_grave(const struct trace *t)
{
	const char *last = t->lines ? t->line[t->lines - 1] : "";

	return !strncmp(last, "DIED", 4) || !strncmp(last, "HANGS", 5) || !strncmp(last, "stuck", 5) ||
	       strstr(last, "WRONG BYTE");
}

/* Delta debugging: drops ever smaller runs of operations while the rest still differs. */
static void shrink(struct diff_script *s)
{
	struct diff_script shorter;
	int64_t end = now_ms() + 120000;
	bool dropped;

	for (int size = s->n / 2 ? s->n / 2 : 1; size; size = dropped && size > 1 ? size : dropped ? 1 : size / 2) {
		dropped = false;
		for (int at = 0; at < s->n && now_ms() < end;) {
			int n = s->n - at < size ? s->n - at : size;

			if (n == s->n)
				break;
			shorter = *s;
			memmove(&shorter.op[at], &shorter.op[at + n], (size_t)(s->n - at - n) * sizeof(shorter.op[0]));
			shorter.n -= n;
			if (compare(&shorter) == DIFFERENT && compare(&shorter) == DIFFERENT) {
				*s = shorter;
				dropped = true;
			} else {
				at += n;
			}
		}
		if (now_ms() >= end)
			break;
	}
}

static void show(FILE *f, const struct diff_script *s)
{
	int last = by_rdma.lines - 1;
	char text[256];

	fprintf(f, "# seed %llu\n", (unsigned long long)s->seed);
	for (int i = 0; i < s->n; i++) {
		diff_op_print(&s->op[i], text, sizeof(text));
		if (i > last / 2) {
			fprintf(f, "%s\n", text);
			continue;
		}
		fprintf(f, "%-40s # %s", text, by_tcp->line[2 * i] + strcspn(by_tcp->line[2 * i], " ") + 1);
		if (2 * i + 1 < by_tcp->lines && (options.verbose || i + 3 > last / 2))
			fprintf(f, "  =%s", by_tcp->line[2 * i + 1] + 1);
		fprintf(f, "\n");
	}
	if (last >= 0 && last < by_tcp->lines)
		fprintf(f, "# operation %d\n#   natively: %s\n#   carried:  %s\n", last / 2, by_tcp->line[last],
			by_rdma.line[last]);
	else if (last >= 0)
		fprintf(f, "# at the end, carried: %s\n", by_rdma.line[last]);
	fflush(f);
}

static void save(const struct diff_script *s)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/diff-%llu.txt", options.out, (unsigned long long)s->seed);
	f = fopen(path, "w");
	if (!f)
		return;
	show(f, s);
	fclose(f);
	printf("saved; again by: --replay %s\n", path);
}

/* The operation and both answers where the last comparison ended. */
static void describe(const struct diff_script *s, char *buf, size_t size)
{
	int last = by_rdma.lines - 1;
	char text[256] = "";

	if (last >= 0 && last / 2 < s->n)
		diff_op_print(&s->op[last / 2], text, sizeof(text));
	snprintf(buf, size, "  operation %d: %s\n  natively: %s\n  carried:  %s\n", last / 2, text,
		 last >= 0 && last < by_tcp->lines ? by_tcp->line[last] : "", last >= 0 ? by_rdma.line[last] : "");
}

static void fail(const struct diff_script *s)
{
	show(stdout, s);
	save(s);
}

/* Shrunk as far as it goes on to show; a race that is lost now and then stays as long as it was. */
static void shrink_and_fail(struct diff_script *s, const char *what)
{
	struct diff_script whole = *s;
	enum verdict v = SAME;

	printf("\nDIFFERENCE, seed %llu, %d operations; shrinking\n%s", (unsigned long long)s->seed, s->n, what);
	fflush(stdout);
	shrink(s);
	for (int i = 0; i < 5 && v != DIFFERENT; i++)
		v = compare(s);
	if (v != DIFFERENT) {
		printf("shrunk, it does not show; the whole sequence:\n");
		*s = whole;
		for (int i = 0; i < REPEATS && compare(s) != DIFFERENT; i++)
			;
	}
	fail(s);
}

/*
 * A sequence that was run natively (by_tcp) and carried (by_rdma). What differs is run again from fresh workers: it is
 * a failure when it shows again. When it does not it is told, and counted; when TCP does not repeat itself, counted.
 * True: no failure.
 */
static bool judge(struct diff_script *s, enum verdict v)
{
	static char what[20000];

	total.sequences++;
	total.operations += (unsigned long long)s->n;
	if (v == SAME) {
		total.rdma += by_rdma.rdma;
		total.tcp += by_rdma.tcp;
		total.immediates += by_rdma.immediates;
		return true;
	}
	if (v == UNSTABLE) {
		printf("seed %llu: the native worker: %s\n", (unsigned long long)s->seed,
		       by_tcp->lines ? by_tcp->line[by_tcp->lines - 1] : "");
		total.failed++;
		return true;
	}
	describe(s, what, sizeof(what));
	if (options.verbose)
		show(stdout, s);
	if (is_grave(&by_rdma)) {
		printf("\nseed %llu:\n", (unsigned long long)s->seed);
		fail(s);
		return false;
	}
	trace_copy(&first, by_tcp);
	v = SAME;
	for (int i = 0; i < REPEATS && v == SAME; i++)
		v = confirm(s);
	if (v == DIFFERENT) {
		shrink_and_fail(s, what);
		return false;
	}
	if (v == UNSTABLE) {
		total.unstable++;
		return true;
	}
	total.passing++;
	printf("seed %llu: a difference that %d repetitions did not show\n%s", (unsigned long long)s->seed, REPEATS,
	       what);
	return true;
}

/* ------------------------------------------------------------------ the command */

static int usage(void)
{
	fprintf(stderr,
		"vkr-diff --shim LIBRARY [--sequences N | --seconds N] [--seed N] [--differences N] [--out DIR] [-v]\n"
		"vkr-diff --shim LIBRARY --replay FILE\n");
	return 2;
}

static bool option_take(const char *name, const char *value)
{
	char *end = NULL;
	unsigned long long n = strtoull(value, &end, 0);
	bool number = end != value && !*end;

	if (!strcmp(name, "--shim"))
		options.shim = value;
	else if (!strcmp(name, "--replay"))
		options.replay = value;
	else if (!strcmp(name, "--out"))
		options.out = value;
	else if (!number)
		return false;
	else if (!strcmp(name, "--sequences"))
		options.sequences = n;
	else if (!strcmp(name, "--seconds"))
		options.seconds = (long)n;
	else if (!strcmp(name, "--seed"))
		options.seed = n;
	else if (!strcmp(name, "--differences"))
		options.max_differences = (long)n;
	else
		return false;
	return true;
}

static int replay(void)
{
	static struct diff_script s;
	FILE *f = fopen(options.replay, "r");

	if (!f) {
		perror(options.replay);
		return 2;
	}
	diff_script_read(f, &s);
	fclose(f);
	options.verbose = true;
	if (!s.n)
		return 2;
	if (compare(&s) == SAME) {
		diff_script_print(stdout, &s);
		printf("no difference; connections over RDMA: %llu\n", by_rdma.rdma);
		return 0;
	}
	show(stdout, &s);
	return 1;
}

static int summary(long differences)
{
	printf("%llu sequences, %llu operations, %llu connections over RDMA, %llu over TCP (refused ones), %llu "
	       "immediates\n"
	       "%ld differences, %llu that did not repeat, %llu sequences that TCP itself does not repeat\n",
	       total.sequences, total.operations, total.rdma, total.tcp, total.immediates, differences, total.passing,
	       total.unstable);
	if (total.failed) {
		printf("%llu native runs failed\n", total.failed);
		return 1;
	}
	if (!total.rdma || !total.immediates) {
		printf("no evidence of RDMA\n");
		return 1;
	}
	return differences ? 1 : 0;
}

static bool one_more(unsigned long long done, int64_t started)
{
	if (options.sequences && done >= options.sequences)
		return false;
	return !options.seconds || now_ms() - started <= options.seconds * 1000;
}

/* Both workers are at work: the carried one on a sequence, the native one on the next. Returns the differences. */
static long sequences(void)
{
	static struct diff_script scripts[2];
	int64_t started = now_ms(), told = started;
	bool ran[2], more;
	enum verdict v;
	long differences = 0;
	int now = 0;

	diff_generate(options.seed, &scripts[0]);
	ran[0] = run_in(&native, &scripts[0], NULL, &tcp_traces[0]);
	for (unsigned long long i = 1;; i++, now = !now) {
		by_tcp = &tcp_traces[now];
		more = one_more(i, started);
		if (ran[now])
			run_begin(&carried, &scripts[now], by_tcp);
		if (more) {
			diff_generate(options.seed + i, &scripts[!now]);
			run_begin(&native, &scripts[!now], NULL);
		}
		v = !ran[now] ? UNSTABLE : run_end(&carried, by_tcp, &by_rdma) ? SAME : DIFFERENT;
		if (more)
			ran[!now] = run_end(&native, NULL, &tcp_traces[!now]);
		if (!judge(&scripts[now], v) && ++differences >= options.max_differences)
			break;
		if (!more)
			break;
		if (now_ms() - told > 30000) {
			told = now_ms();
			printf("... %llu sequences, %ld differences\n", total.sequences, differences);
		}
	}
	worker_stop(&native);
	worker_stop(&carried);
	return differences;
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--worker"))
		return diff_worker(!strcmp(argv[2], "carried"));
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (getrandom(&options.seed, 4, 0) != 4)
		options.seed = (unsigned long long)now_ms();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "-v"))
			options.verbose = true;
		else if (i + 1 >= argc || !option_take(argv[i], argv[i + 1]))
			return usage();
		else
			i++;
	}
	if (!options.shim)
		return usage();
	if (options.replay)
		return replay();
	if (!options.sequences && !options.seconds)
		options.sequences = 200;
	printf("first seed %llu\n", options.seed);
	return summary(sequences());
}

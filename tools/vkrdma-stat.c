/* SPDX-License-Identifier: BSD-2-Clause */
/* vkrdma-stat: which connections RDMA carries, and what went through them. See vkrdma-stat(1). */
#include "stat.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define IDLE_PROBE_MS 100

enum { EXIT_FOUND, EXIT_NOTHING, EXIT_USAGE };

struct options {
	bool json, watch;
	double seconds; /* of --watch */
	long count;     /* samples of --watch; 0: until killed */
	int pid;        /* 0: all */
};

static const char usage[] =
    "usage: vkrdma-stat [-p PID] [--json] [--watch [SECONDS]] [--count N]\n"
    "Shows the processes that run under libvkrdma, their listeners and connections, and what RDMA carried.\n"
    "  -p, --pid PID          this process only\n"
    "  -j, --json             JSON; with --watch one object a line\n"
    "  -w, --watch [SECONDS]  refresh every SECONDS (default 1), with rates\n"
    "  -n, --count N          end after N refreshes\n"
    "  -h, --help, -V, --version\n"
    "Exit status: 0; 1 if no process was found (not with --json); 2 for a usage error.\n";

static void fail(const char *what, const char *text)
{
	fprintf(stderr, "vkrdma-stat: %s: %s (try --help)\n", what, text);
	exit(EXIT_USAGE);
}

static double positive(const char *option, const char *text, double max)
{
	char *end;
	double v = strtod(text, &end);

	if (end == text || *end || !(v > 0) || v > max)
		fail(option, text);
	return v;
}

/* The seconds after --watch may stand apart from it. */
static const char *optional_number(char **argv)
{
	if (!optarg && argv[optind] && strchr("0123456789.", argv[optind][0]) && argv[optind][0])
		return argv[optind++];
	return optarg;
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"pid", required_argument, NULL, 'p'},
	    {"json", no_argument, NULL, 'j'},
	    {"watch", optional_argument, NULL, 'w'},
	    {"count", required_argument, NULL, 'n'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	const char *text;
	int c;

	while ((c = getopt_long(argc, argv, "p:jw::n:hV", longs, NULL)) != -1) {
		switch (c) {
		case 'p':
			o->pid = (int)positive("--pid", optarg, 1 << 30);
			break;
		case 'j':
			o->json = true;
			break;
		case 'w':
			o->watch = true;
			text = optional_number(argv);
			if (text)
				o->seconds = positive("--watch", text, 86400);
			break;
		case 'n':
			o->count = (long)positive("--count", optarg, 1e9);
			break;
		case 'h':
			fputs(usage, stdout);
			exit(EXIT_FOUND);
		case 'V':
			puts("vkrdma-stat " VKRDMA_VERSION);
			exit(EXIT_FOUND);
		default:
			exit(EXIT_USAGE); /* getopt has said why */
		}
	}
	if (optind < argc)
		fail("unexpected argument", argv[optind]);
}

static void scan(const struct options *o, struct stat_snapshot *s)
{
	int rc = stat_scan(o->pid, s);

	if (rc < 0) {
		fprintf(stderr, "vkrdma-stat: cannot look at processes: %s\n", strerror(-rc));
		exit(EXIT_NOTHING);
	}
}

static void pause_ms(long ms)
{
	const struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

	nanosleep(&ts, NULL);
}

static bool has_rdma(const struct stat_snapshot *s)
{
	int i, k;

	for (i = 0; i < s->n; i++)
		for (k = 0; k < s->processes[i].n_conns; k++)
			if (s->processes[i].conns[k].transport == VKR_TRANSPORT_RDMA)
				return true;
	return false;
}

/* The second look tells which connections are idle. */
static int show_once(const struct options *o)
{
	struct stat_snapshot first, second;
	bool twice;
	int n;

	scan(o, &first);
	n = first.n;
	twice = !o->json && has_rdma(&first);
	if (o->json) {
		stat_json_print(stdout, &first, false);
	} else if (twice) {
		pause_ms(IDLE_PROBE_MS);
		scan(o, &second);
		stat_text_print(stdout, &second, &first, false, 0);
		stat_snapshot_free(&second);
	} else {
		stat_text_print(stdout, &first, NULL, false, 0);
	}
	stat_snapshot_free(&first);
	return n || o->json ? EXIT_FOUND : EXIT_NOTHING;
}

/* What a process needs beside its connections, shared out over the terminal's height. */
static int rows_for_each(const struct stat_snapshot *s)
{
	struct winsize w;

	if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) < 0 || w.ws_row == 0)
		return 20;
	return vkr_max(3, (w.ws_row - 2) / vkr_max(s->n, 1) - 9);
}

static int show_watch(const struct options *o)
{
	struct stat_snapshot now, before = {0};
	bool tty = isatty(STDOUT_FILENO);
	bool found = false;
	long i;

	for (i = 0; o->count == 0 || i < o->count; i++) {
		if (i)
			pause_ms((long)(o->seconds * 1000));
		scan(o, &now);
		found |= now.n > 0;
		if (o->json) {
			stat_json_print(stdout, &now, true);
		} else {
			fputs(tty ? "\033[H\033[J" : i ? "\n" : "", stdout);
			stat_text_print(stdout, &now, i ? &before : NULL, true, rows_for_each(&now));
		}
		if (fflush(stdout) != 0)
			break;
		stat_snapshot_free(&before);
		before = now;
	}
	stat_snapshot_free(&before);
	return found || o->json ? EXIT_FOUND : EXIT_NOTHING;
}

int main(int argc, char **argv)
{
	struct options o = {.seconds = 1};
	int rc;

	parse(argc, argv, &o);
	rc = o.watch ? show_watch(&o) : show_once(&o);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		perror("vkrdma-stat: standard output");
		return EXIT_NOTHING;
	}
	return rc;
}

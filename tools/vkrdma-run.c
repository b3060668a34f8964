/* SPDX-License-Identifier: BSD-2-Clause */
/* vkrdma-run: starts a program with libvkrdma in front of its libc. See vkrdma-run(1). */
#include "run.h"

#include "config.h"

#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_CANNOT_EXECUTE = 126, EXIT_NOT_FOUND = 127 };

static const char usage[] =
    "usage: vkrdma-run [OPTIONS] PROGRAM [ARGUMENTS...]\n"
    "       vkrdma-run --check [--soft]\n"
    "Runs PROGRAM so that the TCP connections of the given ports go over RDMA.\n"
    "  -l, --listen RULES    carry what is accepted on these ports: 6379, 6379-6389, 10.0.0.1:6379, *\n"
    "  -c, --connect RULES   carry connections to these ports: 6379, 10.0.0.0/8:6379, *\n"
    "  -s, --soft            software RDMA between processes of this machine (no device needed)\n"
    "  -f, --fallback WHAT   where RDMA fails: tcp (default) or none (the connect fails)\n"
    "  -L, --log LEVEL       none, error, warn (default), info or debug; LEVEL:FILE writes to a file\n"
    "      --check           tell whether RDMA works here, step by step, and what is missing\n"
    "  -h, --help, -V, --version\n"
    "RULES are separated by commas; libvkrdma(7) has all of them. vkrdma-stat shows what is carried.\n";

static VKR_PRINTF(1, 2) __attribute__((noreturn)) void fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("vkrdma-run: ", stderr);
	vfprintf(stderr, fmt, ap);
	fputc('\n', stderr);
	va_end(ap);
	exit(EXIT_USAGE);
}

static void set(const char *variable, const char *value)
{
	if (setenv(variable, value, 1) < 0)
		fail("%s: %s", variable, strerror(errno));
}

/* A repeated option adds to the list; the first one replaces what the environment says. */
static void add_rules(const char *variable, const char *rules, bool first)
{
	const char *before = first ? NULL : getenv(variable);
	char *joined = NULL;

	if (!*rules)
		fail("an empty list of ports (try --help)");
	if (!before) {
		set(variable, rules);
		return;
	}
	if (asprintf(&joined, "%s,%s", before, rules) < 0)
		fail("out of memory");
	set(variable, joined);
	free(joined);
}

struct options {
	bool check;
	bool listen, connect; /* given already */
};

/* Options end at the first word that is none: the program. */
static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
	    {"listen", required_argument, NULL, 'l'},
	    {"connect", required_argument, NULL, 'c'},
	    {"soft", no_argument, NULL, 's'},
	    {"fallback", required_argument, NULL, 'f'},
	    {"log", required_argument, NULL, 'L'},
	    {"check", no_argument, NULL, 'C'},
	    {"help", no_argument, NULL, 'h'},
	    {"version", no_argument, NULL, 'V'},
	    {NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "+l:c:sf:L:hV", longs, NULL)) != -1) {
		switch (c) {
		case 'l':
			add_rules("VKRDMA_LISTEN", optarg, !o->listen);
			o->listen = true;
			break;
		case 'c':
			add_rules("VKRDMA_CONNECT", optarg, !o->connect);
			o->connect = true;
			break;
		case 's':
			set("VKRDMA_PROVIDER", "soft");
			break;
		case 'f':
			set("VKRDMA_FALLBACK", optarg);
			break;
		case 'L':
			set("VKRDMA_LOG", optarg);
			break;
		case 'C':
			o->check = true;
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		case 'V':
			puts("vkrdma-run " VKRDMA_VERSION);
			exit(0);
		default:
			exit(EXIT_USAGE); /* getopt has said why */
		}
	}
}

int run_library_find(const char *name, char path[PATH_MAX])
{
	static const char *const beside[] = {"", VKRDMA_LIBDIR_FROM_BINDIR "/"};
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	size_t i;

	if (n > 0) {
		self[n] = '\0';
		*strrchr(self, '/') = '\0';
		for (i = 0; i < VKR_ARRAY_SIZE(beside); i++)
			if (snprintf(path, PATH_MAX, "%s/%s%s", self, beside[i], name) < PATH_MAX &&
			    !access(path, R_OK))
				return 0;
	}
	snprintf(path, PATH_MAX, "%s/%s", VKRDMA_LIBDIR, name);
	return access(path, R_OK) == 0 ? 0 : -ENOENT;
}

/* Whether a list as LD_PRELOAD (colons or blanks between) has the path. */
static bool list_has(const char *list, const char *path)
{
	size_t n = strlen(path);
	const char *at;

	for (at = list; (at = strstr(at, path)); at++)
		if ((at == list || strchr(": ", at[-1])) && (at[n] == '\0' || strchr(": ", at[n])))
			return true;
	return false;
}

static void preload(void)
{
	char path[PATH_MAX], real[PATH_MAX];
	const char *before = getenv("LD_PRELOAD");
	char *joined = NULL;

	if (run_library_find(RUN_LIBRARY, path) < 0)
		fail(RUN_LIBRARY " was not found beside this program nor in " VKRDMA_LIBDIR);
	if (!realpath(path, real))
		fail("%s: %s", path, strerror(errno));
	if (strpbrk(real, ": "))
		fail("%s cannot be preloaded: its path has a blank or a colon", real);
	if (!before || !*before) {
		set("LD_PRELOAD", real);
	} else if (!list_has(before, real)) {
		if (asprintf(&joined, "%s:%s", before, real) < 0)
			fail("out of memory");
		set("LD_PRELOAD", joined);
		free(joined);
	}
}

static const char *environment(const char *name)
{
	return getenv(name);
}

int main(int argc, char **argv)
{
	struct options o = {0};
	char text[512];
	int err;

	parse(argc, argv, &o);
	if (vkr_config_parse(&vkr_config, environment, text, sizeof(text)) < 0)
		fail("%s", text);
	if (o.check) {
		if (optind < argc)
			fail("--check takes no program (%s)", argv[optind]);
		return run_check(vkr_config.provider_soft);
	}
	if (optind == argc)
		fail("no program was given (try --help)");
	if (!vkr_config.active)
		fail("no port was given: use --listen PORT, --connect PORT or both (try --help)");
	preload();
	if (run_program_objections(argv[optind], text, sizeof(text)))
		fprintf(stderr, "vkrdma-run: warning: %s %s: its connections will stay on TCP\n", argv[optind], text);
	execvp(argv[optind], argv + optind);
	err = errno;
	fprintf(stderr, "vkrdma-run: %s: %s\n", argv[optind], strerror(err));
	return err == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
}

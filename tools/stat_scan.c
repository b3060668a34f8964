/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finding the maps: a process that has one mapped shows its name in /proc/PID/maps, and the file behind it is opened
 * through /proc/PID/fd.
 */
#include "stat.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAP_NAME "/memfd:vkrdma-stats"

/* Whether a file of /proc contains a line with the text. -errno where it cannot be read. */
static int proc_contains(int pid, const char *file, const char *text)
{
	char path[64], *line = NULL;
	size_t size = 0;
	int rc = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, file);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	errno = 0;
	while (rc == 0 && getline(&line, &size, f) > 0)
		rc = strstr(line, text) != NULL;
	if (rc == 0 && ferror(f))
		rc = errno ? -errno : -EIO;
	free(line);
	fclose(f);
	return rc;
}

/* Whether the process is known by `number` in one of the PID namespaces it is in. */
static bool pid_answers_to(int pid, int number)
{
	char path[64], *line = NULL, *at, *end;
	bool found = pid == number;
	size_t size = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	f = found ? NULL : fopen(path, "re");
	while (f && !found && getline(&line, &size, f) > 0) {
		if (strncmp(line, "NSpid:", 6) != 0)
			continue;
		for (at = line + 6; !found; at = end) {
			long n = strtol(at, &end, 10);

			if (end == at)
				break;
			found = n == number;
		}
	}
	free(line);
	if (f)
		fclose(f);
	return found;
}

static bool all_digits(const char *s)
{
	return *s && s[strspn(s, "0123456789")] == '\0';
}

/*
 * The process's own map among its descriptors. One that a fork left behind names another pid in its header and is
 * passed over. 0, -ENOENT, or why the one that was found could not be read.
 */
static int process_read(int pid, struct stat_process *p)
{
	char path[64], link[64];
	int dir, fd, rc = -ENOENT;
	struct dirent *e;
	ssize_t n;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	d = opendir(path);
	if (!d)
		return -errno;
	dir = dirfd(d);
	while (rc != 0 && (e = readdir(d))) {
		n = all_digits(e->d_name) ? readlinkat(dir, e->d_name, link, sizeof(link)) : 0;
		if (n < (ssize_t)strlen(MAP_NAME) || memcmp(link, MAP_NAME, strlen(MAP_NAME)) != 0)
			continue;
		fd = openat(dir, e->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		if (fd < 0) {
			rc = -errno;
			continue;
		}
		rc = stat_map_read(fd, p);
		close(fd);
		if (rc == 0 && !pid_answers_to(pid, p->map_pid)) {
			stat_process_free(p);
			rc = -ENOENT;
		}
	}
	closedir(d);
	p->pid = pid;
	return rc;
}

static int snapshot_add(struct stat_snapshot *s, int pid)
{
	struct stat_process p, *more;
	int rc = proc_contains(pid, "maps", MAP_NAME);

	if (rc > 0)
		rc = process_read(pid, &p);
	else if (rc == 0)
		return 0;
	if (rc == -EACCES || rc == -EPERM)
		s->denied++;
	else if (rc == -EBADMSG || rc == -EPROTO)
		s->unreadable++;
	if (rc < 0)
		return rc == -ENOMEM ? rc : 0;
	more = realloc(s->processes, (size_t)(s->n + 1) * sizeof(p));
	if (!more) {
		stat_process_free(&p);
		return -ENOMEM;
	}
	s->processes = more;
	s->processes[s->n++] = p;
	return 0;
}

static int by_pid(const void *a, const void *b)
{
	int x = ((const struct stat_process *)a)->pid, y = ((const struct stat_process *)b)->pid;

	return (x > y) - (x < y);
}

static int scan_all(struct stat_snapshot *s)
{
	struct dirent *e;
	int rc = 0;
	DIR *d = opendir("/proc");

	if (!d)
		return -errno;
	while (rc == 0 && (e = readdir(d)))
		if (all_digits(e->d_name))
			rc = snapshot_add(s, atoi(e->d_name));
	closedir(d);
	return rc;
}

int stat_scan(int pid, struct stat_snapshot *s)
{
	struct timespec ts;
	int rc;

	memset(s, 0, sizeof(*s));
	clock_gettime(CLOCK_REALTIME, &ts);
	s->time_ms = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
	rc = pid > 0 ? snapshot_add(s, pid) : scan_all(s);
	if (rc < 0)
		stat_snapshot_free(s);
	else if (s->n)
		qsort(s->processes, (size_t)s->n, sizeof(*s->processes), by_pid);
	return rc;
}

void stat_snapshot_free(struct stat_snapshot *s)
{
	int i;

	for (i = 0; i < s->n; i++)
		stat_process_free(&s->processes[i]);
	free(s->processes);
	s->processes = NULL;
	s->n = 0;
}

const struct stat_process *stat_process_find(const struct stat_snapshot *s, const struct stat_process *p)
{
	int i;

	for (i = 0; s && i < s->n; i++)
		if (s->processes[i].pid == p->pid && s->processes[i].start_ms == p->start_ms)
			return &s->processes[i];
	return NULL;
}

static int by_slot(const void *key, const void *item)
{
	const struct stat_conn *a = key, *b = item;

	return (a->slot > b->slot) - (a->slot < b->slot);
}

const struct stat_conn *stat_conn_find(const struct stat_process *p, const struct stat_conn *c)
{
	const struct stat_conn *found;

	if (!p || !p->n_conns)
		return NULL;
	found = bsearch(c, p->conns, (size_t)p->n_conns, sizeof(*c), by_slot);
	return found && found->generation == c->generation ? found : NULL;
}

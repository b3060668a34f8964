/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * select() and poll() on few descriptors and on many take no memory from malloc(): handlers may call them at any
 * moment, in the middle of another such call too, and each has its own answer. Threads that end, or are cancelled in
 * one, leave nothing behind.
 */
#include "conf.h"
#include <sys/mman.h>

#define SEEN __attribute__((visibility("default"))) /* by the libraries */
#define MANY 900                                    /* with what else is open fewer than FD_SETSIZE */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static _Thread_local bool counts;
static _Atomic int allocations;
static _Atomic long mapped;

SEEN void *malloc(size_t size)
{
	allocations += counts;
	return __libc_malloc(size);
}

SEEN void *calloc(size_t n, size_t size)
{
	allocations += counts;
	return __libc_calloc(n, size);
}

SEEN void *realloc(void *p, size_t size)
{
	allocations += counts;
	return __libc_realloc(p, size);
}

SEEN void *mmap(void *p, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *mem = (void *)syscall(SYS_mmap, p, size, prot, flags, fd, offset);

	allocations += counts;
	if (mem != MAP_FAILED)
		mapped += (long)size;
	return mem;
}

SEEN int munmap(void *p, size_t size)
{
	mapped -= (long)size;
	return (int)syscall(SYS_munmap, p, size);
}

static int ready_fd, other_fd, empty[2], number[MANY];
static _Atomic int handled;

/* Of n descriptors and the two sockets the one is readable. */
static void select_among(int n, int timeout_ms)
{
	struct timeval tv = {0, timeout_ms * 1000};
	fd_set r;
	int i, k;

	FD_ZERO(&r);
	FD_SET(ready_fd, &r);
	FD_SET(other_fd, &r);
	for (i = 0; i < n; i++)
		FD_SET(number[i], &r);
	do
		k = select(FD_SETSIZE, &r, NULL, NULL, &tv);
	while (k < 0 && errno == EINTR);
	CONF_EQ(k, 1);
	CONF_TRUE(FD_ISSET(ready_fd, &r) && !FD_ISSET(other_fd, &r));
	for (i = 0; i < n; i++)
		CONF_TRUE(!FD_ISSET(number[i], &r));
}

static void poll_among(int n)
{
	struct pollfd p[MANY + 2];
	int i, k;

	for (i = 0; i < n; i++)
		p[i] = (struct pollfd){number[i], POLLIN, 0};
	p[n] = (struct pollfd){ready_fd, POLLIN, 0};
	p[n + 1] = (struct pollfd){other_fd, POLLIN, 0};
	do
		k = poll(p, (nfds_t)n + 2, 0);
	while (k < 0 && errno == EINTR);
	CONF_EQ(k, 1);
	CONF_EVENTS(p[n].revents, POLLIN);
}

static void handler(int sig)
{
	int saved = errno;

	(void)sig;
	select_among(MANY / 2, 0);
	handled++;
	errno = saved;
}

static void no_allocation(void)
{
	static const int sizes[] = {0, 1, 40, 200, MANY};
	int i, k;

	for (i = (int)CONF_ARRAY_SIZE(sizes) - 1; i >= 0; i--) {
		conf_note("%d descriptors", sizes[i]);
		for (k = 0; k < 60; k++) {
			counts = k >= 10;
			select_among(sizes[i], k % 2);
			poll_among(sizes[i]);
		}
		counts = false;
		CONF_EQ(allocations, 0);
	}
}

static void *sleeper(void *arg)
{
	fd_set r;
	int i;

	(void)arg;
	FD_ZERO(&r);
	FD_SET(other_fd, &r);
	for (i = 0; i < MANY; i++)
		FD_SET(number[i], &r);
	for (i = 0; i < 20; i++) {
		CONF_ERR(select(FD_SETSIZE, &r, NULL, NULL, NULL), EINTR);
		CONF_TRUE(FD_ISSET(other_fd, &r) && FD_ISSET(number[MANY - 1], &r));
	}
	return NULL;
}

static void in_handlers(void)
{
	struct sigaction sa = {.sa_handler = handler};
	struct conf_thread t;

	conf_note("in handlers");
	sigemptyset(&sa.sa_mask);
	CONF_OK(sigaction(SIGALRM, &sa, NULL));
	conf_thread_start(&t, sleeper, NULL);
	for (handled = 0; handled < 20;) {
		int before = handled;

		conf_thread_asleep(&t);
		CONF_EQ(pthread_kill(t.thread, SIGALRM), 0);
		CONF_UNTIL(handled > before);
	}
	conf_thread_join(&t);
}

static void *ends(void *arg)
{
	fd_set r;

	(void)arg;
	select_among(MANY, 0);
	FD_ZERO(&r);
	FD_SET(other_fd, &r);
	for (int i = 0; i < MANY; i++)
		FD_SET(number[i], &r);
	if (arg)
		select(FD_SETSIZE, &r, NULL, NULL, NULL);
	return NULL;
}

static void in_threads(void)
{
	struct conf_thread t;
	long before = 0;
	int i;

	for (i = 0; i < 40; i++) {
		conf_note("thread %d", i);
		if (i == 4)
			before = mapped;
		conf_thread_start(&t, ends, i % 2 ? &t : NULL);
		if (i % 2) {
			conf_thread_asleep(&t);
			CONF_EQ(pthread_cancel(t.thread), 0);
		}
		CONF_TRUE(conf_thread_join(&t) == (i % 2 ? PTHREAD_CANCELED : NULL));
	}
	CONF_LE(mapped, before + 16384);
}

static void each(int a, int b)
{
	int i;

	ready_fd = b;
	other_fd = a;
	CONF_OK(pipe(empty));
	for (i = 0; i < MANY; i++)
		number[i] = (int)CONF_OK(dup(empty[0]));
	CONF_LE(number[MANY - 1], FD_SETSIZE - 1);
	conf_write_all(a, "x", 1);
	CONF_EVENTS(conf_poll1(b, POLLIN, CONF_PATIENCE_MS), POLLIN);
	no_allocation();
	in_handlers();
	in_threads();
	for (i = 0; i < MANY; i++)
		CONF_OK(close(number[i]));
	conf_close2(empty[0], empty[1]);
	conf_close2(a, b);
}

CONF_TEST(CONF_LONG)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* The library's own descriptors: moved up, remembered, moved again, closed by their owner and by nobody else. */
#include "unit.h"

#include "guard.h"
#include "libc_real.h"
#include "nofile.h"
#include "stats.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 4

static bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

static ino_t inode_of(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static int fresh(void)
{
	int fd = open("/dev/null", O_RDWR);

	assert_true(fd >= 0);
	return fd;
}

static uint64_t gauge(void)
{
	return vkr_load(&vkr_stats->library_fds);
}

static void test_moves_up(void **state)
{
	uint64_t before = gauge();
	int fd = fresh();
	int high;

	errno = 77;
	high = vkr_guard_fd(fd);
	assert_int_equal(errno, 77);
	assert_true(high > 255);
	assert_true(high < 65536);
	assert_false(is_open(fd));
	assert_int_equal(fcntl(high, F_GETFD), FD_CLOEXEC);
	assert_true(vkr_guard_has(high));
	assert_false(vkr_guard_has(fd));
	assert_int_equal(gauge(), before + 1);
	vkr_guard_close(high);
	assert_false(is_open(high));
	assert_false(vkr_guard_has(high));
	assert_int_equal(gauge(), before);
}

static void test_negative_and_foreign_numbers(void **state)
{
	int fd = fresh();

	assert_int_equal(vkr_guard_fd(-5), -5);
	assert_false(vkr_guard_has(-1));
	assert_false(vkr_guard_has(INT32_MIN));
	assert_false(vkr_guard_has(INT32_MAX));
	vkr_guard_mark(INT32_MAX);
	assert_false(vkr_guard_has(INT32_MAX));
	vkr_guard_mark(-1);
	vkr_guard_unmark(-1);
	vkr_guard_close(-1);
	vkr_guard_close(fd); /* not ours: stays */
	assert_true(is_open(fd));
	assert_int_equal(vkr_guard_evict(fd), 0);
	close(fd);
}

static void test_mark_and_unmark(void **state)
{
	uint64_t before = gauge();
	int fd = fresh();

	vkr_guard_mark(fd);
	vkr_guard_mark(fd);
	assert_int_equal(gauge(), before + 1);
	assert_true(vkr_guard_has(fd));
	assert_int_equal(vkr_guard_evict(fd), -EBUSY);
	assert_true(vkr_guard_has(fd));
	vkr_guard_unmark(fd);
	vkr_guard_unmark(fd);
	assert_int_equal(gauge(), before);
	assert_false(vkr_guard_has(fd));
	assert_true(is_open(fd));
	close(fd);
}

static void test_evict(void **state)
{
	int p[2], slot, old;

	assert_int_equal(pipe(p), 0);
	old = slot = vkr_guard_fd(p[0]);
	vkr_guard_slot(old, &slot);
	assert_int_equal(vkr_guard_evict(old), 0);
	assert_int_not_equal(slot, old);
	assert_true(vkr_guard_has(slot));
	assert_false(vkr_guard_has(old));
	assert_true(is_open(old)); /* until the dup2 that caused all this */
	assert_int_equal(inode_of(old), inode_of(slot));
	assert_int_equal(dup2(p[1], old), old);
	assert_int_equal(write(p[1], "x", 1), 1);
	/* a second time, and the slot still follows */
	old = slot;
	assert_int_equal(vkr_guard_evict(old), 0);
	assert_int_not_equal(slot, old);
	close(old);
	vkr_guard_close(slot);
	assert_false(is_open(slot));
	close(p[1]);
}

/* An owner reads its slot, then the number is moved, then the owner closes what it read. */
static void test_close_of_a_moved_number(void **state)
{
	int slot, old, app = fresh();

	old = slot = vkr_guard_fd(fresh());
	vkr_guard_slot(old, &slot);
	assert_int_equal(vkr_guard_evict(old), 0);
	assert_int_equal(dup2(app, old), old);
	vkr_guard_close(old);
	assert_true(is_open(old));
	assert_false(is_open(slot));
	assert_false(vkr_guard_has(slot));
	vkr_guard_close(old); /* and only once */
	assert_true(is_open(old));
	close(old);
	close(app);
}

/* The owner lets go of its slot, and uses it for another descriptor, while the number is being moved. */
static struct {
	int slot, old, next;
	bool closes;
} owner;

static int fcntl_meanwhile(int fd, int cmd, ...)
{
	va_list ap;
	int arg, n;

	va_start(ap, cmd);
	arg = va_arg(ap, int);
	va_end(ap);
	n = fcntl(fd, cmd, arg);
	if (cmd == F_DUPFD_CLOEXEC && fd == owner.old) {
		owner.slot = owner.next;
		if (owner.closes)
			vkr_guard_close(owner.old);
	}
	return n;
}

static void test_slot_released_meanwhile(void **state)
{
	__typeof__(vkr_real.fcntl) saved = vkr_real.fcntl;
	uint64_t before = gauge();

	for (int closes = 0; closes < 2; closes++) {
		int moved;

		owner.old = owner.slot = vkr_guard_fd(fresh());
		owner.next = vkr_guard_fd(fresh());
		owner.closes = closes;
		vkr_guard_slot(owner.old, &owner.slot);
		vkr_real.fcntl = fcntl_meanwhile;
		assert_int_equal(vkr_guard_evict(owner.old), 0);
		vkr_real.fcntl = saved;
		assert_int_equal(owner.slot, owner.next);
		assert_false(vkr_guard_has(owner.old));
		moved = vkr_guard_next(owner.next + 1);
		assert_int_equal(moved >= 0, !closes);
		if (!closes) {
			vkr_guard_close(owner.old); /* what it read before */
			assert_false(is_open(moved));
			close(owner.old);
		}
		vkr_guard_close(owner.next);
		assert_int_equal(gauge(), before);
	}
}

struct seen {
	int n, last;
	int fds[16];
};

static void see(int fd, void *arg)
{
	struct seen *s = arg;

	assert_true(fd > s->last);
	s->last = fd;
	if (s->n < 16)
		s->fds[s->n] = fd;
	s->n++;
}

static void close_it(int fd, void *arg)
{
	vkr_guard_close(fd);
}

static void test_next_and_each(void **state)
{
	/* marked only: no such descriptors need to be open. Edges of words and of leaves. */
	static const int fds[] = {0, 63, 64, 127, 32767, 32768, 100000, (1 << 25) - 1};
	struct seen s = {.last = -1};
	size_t i;

	assert_int_equal(vkr_guard_next(0), -1);
	assert_int_equal(vkr_guard_next(-7), -1);
	for (i = 0; i < VKR_ARRAY_SIZE(fds); i++)
		vkr_guard_mark(fds[i]);
	assert_int_equal(vkr_guard_next(-7), 0);
	assert_int_equal(vkr_guard_next(1), 63);
	assert_int_equal(vkr_guard_next(63), 63);
	assert_int_equal(vkr_guard_next(65), 127);
	assert_int_equal(vkr_guard_next(128), 32767);
	assert_int_equal(vkr_guard_next(32768), 32768);
	assert_int_equal(vkr_guard_next(32769), 100000);
	assert_int_equal(vkr_guard_next(100001), (1 << 25) - 1);
	assert_int_equal(vkr_guard_next(1 << 25), -1);
	assert_int_equal(vkr_guard_next(INT32_MAX), -1);
	vkr_guard_each(see, &s);
	assert_int_equal(s.n, VKR_ARRAY_SIZE(fds));
	for (i = 0; i < VKR_ARRAY_SIZE(fds); i++) {
		assert_int_equal(s.fds[i], fds[i]);
		vkr_guard_unmark(fds[i]);
	}
	assert_int_equal(vkr_guard_next(0), -1);
}

static void test_each_may_close(void **state)
{
	int i;

	for (i = 0; i < 100; i++)
		assert_true(vkr_guard_fd(fresh()) >= 0);
	vkr_guard_each(close_it, NULL);
	assert_int_equal(vkr_guard_next(0), -1);
	assert_int_equal(gauge(), 0);
}

static void test_soft_limit_below_the_high_numbers(void **state)
{
	struct rlimit before, low;
	int fd;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low = before;
	low.rlim_cur = 64;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	fd = vkr_guard_fd(fresh());
	assert_true(fd >= 32);
	assert_true(fd < 64);
	vkr_guard_close(fd);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

/* Last: what was raised stays raised. */
static void test_above_what_the_application_may_have(void **state)
{
	struct rlimit lim;
	int fd, n;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &lim), 0);
	lim.rlim_cur = 96;
	lim.rlim_max = 128;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &lim), 0);
	vkr_limits_raise();
	assert_int_equal(vkr_limits_app(), 96);
	assert_true(vkr_limits_allow(95));
	assert_false(vkr_limits_allow(96));
	for (n = 0; n < 32; n++)
		assert_int_equal(vkr_guard_spare(fresh()), 96 + n);
	/* The lower numbers are the application's: what can be done without is not had. */
	fd = fresh();
	assert_int_equal(vkr_guard_spare(fd), -EMFILE);
	assert_false(is_open(fd));
	fd = fresh();
	assert_int_equal(vkr_guard_fd(fd), fd);
	vkr_guard_close(fd);
	vkr_guard_each(close_it, NULL);
}

static void test_no_descriptor_left(void **state)
{
	struct rlimit before, low;
	int fds[64], n = 0, fd, slot;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
	low = before;
	low.rlim_cur = 32;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	while (n < 64 && (fd = open("/dev/null", O_RDWR)) >= 0)
		fds[n++] = fd;
	assert_true(n > 1 && n < 32);
	/* the original is kept, guarded and closed on exec */
	slot = fd = vkr_guard_fd(fds[n - 1]);
	assert_int_equal(fd, fds[n - 1]);
	assert_true(vkr_guard_has(fd));
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	/* and cannot move either: nothing is lost, and it can later */
	vkr_guard_slot(fd, &slot);
	assert_int_equal(vkr_guard_evict(fd), -EMFILE);
	assert_int_equal(slot, fd);
	assert_true(vkr_guard_has(fd));
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
	assert_int_equal(vkr_guard_evict(fd), 0);
	assert_int_not_equal(slot, fd);
	vkr_guard_close(slot);
	while (n > 0)
		close(fds[--n]);
}

/* Owner closes while somebody else evicts: in the end neither number is guarded and nothing of ours is open. */
struct race {
	int slot, fd;
	pthread_barrier_t barrier;
};

static void *evictor(void *arg)
{
	struct race *r = arg;

	pthread_barrier_wait(&r->barrier);
	vkr_guard_evict(r->fd);
	return NULL;
}

static void test_evict_races_with_close(void **state)
{
	struct race r;
	pthread_t t;
	int i;

	for (i = 0; i < 2000; i++) {
		r.fd = r.slot = vkr_guard_fd(fresh());
		vkr_guard_slot(r.fd, &r.slot);
		assert_int_equal(pthread_barrier_init(&r.barrier, NULL, 2), 0);
		assert_int_equal(pthread_create(&t, NULL, evictor, &r), 0);
		pthread_barrier_wait(&r.barrier);
		vkr_guard_close(__atomic_load_n(&r.slot, __ATOMIC_ACQUIRE));
		assert_int_equal(pthread_join(t, NULL), 0);
		pthread_barrier_destroy(&r.barrier);
		assert_int_equal(vkr_guard_next(0), -1);
		if (r.slot != r.fd)
			assert_false(is_open(r.slot));
		close(r.fd); /* the evicted number, had the application's dup2 come */
		assert_int_equal(gauge(), 0);
	}
}

static void *churn(void *arg)
{
	int i, fds[8], k;

	for (i = 0; i < 500; i++) {
		for (k = 0; k < 8; k++) {
			fds[k] = vkr_guard_fd(open("/dev/null", O_RDWR));
			if (fds[k] < 0 || !vkr_guard_has(fds[k]))
				return (void *)"a descriptor was lost";
		}
		for (k = 0; k < 8; k++)
			vkr_guard_close(fds[k]);
	}
	return NULL;
}

static void test_threads(void **state)
{
	pthread_t t[THREADS];
	void *trouble;
	int i;

	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, churn, NULL), 0);
	for (i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(t[i], &trouble), 0);
		assert_null(trouble);
	}
	assert_int_equal(vkr_guard_next(0), -1);
	assert_int_equal(gauge(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_moves_up),
	    cmocka_unit_test(test_negative_and_foreign_numbers),
	    cmocka_unit_test(test_mark_and_unmark),
	    cmocka_unit_test(test_evict),
	    cmocka_unit_test(test_close_of_a_moved_number),
	    cmocka_unit_test(test_slot_released_meanwhile),
	    cmocka_unit_test(test_next_and_each),
	    cmocka_unit_test(test_each_may_close),
	    cmocka_unit_test(test_soft_limit_below_the_high_numbers),
	    cmocka_unit_test(test_no_descriptor_left),
	    cmocka_unit_test(test_evict_races_with_close),
	    cmocka_unit_test(test_threads),
	    cmocka_unit_test(test_above_what_the_application_may_have),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

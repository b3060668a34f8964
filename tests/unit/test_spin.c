/* SPDX-License-Identifier: BSD-2-Clause */
/* Busy polling before a sleep, on a clock and an engine of the test's own: when it happens, and how long it takes. */
#include "unit.h"

#include "config.h"
#include "fdmap.h"
#include "rdma.h"
#include "spin.h"

#include <sched.h>
#include <string.h>

#define US 1000

struct vkr_config vkr_config;

static int64_t now = 1;
static int cpus, polls;
static int64_t answer_at; /* the time from which the stream is ready */

static int64_t step; /* what each look at the clock takes */
static _Atomic uint64_t word;

int64_t vkr_now_ns(void)
{
	now += step;
	if (now >= answer_at)
		vkr_store(&word, 1);
	return now;
}

int vkr_engine_poll(void)
{
	polls++;
	now += US;
	return 0;
}

/* Instead of libc's. */
int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *set)
{
	int i;

	(void)pid;
	memset(set, 0, size);
	for (i = 0; i < cpus; i++)
		CPU_SET(i, set);
	return 0;
}

static bool ready(void *arg)
{
	(void)arg;
	return now >= answer_at;
}

/* A wait whose answer comes after ns: a sleep has a cost of its own. Returns how many looks it took. */
static int wait_for(int64_t ns, bool rdma, int64_t left)
{
	struct vkr_spin s = {0};
	int before = polls;

	answer_at = now + ns;
	if (!vkr_spin(&s, ready, NULL, left))
		now = vkr_max(now, answer_at) + 10 * US;
	vkr_spin_done(&s, rdma);
	return polls - before;
}

static int setup(void **state)
{
	(void)state;
	vkr_config.poll_us = 50;
	while (wait_for(1000000, true, -1))
		; /* nothing is expected soon */
	return 0;
}

static void an_idle_thread_does_not_poll(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < 100; i++)
		assert_int_equal(wait_for(200 * US, true, -1), 0);
}

static void warm(void)
{
	int i;

	for (i = 0; i < 2000 && !wait_for(5 * US, true, -1); i++)
		;
	assert_true(i < 2000);
}

static void short_waits_are_polled_through(void **state)
{
	int i;

	(void)state;
	warm();
	for (i = 0; i < 100; i++)
		assert_int_equal(wait_for(20 * US, true, -1), 20);
}

static void a_poll_is_bounded_and_not_repeated_in_vain(void **state)
{
	int i, looks, run = 0, longest = 0, vain = 0;

	(void)state;
	warm();
	while (wait_for(20 * US, true, -1) != 20)
		;
	/* Just too long for the limit, and short enough to be expected: as when both sides share a processor. */
	for (i = 0; i < 5000; i++) {
		looks = wait_for(55 * US, true, -1);
		assert_true(looks == 0 || looks == 50);
		vain += looks != 0;
		run = looks ? 0 : run + 1;
		longest = vkr_max(longest, run);
	}
	assert_true(longest >= 1000);
	assert_true(vain < 20);
	/* It comes back, and what it pays is not held against it for ever. */
	warm();
	for (i = 0; i < 100; i++)
		wait_for(5 * US, true, -1);
	assert_int_equal(wait_for(55 * US, true, -1), 50);
	for (run = 0; !wait_for(5 * US, true, -1); run++)
		;
	assert_true(run < 4);
}

static void events_of_the_kernel_are_slept_for(void **state)
{
	int i, looks = 0;

	(void)state;
	warm();
	for (i = 0; i < 8; i++)
		wait_for(5 * US, false, -1);
	for (i = 0; i < 100; i++)
		looks += wait_for(5 * US, false, -1);
	assert_int_equal(looks, 0);
}

static void a_wait_shorter_than_the_limit_sleeps(void **state)
{
	(void)state;
	warm();
	assert_int_equal(wait_for(5 * US, true, 49 * US), 0);
	assert_int_equal(wait_for(5 * US, true, 51 * US), 5);
}

static void off(void **state)
{
	int i;

	(void)state;
	warm();
	vkr_config.poll_us = 0;
	for (i = 0; i < 100; i++)
		assert_int_equal(wait_for(5 * US, true, -1), 0);
}

/* A word that changes after ns; returns how long it was looked at. */
static int64_t watch_longer(int64_t ns, unsigned times)
{
	int64_t began = now;

	step = US;
	answer_at = now + ns;
	vkr_store(&word, 0);
	assert_true(vkr_spin_word(&word, 0, times) == (vkr_load(&word) != 0));
	step = 0;
	return now - began;
}

static int64_t watch_for(int64_t ns)
{
	return watch_longer(ns, 1);
}

/* For those who have much to lose; within bounds whatever they say. */
static void a_word_is_watched_longer(void **state)
{
	static const struct {
		unsigned times;
		int64_t answer, most;
	} tries[] = {{0, 30, 30},   {0, 60, 51},   {3, 140, 140}, {3, 160, 151},
		     {8, 390, 390}, {8, 500, 401}, {16, 500, 401}};
	size_t i;
	int n;

	(void)state;
	for (i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		/* What was in vain before may hold it back. */
		for (n = 0; n < 5000 && !watch_for(5 * US); n++)
			;
		for (n = 0; n < 20; n++)
			watch_for(5 * US);
		assert_in_range(watch_longer(tries[i].answer * US, tries[i].times),
				vkr_min(tries[i].answer, tries[i].most) * US, tries[i].most * US);
	}
}

static void a_word_is_watched_as_long_as_it_pays(void **state)
{
	int i, vain = 0;

	(void)state;
	for (i = 0; i < 100; i++)
		assert_int_equal(watch_for(20 * US), 20 * US);
	/* Nobody reads: the watching ends at its limit, and soon altogether. */
	for (i = 0; i < 5000; i++) {
		int64_t took = watch_for(1000 * US);

		assert_true(took <= 51 * US);
		vain += took > 0;
	}
	assert_in_range(vain, 1, 20);
	/* It comes back when somebody does. */
	for (i = 0; i < 2000 && !watch_for(5 * US); i++)
		;
	assert_true(i < 2000);
	for (i = 0; i < 100; i++)
		watch_for(5 * US);
	assert_int_equal(watch_for(20 * US), 20 * US);
	vkr_config.poll_us = 0;
	assert_int_equal(watch_for(20 * US), 0);
}

static int inner_looks;

static bool ready_with_another(void *arg)
{
	struct vkr_spin s = {0};
	int before = polls;

	(void)arg;
	assert_false(vkr_spin(&s, ready, NULL, -1));
	inner_looks += polls - before;
	return ready(NULL);
}

static void not_more_at_once_than_half_the_processors(void **state)
{
	struct vkr_spin s = {0};

	(void)state;
	warm();
	answer_at = now + 3 * US;
	assert_true(vkr_spin(&s, ready_with_another, NULL, -1));
	assert_int_equal(inner_looks, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test_setup(an_idle_thread_does_not_poll, setup),
	    cmocka_unit_test_setup(short_waits_are_polled_through, setup),
	    cmocka_unit_test_setup(a_poll_is_bounded_and_not_repeated_in_vain, setup),
	    cmocka_unit_test_setup(events_of_the_kernel_are_slept_for, setup),
	    cmocka_unit_test_setup(a_wait_shorter_than_the_limit_sleeps, setup),
	    cmocka_unit_test_setup(off, setup),
	    cmocka_unit_test_setup(a_word_is_watched_as_long_as_it_pays, setup),
	    cmocka_unit_test_setup(a_word_is_watched_longer, setup),
	    cmocka_unit_test_setup(not_more_at_once_than_half_the_processors, setup),
	};
	int i, looks = 0;

	(void)argv;
	vkr_config.poll_us = 50;
	if (argc > 1) { /* with one processor, nothing else: the number is read once */
		cpus = 1;
		for (i = 0; i < 100; i++)
			looks += wait_for(5 * US, true, -1);
		return looks != 0;
	}
	cpus = 2;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

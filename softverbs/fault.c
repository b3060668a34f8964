/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults on request: VKRDMA_SOFT_FAULT, see README.md. Read once.
 */
#include "soft.h"

#include <signal.h>

static struct {
	long create_qp, reg_mr, die_after, cq_error, delay_us, remove_ms;
	bool no_device, unreachable, memlock;
	unsigned unreachable_ms;
} f;

bool sv_faults;

static _Atomic long seen[4];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void parse_word(const char *w)
{
	const char *eq = strchr(w, '=');
	size_t n = eq ? (size_t)(eq - w) : strlen(w);
	long value = eq ? strtol(eq + 1, NULL, 10) : 0;

	if (!strncmp(w, "fail_create_qp", n) && n == 14)
		f.create_qp = value ? value : 1;
	else if (!strncmp(w, "fail_reg_mr", n) && n == 11)
		f.reg_mr = value ? value : 1;
	else if (!strncmp(w, "die_after", n) && n == 9)
		f.die_after = value;
	else if (!strncmp(w, "cq_error", n) && n == 8)
		f.cq_error = value ? value : 1;
	else if (!strncmp(w, "delay", n) && n == 5)
		f.delay_us = value;
	else if (!strncmp(w, "remove", n) && n == 6)
		f.remove_ms = value > 0 ? value : 1;
	else if (!strcmp(w, "memlock"))
		f.memlock = true;
	else if (!strncmp(w, "no_device", n) && n == 9)
		f.no_device = true;
	else if (!strncmp(w, "unreachable", n) && n == 11) {
		f.unreachable = true;
		f.unreachable_ms = value > 0 ? (unsigned)value : 1000;
	}
}

static void parse(void)
{
	const char *env = getenv("VKRDMA_SOFT_FAULT");
	char *copy = env ? strdup(env) : NULL, *save = NULL;

	for (char *w = copy ? strtok_r(copy, ",", &save) : NULL; w; w = strtok_r(NULL, ",", &save))
		parse_word(w);
	free(copy);
	sv_faults = env != NULL;
}

bool sv_fault_no_device(void)
{
	pthread_once(&once, parse);
	return f.no_device;
}

bool sv_fault_memlock(void)
{
	pthread_once(&once, parse);
	return f.memlock;
}

bool sv_fault_unreachable(unsigned *ms)
{
	pthread_once(&once, parse);
	*ms = f.unreachable_ms;
	return f.unreachable;
}

static void remove_fired(struct sv_timer *t)
{
	sv_ctx_each_fatal();
	sv_cm_removal();
}

/* Called as the process starts to use the device. */
void sv_fault_start(void)
{
	static struct sv_timer timer = {.fn = remove_fired};

	pthread_once(&once, parse);
	if (f.remove_ms)
		sv_timer_set(&timer, sv_now() + (uint64_t)f.remove_ms * 1000000);
}

/* The N-th call and all after it. */
static bool counted(enum sv_fault what, long n)
{
	return n && atomic_fetch_add(&seen[what], 1) + 1 >= n;
}

bool sv_fault_count(enum sv_fault what)
{
	switch (what) {
	case SV_FAULT_CREATE_QP:
		return counted(what, f.create_qp);
	case SV_FAULT_REG_MR:
		return counted(what, f.reg_mr);
	case SV_FAULT_CQ:
		return f.cq_error && atomic_fetch_add(&seen[what], 1) + 1 == f.cq_error;
	case SV_FAULT_POST:
		if (sv_unlikely(f.delay_us)) {
			struct timespec ts = {f.delay_us / 1000000, f.delay_us % 1000000 * 1000};

			nanosleep(&ts, NULL);
		}
		if (sv_unlikely(f.die_after) && counted(what, f.die_after))
			kill(getpid(), SIGKILL);
		return false;
	}
	return false;
}

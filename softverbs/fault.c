/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Faults on request: VKRDMA_SOFT_FAULT, see README.md. Read once; single words later by the private entry.
 */
#include "soft.h"

#include <fcntl.h>
#include <signal.h>

#define TIMED_MAX     8
#define SCRIPT_MS     50
#define SCRIPT_LENGTH 128 /* more than the longest word and its end */

static struct {
	long create_qp, max_qp, reg_mr, die_after, cq_error, delay_us, request_ms;
	long odds_qp, odds_cq, odds_mr, odds_post, late_us; /* one of so many; 0: none */
	bool no_device, memlock, loopback, cancel;
	_Atomic bool removed, unreachable, no_rtu;
	_Atomic long stale;
	unsigned unreachable_ms;
} f;

_Atomic bool sv_faults;

static _Atomic long seen[SV_FAULTS];
static _Atomic uint64_t dice; /* its first value is seed=N */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------------ what happens at a moment: no lock held */

static void qp_event(enum ibv_event_type type)
{
	struct sv_qp *qp = sv_qp_get(sv_proc.last_qp);

	if (!qp)
		return;
	sv_lock(&qp->rcq->outer);
	sv_lock(&qp->lock);
	if (type != IBV_EVENT_COMM_EST)
		sv_qp_set_err(qp);
	sv_async_raise(qp->ctx, type, &qp->ex.qp_base);
	sv_unlock(&qp->lock);
	sv_unlock(&qp->rcq->outer);
	sv_qp_put(qp);
}

static void cq_event(void)
{
	struct sv_cq *cq;

	pthread_mutex_lock(&sv_proc.lock);
	cq = sv_proc.cqs[sv_proc.last_cq];
	pthread_mutex_unlock(&sv_proc.lock);
	if (cq)
		sv_cq_overrun(cq);
}

static void do_cut(void)
{
	sv_link_set(SV_LINK_CUT);
	sv_ctx_each(IBV_EVENT_PORT_ERR);
}

static void do_down(void)
{
	sv_link_set(SV_LINK_DOWN);
	sv_ctx_each(IBV_EVENT_PORT_ERR);
}

static void do_join(void)
{
	sv_link_set(SV_LINK_UP);
	sv_ctx_each(IBV_EVENT_PORT_ACTIVE);
}

static void do_remove(void)
{
	sv_store(&f.removed, true);
	sv_link_set(SV_LINK_CUT);
	sv_ctx_gone(true);
	sv_ctx_each(IBV_EVENT_DEVICE_FATAL);
	sv_cm_removal();
}

/* As with a driver that cannot take objects from a process: the kernel waits until they are given back. */
static void do_unplug(void)
{
	sv_store(&f.removed, true);
	sv_ctx_gone(false);
	sv_cm_removal();
}

static void do_return(void)
{
	sv_store(&f.removed, false);
	sv_link_set(SV_LINK_UP);
}

static void do_no_rtu(void)
{
	sv_store(&f.no_rtu, true);
}

static void do_rtu(void)
{
	sv_store(&f.no_rtu, false);
}

static const struct action {
	const char *word;
	void (*run)(void);
	void (*event)(enum ibv_event_type type);
	enum ibv_event_type type;
} actions[] = {
    {"cut", do_cut, NULL, 0},
    {"down", do_down, NULL, 0},
    {"join", do_join, NULL, 0},
    {"remove", do_remove, NULL, 0},
    {"unplug", do_unplug, NULL, 0},
    {"return", do_return, NULL, 0},
    {"no_rtu", do_no_rtu, NULL, 0},
    {"rtu", do_rtu, NULL, 0},
    {"cq_err", cq_event, NULL, 0},
    {"qp_fatal", NULL, qp_event, IBV_EVENT_QP_FATAL},
    {"qp_req_err", NULL, qp_event, IBV_EVENT_QP_REQ_ERR},
    {"qp_access_err", NULL, qp_event, IBV_EVENT_QP_ACCESS_ERR},
    {"comm_est", NULL, qp_event, IBV_EVENT_COMM_EST},
    {"port_err", NULL, sv_ctx_each, IBV_EVENT_PORT_ERR},
    {"port_active", NULL, sv_ctx_each, IBV_EVENT_PORT_ACTIVE},
    {"device_fatal", NULL, sv_ctx_each, IBV_EVENT_DEVICE_FATAL},
    {"gid_change", NULL, sv_ctx_each, IBV_EVENT_GID_CHANGE},
};

static const struct action *action_find(const char *word, size_t n)
{
	for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++)
		if (strlen(actions[i].word) == n && !memcmp(actions[i].word, word, n))
			return &actions[i];
	return NULL;
}

static void action_run(const struct action *a)
{
	if (a->run)
		a->run();
	else
		a->event(a->type);
}

static struct timed {
	struct sv_timer timer;
	const struct action *action;
	long ms;
} timed[TIMED_MAX];
static int n_timed;

static void timed_fired(struct sv_timer *t)
{
	action_run(sv_container(t, struct timed, timer)->action);
}

/* ------------------------------------------------------------------ words */

static bool parse_word(const char *w);

/* A file to which others append words, a line each, that happen as they are found. */
static struct {
	struct sv_timer timer;
	char *path;
	off_t done;
} script;

static void word_now(const char *w)
{
	const struct action *a = action_find(w, strlen(w));

	if (a)
		action_run(a);
	else if (!parse_word(w))
		fprintf(stderr, "softverbs: %s: \"%s\" is unknown\n", script.path, w);
}

static void script_fired(struct sv_timer *t)
{
	char text[SCRIPT_LENGTH], *end, *w = text;
	int fd = open(script.path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1, script.done);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = 0;
	for (; (end = strchr(w, '\n')); w = end + 1) {
		*end = 0;
		script.done += end + 1 - w;
		word_now(w);
	}
	sv_timer_set(t, sv_now() + SCRIPT_MS * 1000000UL);
}

/* WORD@MS */
static bool parse_timed(const char *w)
{
	const char *at = strchr(w, '@');
	const struct action *a = action_find(w, at ? (size_t)(at - w) : strlen(w));

	if (!a || n_timed == TIMED_MAX)
		return false;
	timed[n_timed++] =
	    (struct timed){.timer = {.fn = timed_fired}, .action = a, .ms = at ? strtol(at + 1, NULL, 10) : 0};
	return true;
}

static const struct {
	const char *word;
	long *value;
	long without; /* its value where none is given */
} numbers[] = {
    {"fail_create_qp", &f.create_qp, 1}, {"fail_reg_mr", &f.reg_mr, 1},     {"die_after", &f.die_after, 0},
    {"cq_error", &f.cq_error, 1},        {"delay", &f.delay_us, 0},         {"slow_request", &f.request_ms, 0},
    {"odds_create_qp", &f.odds_qp, 2},   {"odds_create_cq", &f.odds_cq, 2}, {"odds_reg_mr", &f.odds_mr, 2},
    {"odds_post", &f.odds_post, 2},      {"late", &f.late_us, 1000},        {"max_qp", &f.max_qp, 1},
};

static bool parse_number(const char *w, size_t n, long value)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (strlen(numbers[i].word) != n || memcmp(numbers[i].word, w, n))
			continue;
		*numbers[i].value = value ? value : numbers[i].without;
		return true;
	}
	return false;
}

static bool parse_word(const char *w)
{
	const char *eq = strchr(w, '=');
	size_t n = eq ? (size_t)(eq - w) : strlen(w);
	long value = eq ? strtol(eq + 1, NULL, 10) : 0;

	if (parse_number(w, n, value)) {
	} else if (!strncmp(w, "seed", n) && n == 4) {
		sv_store(&dice, (uint64_t)value << 32);
	} else if (!strncmp(w, "stale", n) && n == 5) {
		sv_store(&f.stale, value ? value : 1);
	} else if (!strcmp(w, "cancel")) {
		f.cancel = true;
	} else if (!strcmp(w, "memlock")) {
		f.memlock = true;
	} else if (!strcmp(w, "no_loopback")) {
		f.loopback = true;
	} else if (!strncmp(w, "no_device", n) && n == 9) {
		f.no_device = true;
	} else if (!strcmp(w, "absent")) {
		sv_store(&f.removed, true);
	} else if (!strncmp(w, "script=", 7)) {
		script.path = strdup(w + 7);
	} else if (!strncmp(w, "unreachable", n) && n == 11) {
		f.unreachable_ms = value > 0 ? (unsigned)value : 1000;
		sv_store_rel(&f.unreachable, true);
	} else {
		return false;
	}
	sv_store(&sv_faults, true);
	return true;
}

static void parse(void)
{
	const char *env = getenv("VKRDMA_SOFT_FAULT");
	char *copy = env ? strdup(env) : NULL, *save = NULL;

	for (char *w = copy ? strtok_r(copy, ",", &save) : NULL; w; w = strtok_r(NULL, ",", &save))
		if (!parse_word(w) && !parse_timed(w))
			fprintf(stderr, "softverbs: VKRDMA_SOFT_FAULT: \"%s\" is unknown\n", w);
	free(copy);
}

int sv_fault_now(const char *word)
{
	const struct action *a = action_find(word, strlen(word));

	pthread_once(&once, parse);
	if (a)
		action_run(a);
	else if (!parse_word(word))
		return -EINVAL;
	return 0;
}

/* Called as the process starts to use the device, under sv_proc.lock. */
void sv_fault_start(void)
{
	pthread_once(&once, parse);
	for (int i = 0; i < n_timed; i++) {
		timed[i].timer = (struct sv_timer){.fn = timed_fired}; /* a forked child starts anew */
		sv_timer_set(&timed[i].timer, sv_now() + (uint64_t)timed[i].ms * 1000000);
	}
	if (script.path) {
		script.timer = (struct sv_timer){.fn = script_fired};
		script.done = 0;
		sv_timer_set(&script.timer, sv_now());
	}
}

/* ------------------------------------------------------------------ questions */

bool sv_fault_no_device(void)
{
	pthread_once(&once, parse);
	return f.no_device || sv_load(&f.removed);
}

bool sv_fault_cancels(void)
{
	pthread_once(&once, parse);
	return f.cancel;
}

bool sv_fault_memlock(void)
{
	pthread_once(&once, parse);
	return f.memlock;
}

bool sv_fault_loopback(void)
{
	pthread_once(&once, parse);
	return f.loopback;
}

bool sv_fault_unreachable(unsigned *ms)
{
	pthread_once(&once, parse);
	*ms = f.unreachable_ms;
	return sv_load_acq(&f.unreachable);
}

void sv_fault_request(void)
{
	struct timespec ts = {f.request_ms / 1000, f.request_ms % 1000 * 1000000};

	if (f.request_ms)
		nanosleep(&ts, NULL);
}

bool sv_fault_stale(void)
{
	return sv_load(&f.stale) > 0 && atomic_fetch_sub(&f.stale, 1) > 0;
}

bool sv_fault_no_rtu(void)
{
	return sv_load(&f.no_rtu);
}

/* The next number of the sequence that seed=N names; threads share it, so that each may have another one next time. */
static uint64_t roll(void)
{
	uint64_t x = atomic_fetch_add(&dice, 1) * 0x9e3779b97f4a7c15ull;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static bool unlucky(long odds)
{
	return odds && roll() % (uint64_t)odds == 0;
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
		return counted(what, f.create_qp) || unlucky(f.odds_qp) || (f.max_qp && sv_qp_count() >= f.max_qp);
	case SV_FAULT_CREATE_CQ:
		return unlucky(f.odds_cq);
	case SV_FAULT_REG_MR:
		return counted(what, f.reg_mr) || unlucky(f.odds_mr);
	case SV_FAULT_CQ:
		return f.cq_error && atomic_fetch_add(&seen[what], 1) + 1 == f.cq_error;
	case SV_FAULT_CANCEL:
		if (f.cancel)
			pthread_testcancel();
		return false;
	case SV_FAULT_POST:
		if (sv_unlikely(f.delay_us)) {
			struct timespec ts = {f.delay_us / 1000000, f.delay_us % 1000000 * 1000};

			nanosleep(&ts, NULL);
		}
		if (sv_unlikely(f.die_after) && counted(what, f.die_after))
			kill(getpid(), SIGKILL);
		return unlucky(f.odds_post);
	case SV_FAULTS:
		break;
	}
	return false;
}

uint64_t sv_fault_late(void)
{
	if (sv_likely(!sv_load(&sv_faults)) || !f.late_us)
		return 0;
	/* Every other one is in time. */
	return roll() % 2 ? sv_now() + roll() % (uint64_t)f.late_us * 1000 : 0;
}

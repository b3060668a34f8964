/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The progress thread does what the kernel does for TCP while the application is busy or asleep elsewhere: connection
 * management, timers, receive reposting, early refresh. It has two modes:
 *
 * TICK   while application threads poll. Every 2 ms it looks whether one polled since the last tick or sleeps in our
 *        wait; only if none did it drains the completion queues itself. Completions do not wake it.
 * GUARD  after some ticks without a poll (all threads asleep: 40 ms; the application busy or blocked elsewhere: 10 ms).
 *        It sleeps without a tick on the completion channels, counted as a sleeper, so an idle process costs nothing.
 * An event takes it back to TICK when application threads poll again; else it stays and serves each event.
 *
 * No wake-up is lost: in GUARD it follows the sleep protocol of engine.c to the letter (counted, armed, polled, then
 * asleep; each event it reads is followed by arm and poll while it is still counted). In TICK it is not counted and
 * relies on nothing but the clock. A thread that polls without sleeping takes completions itself; the arming that GUARD
 * left behind makes the next of them an event, which brings the thread to TICK. A thread that sleeps in our wait is
 * woken by the same event, or by its stream's watch when this thread was first.
 *
 * What a call of the application begins and what needs no waiting is done in that call, where nobody else is at work:
 * vkr_progress_enter() makes its thread the progress thread until vkr_progress_leave(), with turn_lock in hand as the
 * progress thread has it whenever it does not sleep. So "the progress thread" means everywhere: one thread at a time.
 *
 * With softverbs it is also the provider's background thread (loop_own() in softverbs.h): a handshake takes one wake-up
 * a message.
 */
#include "engine.h"

#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "socket.h"

#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <utlist.h>

#define TICK_NS            (2 * VKR_MS)
#define GUARD_TICKS        5
#define GUARD_TICKS_ASLEEP 20

static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static struct vkr_task *work;
static bool kicked; /* work lock: the eventfd has been written and not read */
static struct vkr_timer *timers;
static int kick_fd = -1;
static struct vkr_progress_source source;
static struct vkr_progress_source above; /* work lock; of the socket layers */
static VKR_TLS bool is_progress;
/* Held by whoever does the progress thread's work; the outermost lock, and only ever tried by others. */
static pthread_mutex_t turn_lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t asleep_until; /* turn lock */
static bool at_work;         /* turn lock: the thread has begun, softverbs' own has ended */

static struct {
	bool guard;
	int idle_ticks;
	int64_t next_tick;
} mode;

int64_t vkr_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

bool vkr_progress_self(void)
{
	return is_progress;
}

/* ------------------------------------------------------------------ tasks and timers */

/* work lock held. */
static void kick_locked(void)
{
	uint64_t one = 1;
	int cancel;

	if (kicked || kick_fd < 0 || is_progress)
		return;
	kicked = true;
	/* write() is a cancellation point and the caller holds locks. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	vkr_depth++;
	if (vkr_real.write(kick_fd, &one, sizeof(one)) < 0)
		kicked = false;
	vkr_depth--;
	pthread_setcancelstate(cancel, NULL);
}

void vkr_progress_kick(void)
{
	int err = errno;

	pthread_mutex_lock(&work_lock);
	kick_locked();
	pthread_mutex_unlock(&work_lock);
	errno = err;
}

void vkr_engine_watch(int (*fd)(void), void (*readable)(void))
{
	pthread_mutex_lock(&work_lock);
	above = (struct vkr_progress_source){fd, readable, NULL};
	kick_locked();
	pthread_mutex_unlock(&work_lock);
}

void vkr_task_queue(struct vkr_task *task)
{
	int err = errno;

	pthread_mutex_lock(&work_lock);
	if (!task->queued) {
		task->queued = true;
		DL_APPEND(work, task);
		kick_locked();
	}
	pthread_mutex_unlock(&work_lock);
	errno = err;
}

void vkr_task_cancel(struct vkr_task *task)
{
	pthread_mutex_lock(&work_lock);
	if (task->queued) {
		DL_DELETE(work, task);
		task->queued = false;
	}
	pthread_mutex_unlock(&work_lock);
}

static struct vkr_task *task_take(void)
{
	struct vkr_task *task;

	pthread_mutex_lock(&work_lock);
	task = work;
	if (task) {
		DL_DELETE(work, task);
		task->queued = false;
	}
	pthread_mutex_unlock(&work_lock);
	return task;
}

void vkr_timer_set(struct vkr_timer *timer, int64_t due)
{
	timer->due = due;
	if (!timer->armed) {
		timer->armed = true;
		DL_APPEND(timers, timer);
	}
}

void vkr_timer_cancel(struct vkr_timer *timer)
{
	if (timer->armed) {
		timer->armed = false;
		DL_DELETE(timers, timer);
	}
}

/* Runs what is due; the time of the next one, or INT64_MAX. A run may set or cancel any timer, so the walk starts anew.
 */
static int64_t timers_run(int64_t now)
{
	struct vkr_timer *t;
	int64_t next;

restart:
	next = INT64_MAX;
	DL_FOREACH (timers, t) {
		if (t->due <= now) {
			vkr_timer_cancel(t);
			t->run(t);
			goto restart;
		}
		next = vkr_min(next, t->due);
	}
	return next;
}

static bool tasks_pending(void)
{
	bool pending;

	pthread_mutex_lock(&work_lock);
	pending = work != NULL;
	pthread_mutex_unlock(&work_lock);
	return pending;
}

static void tasks_run(void)
{
	struct vkr_task *task;

	while ((task = task_take()))
		task->run(task);
}

/* ------------------------------------------------------------------ modes */

static void guard_enter(void)
{
	mode.guard = true;
	atomic_store(&vkr_engine_polled, false);
	vkr_engine_sleep_begin();
	/* Our own arming poll is not the application's. */
	atomic_store(&vkr_engine_polled, false);
}

static void guard_leave(int64_t now)
{
	mode.guard = false;
	mode.idle_ticks = 0;
	mode.next_tick = now + TICK_NS;
	vkr_engine_sleep_end();
}

static void tick(int64_t now)
{
	int asleep = atomic_load(&vkr_engine_sleepers);

	mode.next_tick = now + TICK_NS;
	if (atomic_exchange(&vkr_engine_polled, false)) {
		mode.idle_ticks = 0;
		return;
	}
	if (!asleep)
		vkr_engine_drain();
	if (++mode.idle_ticks >= (asleep ? GUARD_TICKS_ASLEEP : GUARD_TICKS))
		guard_enter();
}

/* ------------------------------------------------------------------ the thread */

#define FIXED_FDS 4

static int fill_fds(struct pollfd *p, int *n_devs)
{
	int i, n = FIXED_FDS;

	*n_devs = atomic_load(&vkr_n_devices);
	p[0] = (struct pollfd){.fd = kick_fd, .events = POLLIN};
	p[1] = (struct pollfd){.fd = source.fd ? source.fd() : -1, .events = POLLIN};
	p[3] = (struct pollfd){.fd = vkr_verbs.soft ? vkr_verbs.soft->loop_fd() : -1, .events = POLLIN};
	pthread_mutex_lock(&work_lock);
	p[2] = (struct pollfd){.fd = above.fd ? above.fd() : -1, .events = POLLIN};
	pthread_mutex_unlock(&work_lock);
	for (i = 0; i < *n_devs; i++) {
		const struct vkr_device *dev = vkr_devices[i];

		p[n++] = (struct pollfd){.fd = dev->verbs ? dev->verbs->async_fd : -1, .events = POLLIN};
		p[n++] = (struct pollfd){.fd = mode.guard ? vkr_load(&dev->channel_fd) : -1, .events = POLLIN};
	}
	return n;
}

static void kick_read(void)
{
	uint64_t n;

	pthread_mutex_lock(&work_lock);
	kicked = false;
	if (vkr_real.read(kick_fd, &n, sizeof(n)) < 0 && errno != EAGAIN)
		vkr_error("the progress thread's event descriptor is gone");
	pthread_mutex_unlock(&work_lock);
}

static void channel_event(int fd, int64_t now)
{
	vkr_engine_event(fd);
	if (mode.guard && atomic_load(&vkr_engine_polled))
		guard_leave(now);
}

static void wait_and_serve(int64_t until)
{
	struct pollfd p[FIXED_FDS + 2 * VKR_MAX_DEVICES];
	struct timespec ts, *timeout = NULL;
	int64_t now = vkr_now_ns();
	int i, n, n_devs, r;

	if (vkr_verbs.soft)
		until = (int64_t)vkr_min((uint64_t)until, vkr_verbs.soft->loop_due());
	if (until != INT64_MAX) {
		int64_t left = vkr_max(until - now, 0);

		ts = (struct timespec){.tv_sec = left / 1000000000, .tv_nsec = left % 1000000000};
		timeout = &ts;
	}
	n = fill_fds(p, &n_devs);
	asleep_until = until;
	pthread_mutex_unlock(&turn_lock);
	r = vkr_real.ppoll(p, (nfds_t)n, timeout, NULL);
	pthread_mutex_lock(&turn_lock);
	if (vkr_verbs.soft && ((r > 0 && p[3].revents) || vkr_verbs.soft->loop_due() <= (uint64_t)vkr_now_ns()))
		vkr_verbs.soft->loop_run();
	if (r <= 0)
		return;
	if (p[0].revents)
		kick_read();
	if (p[1].revents)
		source.readable();
	if (p[2].revents)
		above.readable();
	for (i = 0; i < n_devs; i++) {
		/* Unless another thread has ended it meanwhile. */
		if (p[FIXED_FDS + 2 * i].revents && vkr_devices[i]->verbs)
			vkr_device_async(vkr_devices[i]);
		if (p[FIXED_FDS + 2 * i + 1].revents)
			channel_event(p[FIXED_FDS + 2 * i + 1].fd, vkr_now_ns());
	}
}

static void *progress_main(void *arg)
{
	int64_t now, next;

	(void)arg;
	is_progress = true;
	vkr_depth = 1;
	pthread_mutex_lock(&turn_lock);
	if (vkr_verbs.soft)
		vkr_verbs.soft->loop_own();
	at_work = true;
	mode.next_tick = vkr_now_ns() + TICK_NS;
	for (;;) {
		tasks_run();
		now = vkr_now_ns();
		next = timers_run(now);
		if (!mode.guard && mode.next_tick <= now)
			tick(now);
		if (!mode.guard)
			next = vkr_min(next, mode.next_tick);
		if (source.pending && source.pending()) {
			source.readable();
			continue;
		}
		/* What timers and the tick queued from this thread wrote no kick. */
		wait_and_serve(tasks_pending() ? now : next);
	}
	return NULL;
}

/* ------------------------------------------------------------------ standing in for it */

bool vkr_progress_enter(struct vkr_turn *turn)
{
	sigset_t all;

	if (is_progress || !vkr_engine_running() || pthread_mutex_trylock(&turn_lock))
		return false;
	if (!at_work) {
		pthread_mutex_unlock(&turn_lock);
		return false;
	}
	turn->err = errno;
	/* A handler could leave by longjmp(), or call us. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &turn->signals);
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &turn->cancel);
	vkr_depth++;
	is_progress = true;
	if (vkr_verbs.soft)
		vkr_verbs.soft->loop_lend(1);
	return true;
}

void vkr_progress_catch_up(void)
{
	if (vkr_verbs.soft)
		vkr_verbs.soft->loop_run();
	source.readable();
	vkr_engine_poll();
	tasks_run();
}

void vkr_progress_leave(struct vkr_turn *turn)
{
	int64_t next = INT64_MAX;
	struct vkr_timer *t;

	do {
		tasks_run();
		if (source.pending && source.pending())
			source.readable();
	} while (tasks_pending() || (source.pending && source.pending()));
	DL_FOREACH (timers, t)
		next = vkr_min(next, t->due);
	if (vkr_verbs.soft) {
		next = (int64_t)vkr_min((uint64_t)next, vkr_verbs.soft->loop_due());
		vkr_verbs.soft->loop_lend(0);
	}
	is_progress = false;
	if (next < asleep_until) {
		asleep_until = next;
		vkr_progress_kick();
	}
	pthread_mutex_unlock(&turn_lock);
	vkr_depth--;
	pthread_setcancelstate(turn->cancel, NULL);
	pthread_sigmask(SIG_SETMASK, &turn->signals, NULL);
	errno = turn->err;
}

void vkr_task_now(struct vkr_task *task)
{
	struct vkr_turn turn;
	bool entered = vkr_progress_enter(&turn);

	vkr_task_queue(task);
	if (entered)
		vkr_progress_leave(&turn);
}

int vkr_progress_start(const struct vkr_progress_source *src)
{
	pthread_attr_t attr;
	sigset_t all, old;
	pthread_t thread;
	int ret;

	source = *src;
	kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (kick_fd < 0)
		return -errno;
	kick_fd = vkr_guard_fd(kick_fd);
	memset(&mode, 0, sizeof(mode));
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 512 * 1024);
	/* Signals are the application's; the new thread inherits the mask. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	ret = pthread_create(&thread, &attr, progress_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (ret) {
		vkr_guard_close(kick_fd);
		kick_fd = -1;
		return -ret;
	}
	pthread_setname_np(thread, "vkrdma");
	return 0;
}

/* ------------------------------------------------------------------ fork */

void vkr_progress_lock(void)
{
	pthread_mutex_lock(&work_lock);
}

void vkr_progress_unlock(void)
{
	pthread_mutex_unlock(&work_lock);
}

void vkr_progress_forked(void)
{
	pthread_mutex_init(&work_lock, NULL);
	pthread_mutex_init(&turn_lock, NULL);
	at_work = false;
	work = NULL;
	timers = NULL;
	kicked = false;
	kick_fd = -1;
	above = (struct vkr_progress_source){NULL, NULL, NULL};
	is_progress = false;
}

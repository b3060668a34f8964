/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * epoll over a mix of kernel and carried descriptors.
 *
 * A set that holds something the kernel knows nothing of ("mixed") gets an eventfd and the engine's completion
 * channels, registered in the application's own kernel set under the address of a marker here. Kernel descriptors stay
 * native. Carried sockets are items of ours with a watch on their stream: a watch that fires puts the item on the set's
 * ready list, a wait takes items from that list and looks at the stream's state, so readiness is always state.
 * Level-triggered items stay on the list while they are ready.
 *
 * Lost wake-ups: a waiter arms the CQs and polls (vkr_engine_sleep_begin), counts itself asleep under the set's lock,
 * looks at the ready list once more, and only then sleeps. Whoever fires a watch looks at the count under the same
 * lock, after it has put the item on the list. tests/model holds the model of it.
 */
#include "epset.h"
#include "guard.h"
#include "libc_raw.h"
#include "libc_real.h"
#include "log.h"
#include "plain_wait.h"
#include "sock.h"
#include "socket.h"
#include "spin.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utlist.h>

#define KERNEL_EVERY_NS 50000 /* how long ready streams may keep a wait from asking the kernel */

static bool others_sleep(struct vkr_epset *set)
{
	return vkr_load(&set->sleepers) || atomic_load(&set->in_kernel);
}

/* True: somebody who sleeps was meant, and is to be woken once more by efd_renew(). */
static bool efd_drain(struct vkr_epset *set)
{
	bool others;
	uint64_t n;

	pthread_mutex_lock(&set->lock);
	if (VKR_RAW(SYS_read, set->efd, &n, sizeof(n)) == sizeof(n) || set->signaled)
		set->signaled = false;
	others = vkr_load(&set->n_ready) && others_sleep(set);
	pthread_mutex_unlock(&set->lock);
	return others;
}

static void efd_renew(struct vkr_epset *set)
{
	uint64_t one = 1;

	pthread_mutex_lock(&set->lock);
	set->signaled = true;
	pthread_mutex_unlock(&set->lock);
	VKR_RAW(SYS_write, set->efd, &one, sizeof(one));
}

/* ------------------------------------------------------------------ collecting */

struct collect {
	struct epoll_event *evs;
	int n, max;
	struct vkr_sock *settle[8]; /* held: attempts that have ended */
	int n_settle;
	bool claimed; /* a dual with EPOLLONESHOT */
};

/* set->lock held. True: the item stays on the list. */
static inline bool collect_item(struct vkr_item *it, struct collect *c)
{
	struct vkr_sock *s = (struct vkr_sock *)it->file;
	uint32_t ready;

	if (vkr_likely(it->file->kind == VKR_KIND_SOCK && vkr_load_acq(&s->state) == VKR_SOCK_CARRIED)) {
		ready = vkr_ready_bits(vkr_pollable_ready(vkr_stream_pollable(s->stream)));
	} else if (vkr_attempt_ended(it->file)) {
		/* Settling looks at its items again (vkr_items_recheck, vkr_items_to_kernel). */
		if (c->n_settle == (int)VKR_ARRAY_SIZE(c->settle))
			return true;
		vkr_file_hold(it->file);
		c->settle[c->n_settle++] = s;
		return false;
	} else {
		ready = vkr_file_ready(it->file);
	}
	ready &= vkr_item_wants(it);
	if (!ready)
		return false; /* the next edge brings it back */
	c->evs[c->n].events = ready;
	c->evs[c->n++].data.u64 = it->data;
	if (it->events & EPOLLONESHOT) {
		it->disabled = true;
		c->claimed |= it->dual;
	}
	return !(it->events & (EPOLLONESHOT | EPOLLET)); /* level-triggered */
}

/* set->lock held. */
static void collect_ready(struct vkr_epset *set, struct collect *c)
{
	struct vkr_item *it, *next;

	for (it = set->ready; it && c->n < c->max; it = next) {
		next = it->ready_next;
		if (!collect_item(it, c))
			vkr_ready_del(set, it);
	}
	/* Who had no room comes first the next time, so that everyone has a turn. */
	if (it)
		vkr_ready_turn(set, it);
}

static int collect(struct vkr_epset *set, struct epoll_event *evs, int max)
{
	struct collect c = {.evs = evs, .max = max};
	int i;

	do {
		if (!vkr_load(&set->n_ready))
			return c.n;
		c.n_settle = 0;
		pthread_mutex_lock(&set->lock);
		collect_ready(set, &c);
		pthread_mutex_unlock(&set->lock);
		for (i = 0; i < c.n_settle; i++) {
			vkr_sock_settle(c.settle[i]);
			vkr_sock_put(c.settle[i]);
		}
	} while (c.n_settle && !c.n);
	if (vkr_unlikely(c.claimed))
		vkr_items_claimed(set);
	return c.n;
}

/* ------------------------------------------------------------------ the kernel's half */

/* left: ns, negative for ever. */
static int real_epoll_wait(int epfd, struct epoll_event *evs, int max, int64_t left, const sigset_t *mask)
{
	struct timespec ts;
	int r, ms = left < 0 ? -1 : (int)vkr_min(left / 1000000, (int64_t)INT32_MAX);

	if (left <= 0 || left == ms * 1000000ll) {
		r = vkr_real.epoll_pwait(epfd, evs, max, ms, mask);
	} else {
		ts = (struct timespec){left / 1000000000, left % 1000000000};
		r = vkr_real.epoll_pwait2(epfd, evs, max, &ts, mask);
		if (r < 0 && errno == ENOSYS)
			r = vkr_real.epoll_pwait(epfd, evs, max, ms < INT32_MAX ? ms + 1 : ms, mask);
	}
	return r < 0 ? -errno : r;
}

/* Takes our markers out of what the kernel returned, and does what they ask. */
static int strip_markers(struct vkr_epset *set, struct epoll_event *evs, int n)
{
	int fds[VKR_MAX_DEVICES], nfds = -1, i, out = 0;
	uint64_t which;

	for (i = 0; i < n; i++) {
		which = evs[i].data.u64 - (uint64_t)(uintptr_t)vkr_markers;
		if (vkr_likely(which >= sizeof(vkr_markers))) {
			evs[out++] = evs[i];
			continue;
		}
		if (which == 0) {
			efd_drain(set); /* the caller takes what is there, and leave_rest() tells others of the rest */
			continue;
		}
		if (nfds < 0)
			nfds = vkr_engine_fds(fds);
		if ((int)which <= nfds)
			vkr_engine_event(fds[which - 1]);
	}
	return out;
}

/*
 * A set inside this one is readable in the kernel's eyes also when only a marker of ours is: look again once the
 * markers have been dealt with.
 */
#define IN_BITS     (EPOLLIN | EPOLLRDNORM)
#define DRAIN_TRIES 8 /* then a stream of completions counts as readiness */
#define INNER_MAX   8 /* as deep as the kernel nests is 4; wide sets of sets are looked at in part, and reported */

/* Completion events that nobody has taken make every set that holds a channel readable. True: there were some. */
static bool channels_drain(void)
{
	struct pollfd p[VKR_MAX_DEVICES];
	int fds[VKR_MAX_DEVICES], n = vkr_engine_fds(fds), i;

	for (i = 0; i < n; i++)
		p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	if (n == 0 || vkr_poll_now(p, (nfds_t)n) <= 0)
		return false;
	for (i = 0; i < n; i++)
		if (p[i].revents)
			vkr_engine_event(fds[i]);
	return true;
}

/* The kernel's word, when no completion event has come since the channels were drained. */
static bool readable_without_channels(struct pollfd *p)
{
	bool readable;
	int tries = 0;

	do
		readable = vkr_poll_now(p, 1) > 0;
	while (readable && tries++ < DRAIN_TRIES && channels_drain());
	return readable;
}

bool vkr_epset_ready(struct vkr_epset *set)
{
	struct vkr_epset *inner[INNER_MAX];
	struct pollfd p = {.events = POLLIN};
	struct vkr_item *it;
	bool any = false, renew;
	int n = 0, i;

	if (!vkr_load_acq(&set->mixed) || vkr_epset_peek(set))
		return true;
	renew = efd_drain(set);
	channels_drain();
	any = vkr_epset_peek(set);
	pthread_mutex_lock(&vkr_ctl_lock);
	p.fd = vkr_epset_fd(set);
	DL_FOREACH2(set->duals, it, next)
	{
		if (it->file->kind != VKR_KIND_EPOLL || n == INNER_MAX || !(vkr_item_wants(it) & IN_BITS))
			continue;
		inner[n++] = (struct vkr_epset *)it->file;
		vkr_file_hold(it->file);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	for (i = 0; i < n; i++) {
		vkr_epset_ready(inner[i]); /* puts its markers to rest; if it is ready, this set has heard of it */
		vkr_file_put(&inner[i]->file);
	}
	any = any || p.fd < 0 || readable_without_channels(&p) || vkr_epset_peek(set);
	if (renew)
		efd_renew(set);
	return any;
}

/* vkr_ctl_lock held. The dual that an event of the kernel is from, if it is one to be looked at. */
static struct vkr_item *dual_of(struct vkr_epset *set, const struct epoll_event *ev)
{
	struct vkr_item *it;

	DL_FOREACH2(set->duals, it, next)
	if (it->data == ev->data.u64 && (it->file->kind == VKR_KIND_EPOLL || it->events & EPOLLONESHOT))
		return it;
	return NULL;
}

/* vkr_ctl_lock held. The kernel has reported a one-shot dual, and disabled it: true if that counts. */
static bool one_shot_stands(struct vkr_item *it, bool stands)
{
	struct epoll_event ev = {.events = it->events, .data.u64 = it->data};

	if (stands)
		return vkr_item_claim(it);
	if (!it->disabled) /* it was a marker: armed again */
		vkr_real.epoll_ctl(vkr_epset_fd(it->set), EPOLL_CTL_MOD, it->fd, &ev);
	return false;
}

/* True if an event of the kernel is to be reported: not the marker of a set inside, nor what user space has claimed. */
static bool event_stands(struct vkr_epset *set, const struct epoll_event *ev)
{
	struct vkr_epset *inner = NULL;
	struct vkr_item *it;
	bool stands = true;

	pthread_mutex_lock(&vkr_ctl_lock);
	it = dual_of(set, ev);
	if (it && it->file->kind == VKR_KIND_EPOLL) {
		inner = (struct vkr_epset *)it->file;
		vkr_file_hold(it->file);
		pthread_mutex_unlock(&vkr_ctl_lock);
		stands = vkr_epset_ready(inner);
		pthread_mutex_lock(&vkr_ctl_lock);
		it = dual_of(set, ev);
	}
	if (it && it->events & EPOLLONESHOT) {
		stands = one_shot_stands(it, stands);
	} else if (it && stands && it->events & EPOLLET) {
		/* User space has heard of the same edge, or of one that is seen with this one. */
		pthread_mutex_lock(&set->lock);
		vkr_ready_del(set, it);
		pthread_mutex_unlock(&set->lock);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (inner)
		vkr_file_put(&inner->file);
	return stands;
}

/* evs[0..n) come from user space, evs[n..n+k) from the kernel: one descriptor in both is one event. Returns the total.
 */
static int merge_duals(struct vkr_epset *set, struct epoll_event *evs, int n, int k)
{
	int i, j, out = n;

	for (i = n; i < n + k; i++) {
		for (j = 0; j < n && evs[j].data.u64 != evs[i].data.u64; j++)
			;
		if (j < n)
			evs[j].events |= evs[i].events;
		else if (!vkr_load(&set->checks_duals) || event_stands(set, &evs[i]))
			evs[out++] = evs[i];
	}
	return out;
}

/* The other way round: evs[0..k) are the kernel's, ours come behind them. */
static int add_user(struct vkr_epset *set, struct epoll_event *evs, int k, int max)
{
	int n = k < max ? collect(set, evs + k, max - k) : 0, i, j, out = k;
	bool duals = vkr_load(&set->had_duals);

	for (i = k; i < k + n; i++) {
		for (j = 0; duals && j < k && evs[j].data.u64 != evs[i].data.u64; j++)
			;
		if (duals && j < k)
			evs[j].events |= evs[i].events;
		else
			evs[out++] = evs[i];
	}
	return out;
}

/* Adds the kernel's events without waiting. Returns the total, or -errno where there is nothing else to return. */
static int add_kernel(struct vkr_epset *set, int epfd, struct epoll_event *evs, int n, int max, int64_t now)
{
	int k;

	vkr_store(&set->kernel_at, now);
	k = real_epoll_wait(epfd, evs + n, max - n, 0, NULL);
	if (k < 0)
		return n ? n : k;
	k = strip_markers(set, evs + n, k);
	return vkr_load(&set->had_duals) ? merge_duals(set, evs, n, k) : n + k;
}

/* ------------------------------------------------------------------ epoll_wait */

/* Something of ours is ready: the kernel is asked too when there is room and it was not asked for a while. */
static int return_ready(struct vkr_epset *set, int epfd, struct epoll_event *evs, int n, int max)
{
	int64_t now;

	if (!vkr_load(&set->native))
		return n;
	now = vkr_now_ns();
	if (now - vkr_load(&set->kernel_at) < KERNEL_EVERY_NS)
		return n;
	if (n < max)
		return add_kernel(set, epfd, evs, n, max, now);
	/* No room beside them: this turn is the kernel's. Level-triggered items come again; others were not taken. */
	return n;
}

/* One look at user space, leaving at least half of the caller's room to the kernel when its turn has come. */
static int look(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max)
{
	int64_t now = vkr_load(&set->native) ? vkr_now_ns() : 0;
	int k = 0, n;

	if (now && now - vkr_load(&set->kernel_at) >= KERNEL_EVERY_NS && (int)vkr_load(&set->n_ready) >= max) {
		k = add_kernel(set, epfd, evs, 0, vkr_max(max / 2, 1), now);
		if (k < 0)
			k = 0;
		if (k == max)
			return k;
	}
	if (k)
		return add_user(set, evs, k, max);
	n = collect(set, evs, max);
	return n ? return_ready(set, epfd, evs, n, max) : 0;
}

static void sleep_done(struct vkr_epset **asleep)
{
	struct vkr_epset *set = *asleep;

	vkr_engine_sleep_end();
	pthread_mutex_lock(&set->lock);
	vkr_store(&set->sleepers, vkr_load(&set->sleepers) - 1);
	pthread_mutex_unlock(&set->lock);
}

/* Sleeps once. > 0 events, the kernel's and perhaps ours; 0 look again; -errno. */
static int sleep_once(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t left,
		      const sigset_t *mask)
{
	int k;

	/* Counted after our own last poll, so that what that poll finds makes no noise. */
	vkr_engine_sleep_begin();
	pthread_mutex_lock(&set->lock);
	vkr_store(&set->sleepers, vkr_load(&set->sleepers) + 1);
	pthread_mutex_unlock(&set->lock);
	{
		VKR_CLEANUP(sleep_done) struct vkr_epset *asleep = set;

		k = vkr_load(&set->n_ready) ? 0 : real_epoll_wait(epfd, evs, max, left, mask);
		(void)asleep;
	}
	if (k <= 0)
		return k;
	vkr_count(&vkr_stats->wakeups, 1);
	k = strip_markers(set, evs, k);
	if (k && vkr_load(&set->had_duals))
		k = merge_duals(set, evs, 0, k);
	if (!k)
		return 0;
	vkr_store(&set->kernel_at, vkr_now_ns());
	/* Ours may have come with the same wake-up. */
	return add_user(set, evs, k, max);
}

static int64_t time_left(int64_t deadline)
{
	return deadline <= 0 ? deadline : vkr_max(deadline - vkr_now_ns(), 0);
}

/* The wait is over, or was none. Markers may have taken all of the caller's room: what is behind them is ready too. */
static int last_look(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, const sigset_t *mask)
{
	int k, n, tries = 0;

	do {
		k = real_epoll_wait(epfd, evs, max, 0, mask);
		if (k <= 0)
			return k;
		n = strip_markers(set, evs, k);
		if (vkr_load(&set->had_duals))
			n = merge_duals(set, evs, 0, n);
	} while (!n && k == max && ++tries <= VKR_MAX_DEVICES + 1);
	return n ? n : collect(set, evs, max);
}

static bool set_ready(void *set)
{
	return vkr_load(&((struct vkr_epset *)set)->n_ready);
}

static int mixed_wait(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t deadline,
		      const sigset_t *mask)
{
	struct vkr_spin spin = {0};
	int64_t left;
	int n;

	for (;;) {
		/* The application may close its number, and give it out again, while we sleep. */
		epfd = vkr_load((_Atomic int *)&set->own) >= 0 ? vkr_load((_Atomic int *)&set->own) : epfd;
		if (vkr_unlikely(set->engine_generation != vkr_engine_generation())) {
			pthread_mutex_lock(&vkr_ctl_lock);
			vkr_epset_engine_fds(set, epfd);
			pthread_mutex_unlock(&vkr_ctl_lock);
		}
		vkr_engine_poll();
		n = look(set, epfd, evs, max);
		if (n) {
			vkr_spin_done(&spin, true);
			return n;
		}
		left = time_left(deadline);
		if (!left)
			return last_look(set, epfd, evs, max, mask);
		if (vkr_spin(&spin, set_ready, set, left))
			continue;
		n = sleep_once(set, epfd, evs, max, left, mask);
		if (n) {
			vkr_spin_done(&spin, false);
			return n;
		}
	}
}

static void kernel_wait_done(struct vkr_epset **set)
{
	atomic_fetch_sub(&(*set)->in_kernel, 1);
}

/* What the kernel has returned, without our markers, where the set may have become mixed meanwhile. */
static int after_plain(struct vkr_epset *set, struct epoll_event *evs, int r)
{
	if (r <= 0 || vkr_likely(!vkr_load_acq(&set->marked)))
		return r;
	/* The markers are in the set a moment before it is called mixed; those of a set inside only after that. */
	r = strip_markers(set, evs, r);
	if (!r || vkr_unlikely(atomic_load(&set->mixed))) {
		pthread_mutex_lock(&vkr_ctl_lock);
		pthread_mutex_unlock(&vkr_ctl_lock);
		r = merge_duals(set, evs, 0, r);
	}
	return r;
}

#define MIXED_NOW (VKR_PASS + 1) /* look again */

/* Nothing of ours is in the set. It may become mixed while we sleep: counted, we are woken by the eventfd too. The
 * number may become another set's: MIXED_NOW if that is seen. */
static int plain_wait(struct vkr_epset *set, int epfd, struct epoll_event *evs, int max, int64_t left,
		      const sigset_t *mask)
{
	VKR_CLEANUP(kernel_wait_done) struct vkr_epset *waits = set;
	int r, n;

	atomic_fetch_add(&waits->in_kernel, 1);
	if (atomic_load(&set->mixed) || atomic_load(vkr_fd_entry(epfd)) != &set->file)
		return MIXED_NOW;
	r = real_epoll_wait(epfd, evs, max, left, mask);
	n = after_plain(set, evs, r);
	return r > 0 && !n ? MIXED_NOW : n;
}

/* A set inherited by fork that the kernel alone served: it does so still, unless the parent has put markers into it. */
static int inherited_wait(int epfd, struct epoll_event *evs, int max, int64_t deadline, const sigset_t *mask)
{
	int r = real_epoll_wait(epfd, evs, max, time_left(deadline), mask), i;

	for (i = 0; i < r; i++)
		if (evs[i].data.u64 - (uint64_t)(uintptr_t)vkr_markers < sizeof(vkr_markers))
			return MIXED_NOW;
	return r;
}

/*
 * Our events are written here, under locks: a program that handles SIGSEGV by a jump would leave them held. So an array
 * that the thread has not used before is tried by system calls that write to its ends.
 */
static bool good_events(struct epoll_event *evs, int max)
{
	static VKR_TLS struct epoll_event *good;
	static VKR_TLS int good_max;
	char *end = (char *)(evs + max) - 8;

	if (vkr_likely(evs == good && max <= good_max))
		return true;
	if (VKR_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, evs, 8) < 0 ||
	    VKR_RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, end, 8) < 0)
		return false;
	good = evs;
	good_max = max;
	return true;
}

/* What the caller leaves, because it had no room or because it is still ready, is for the next who sleeps. */
static int leave_rest(struct vkr_epset *set, int r)
{
	if (r > 0 && vkr_load(&set->n_ready) && vkr_unlikely(others_sleep(set)))
		efd_renew(set);
	return r;
}

/* The set that the number names now. MIXED_NOW: another than it was. */
static int wait_on(int epfd, struct epoll_event *evs, int max, int64_t deadline, const sigset_t *mask)
{
	VKR_CLEANUP(vkr_file_putp) struct vkr_file *f = NULL;
	struct vkr_epset *set;
	int r;

	vkr_fork_check();
	set = vkr_epset_get(epfd);
	if (!set) {
		vkr_plain_learn(epfd);
		return VKR_PASS;
	}
	f = &set->file;
	if (vkr_unlikely(max <= 0 || max > INT32_MAX / (int)sizeof(*evs)))
		return VKR_PASS;
	if (vkr_bad_pointer(evs, (size_t)max * sizeof(*evs)))
		return -EFAULT;
	if (vkr_unlikely(vkr_file_inherited(f))) {
		r = vkr_load(&set->mixed) ? MIXED_NOW : inherited_wait(epfd, evs, max, deadline, mask);
		if (r != MIXED_NOW)
			return r;
		set = vkr_epset_heir(epfd, &r);
		if (!set)
			return r;
		vkr_file_put(f);
		f = &set->file;
	}
	if (vkr_unlikely(vkr_load(&set->n_heirs)))
		vkr_epset_take_heirs(set);
	r = MIXED_NOW;
	if (!vkr_load_acq(&set->mixed)) {
		vkr_plain_learn(epfd);
		r = plain_wait(set, epfd, evs, max, time_left(deadline), mask);
		if (r == MIXED_NOW && !vkr_load_acq(&set->mixed))
			return r;
	}
	if (r == MIXED_NOW)
		r = good_events(evs, max) ? mixed_wait(set, epfd, evs, max, deadline, mask) : -EFAULT;
	return leave_rest(set, r);
}

static int wait_until(int epfd, struct epoll_event *evs, int max, int64_t deadline, const sigset_t *mask)
{
	int r;

	do
		r = wait_on(epfd, evs, max, deadline, mask);
	while (vkr_unlikely(r == MIXED_NOW));
	return r;
}

int vkr_epoll_wait(int epfd, struct epoll_event *evs, int max, int64_t left, const sigset_t *mask)
{
	return wait_until(epfd, evs, max, left > 0 ? vkr_now_ns() + left : left, mask);
}

int vkr_epoll_resume(struct vkr_plain *self, int n, int64_t (*left)(struct vkr_plain *was))
{
	VKR_CLEANUP(vkr_file_putp) struct vkr_file *f = NULL;
	struct vkr_plain was;
	struct vkr_epset *set = vkr_plain_left(self, &was);
	struct epoll_event *evs = (struct epoll_event *)(uintptr_t)was.events;
	int64_t deadline;
	int r;

	if (!set)
		return n;
	f = &set->file;
	r = after_plain(set, evs, n);
	if (r || n <= 0) /* the time is over, or there is something of the kernel's */
		return r > 0 ? leave_rest(set, r) : n;
	deadline = left(&was);
	if (deadline > 0)
		deadline += was.hit_at;   /* nobody has looked at the clock before */
	if (!vkr_load_acq(&set->mixed)) { /* a marker of another's, whose number it is now */
		r = wait_until(was.fd, evs, n, deadline, was.mask);
		return r == VKR_PASS ? real_epoll_wait(was.fd, evs, n, time_left(deadline), was.mask) : r;
	}
	r = good_events(evs, n) ? mixed_wait(set, vkr_epset_fd(set), evs, n, deadline, was.mask) : -EFAULT;
	return leave_rest(set, r);
}

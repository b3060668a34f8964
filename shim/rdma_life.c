/* SPDX-License-Identifier: BSD-2-Clause */
/* The engine as a whole: start, flush at the end, fork. */
#include "config.h"
#include "guard.h"
#include "log.h"
#include "rdma_cm.h"
#include "socket.h"

#include <time.h>
#include <utlist.h>

#define RETRY_NS (10000 * VKR_MS)

static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;
_Atomic bool vkr_engine_runs;
static bool opened; /* the libraries, which survive a fork */
static bool forked, prepared;
static int failure;
static const char *failure_reason;
static int64_t failure_ns;

/* ------------------------------------------------------------------ start */

static int start(const char **reason)
{
	static const struct vkr_progress_source source = {vkr_cm_fd, vkr_cm_readable, vkr_cm_pending};
	int ret;

	/* rdma-core keeps global state of the parent's device files; a second copy of it cannot be had. */
	if (forked && opened && !vkr_verbs.soft) {
		*reason = "this process was forked from one that uses RDMA";
		return -EOPNOTSUPP;
	}
	vkr_stats_open();
	vkr_stats->provider = vkr_config.provider_soft;
	if (!opened) {
		ret = vkr_verbs_open(vkr_config.provider_soft, reason);
		if (ret)
			return ret;
		opened = true;
	}
	if (vkr_verbs.soft)
		vkr_verbs.soft->set_fd_hooks(vkr_guard_fd, vkr_guard_close);
	ret = vkr_cm_open(reason);
	if (ret)
		return ret;
	ret = vkr_progress_start(&source);
	if (ret) {
		vkr_cm_close();
		*reason = "the progress thread could not be started";
	}
	return ret;
}

/* A device may come, and memory and descriptors be had again. */
static bool may_have_changed(void)
{
	return vkr_now_ns() - failure_ns > RETRY_NS;
}

int vkr_engine_start(const char **reason)
{
	int ret, cancel;

	if (vkr_load_acq(&vkr_engine_runs))
		return 0;
	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&start_lock);
	if (!vkr_load(&vkr_engine_runs) && (!failure || may_have_changed())) {
		ret = failure;
		failure = start(&failure_reason);
		failure_ns = vkr_now_ns();
		if (!failure)
			vkr_store_rel(&vkr_engine_runs, true);
		else
			vkr_log(ret ? VKR_LOG_DEBUG : VKR_LOG_WARN, "RDMA is not available: %s; connections use TCP",
				failure_reason);
	}
	ret = failure;
	*reason = failure_reason;
	pthread_mutex_unlock(&start_lock);
	vkr_verbs_leave(cancel);
	return ret;
}

/* ------------------------------------------------------------------ flush */

/* Registry lock held. */
static bool any_alive(void)
{
	struct vkr_stream *s;
	bool alive = false;

	DL_FOREACH (vkr_registry, s) {
		pthread_mutex_lock(&s->p.lock);
		alive |= s->phase != VKR_PH_DEAD;
		pthread_mutex_unlock(&s->p.lock);
		if (alive)
			break;
	}
	return alive;
}

static void end_all(int ms)
{
	struct vkr_stream *s;

	DL_FOREACH (vkr_registry, s) {
		pthread_mutex_lock(&s->p.lock);
		if (!s->app_closed) {
			if (s->inq && s->features & VKR_FEAT_FIN)
				s->tx.control |= VKR_CTL_RESET;
			s->drain_ns = ms * VKR_MS;
		}
		s->end = true;
		vkr_task_queue(&s->task);
		pthread_mutex_unlock(&s->p.lock);
	}
}

void vkr_engine_flush(int ms)
{
	struct timespec ts;
	int64_t until;
	int cancel;

	if (!vkr_engine_running() || vkr_progress_self())
		return;
	until = vkr_now_ns() + ms * VKR_MS;
	ts = (struct timespec){.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
	cancel = vkr_verbs_enter();
	pthread_mutex_lock(&vkr_registry_lock);
	end_all(ms);
	while (any_alive())
		if (pthread_cond_clockwait(&vkr_registry_cond, &vkr_registry_lock, CLOCK_MONOTONIC, &ts))
			break;
	pthread_mutex_unlock(&vkr_registry_lock);
	vkr_verbs_leave(cancel);
}

/* ------------------------------------------------------------------ fork */

static void pollables_each(void (*fn)(struct vkr_pollable *))
{
	struct vkr_listener *l;
	struct vkr_stream *s;

	DL_FOREACH (vkr_registry, s)
		fn(&s->p);
	DL_FOREACH (vkr_listeners, l)
		fn(&l->p);
}

static void pollable_lock(struct vkr_pollable *p)
{
	pthread_mutex_lock(&p->lock);
}

static void pollable_unlock(struct vkr_pollable *p)
{
	pthread_mutex_unlock(&p->lock);
}

static void pollable_renew(struct vkr_pollable *p)
{
	pthread_mutex_init(&p->lock, NULL);
}

void vkr_engine_fork_prepare(void)
{
	pthread_mutex_lock(&start_lock);
	pthread_mutex_lock(&vkr_registry_lock);
	vkr_cqs_lock();
	pollables_each(pollable_lock);
	vkr_progress_lock();
	vkr_arena_lock();
	prepared = true;
}

void vkr_engine_fork_parent(void)
{
	prepared = false;
	vkr_arena_unlock();
	vkr_progress_unlock();
	pollables_each(pollable_unlock);
	vkr_cqs_unlock();
	pthread_mutex_unlock(&vkr_registry_lock);
	pthread_mutex_unlock(&start_lock);
}

/*
 * Children of clone() and _Fork() come here without the prepare handler: a lock may be any thread's, so all are made
 * anew. Streams keep a working one, since the child may take its watches off what it inherited.
 */
void vkr_engine_fork_child(void)
{
	if (prepared)
		vkr_engine_fork_parent();
	pollables_each(pollable_renew);
	vkr_epoch++;
	vkr_registry = NULL;
	vkr_cm_forked();
	vkr_keep_forked();
	vkr_trim_forked();
	vkr_rx_forked();
	vkr_alive_forked();
	vkr_cm_devices_forked();
	vkr_progress_forked();
	vkr_arena_forked();
	vkr_cqs_forked();
	pthread_mutex_init(&vkr_registry_lock, NULL);
	pthread_cond_init(&vkr_registry_cond, NULL);
	pthread_mutex_init(&start_lock, NULL);
	vkr_store(&vkr_engine_runs, false);
	failure = 0;
	forked = true;
}

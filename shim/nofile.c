/* SPDX-License-Identifier: BSD-2-Clause */
#include "nofile.h"
#include "libc_real.h"
#include "socket.h"

static struct {
	pthread_mutex_t lock;
	_Atomic bool raised;
	_Atomic rlim_t app;  /* soft, as the application set it or found it */
	_Atomic rlim_t real; /* soft, as we set it */
	int spawning;        /* threads between spawn_begin and spawn_end */
} limits = {.lock = PTHREAD_MUTEX_INITIALIZER};

static rlim_t raised_soft(rlim_t app, rlim_t hard)
{
	return vkr_max(app, vkr_min(hard, (rlim_t)VKR_NOFILE_CAP));
}

void vkr_limits_raise(void)
{
	int saved = errno;
	struct rlimit l;

	if (vkr_load_acq(&limits.raised))
		return;
	pthread_mutex_lock(&limits.lock);
	if (!vkr_load(&limits.raised) && vkr_real.getrlimit(RLIMIT_NOFILE, &l) == 0) {
		vkr_store(&limits.app, l.rlim_cur);
		l.rlim_cur = raised_soft(l.rlim_cur, l.rlim_max);
		/* Also where it is as high as can be: the application may lower it later, and then we do not. */
		if (l.rlim_cur == vkr_load(&limits.app) || vkr_real.setrlimit(RLIMIT_NOFILE, &l) == 0) {
			vkr_store(&limits.real, l.rlim_cur);
			vkr_store_rel(&limits.raised, true);
		}
	}
	pthread_mutex_unlock(&limits.lock);
	errno = saved;
}

bool vkr_limits_seen(rlim_t *soft)
{
	struct rlimit l;

	if (!vkr_load_acq(&limits.raised) || vkr_real.getrlimit(RLIMIT_NOFILE, &l) < 0)
		return false;
	*soft = vkr_min(vkr_load(&limits.app), l.rlim_max);
	return true;
}

rlim_t vkr_limits_app(void)
{
	return vkr_load_acq(&limits.raised) ? vkr_load(&limits.app) : RLIM_INFINITY;
}

bool vkr_limits_allow(int fd)
{
	return (rlim_t)fd < vkr_limits_app();
}

bool vkr_limits_full(void)
{
	return vkr_load_acq(&limits.raised) && vkr_load(&limits.app) >= vkr_load(&limits.real);
}

/* Lock held. The hard limit is the application's to lower; the soft one stays as high as it lets us. */
static int set_seen(const struct rlimit *set)
{
	struct rlimit l = *set;

	if (set->rlim_cur > set->rlim_max)
		return -EINVAL;
	l.rlim_cur = raised_soft(set->rlim_cur, set->rlim_max);
	if (vkr_real.setrlimit(RLIMIT_NOFILE, &l) < 0)
		return -errno;
	vkr_store(&limits.app, set->rlim_cur);
	vkr_store(&limits.real, l.rlim_cur);
	return 0;
}

int vkr_limits_exchange(const struct rlimit *set, struct rlimit *old)
{
	struct rlimit was;
	int ret = 0;

	if (!vkr_load_acq(&limits.raised))
		return VKR_PASS;
	pthread_mutex_lock(&limits.lock);
	if (vkr_real.getrlimit(RLIMIT_NOFILE, &was) < 0)
		ret = -errno;
	was.rlim_cur = vkr_min(vkr_load(&limits.app), was.rlim_max);
	if (!ret && set)
		ret = set_seen(set);
	pthread_mutex_unlock(&limits.lock);
	if (!ret && old)
		*old = was;
	return ret;
}

/* Moves the soft limit from one value to another; false, and nothing changed, where it was not at the first. */
static bool move_soft(rlim_t from, rlim_t to)
{
	struct rlimit l;

	if (vkr_real.getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur != from)
		return false;
	l.rlim_cur = vkr_min(to, l.rlim_max);
	return vkr_real.setrlimit(RLIMIT_NOFILE, &l) == 0;
}

bool vkr_limits_restore(void)
{
	return vkr_load_acq(&limits.raised) && move_soft(vkr_load(&limits.real), vkr_load(&limits.app));
}

void vkr_limits_restore_undo(bool restored)
{
	int saved = errno;

	if (restored)
		move_soft(vkr_load(&limits.app), vkr_load(&limits.real));
	errno = saved;
}

void vkr_limits_spawn_begin(void)
{
	int saved = errno;

	pthread_mutex_lock(&limits.lock);
	if (limits.spawning++ == 0)
		vkr_limits_restore();
	pthread_mutex_unlock(&limits.lock);
	errno = saved;
}

void vkr_limits_spawn_end(void)
{
	pthread_mutex_lock(&limits.lock);
	if (--limits.spawning == 0)
		vkr_limits_restore_undo(vkr_load(&limits.raised));
	pthread_mutex_unlock(&limits.lock);
}

/* A thread that is not here may have been spawning; and in a child without fork handlers at any point of it. */
void vkr_limits_fork_child(void)
{
	pthread_mutex_init(&limits.lock, NULL);
	limits.spawning = 0;
	vkr_limits_restore_undo(vkr_load(&limits.raised));
}

/* SPDX-License-Identifier: BSD-2-Clause */
#include "pollable.h"

#include <utlist.h>

void vkr_pollable_init(struct vkr_pollable *p)
{
	pthread_mutex_init(&p->lock, NULL);
	vkr_store(&p->ready, 0);
	vkr_store(&p->watched, false);
	p->watches = NULL;
}

bool vkr_pollable_post(struct vkr_pollable *p, uint32_t ready, uint32_t edge)
{
	struct vkr_watch *w;
	bool any = false;

	vkr_store_rel(&p->ready, ready);
	if (!edge)
		return false;
	DL_FOREACH (p->watches, w) {
		if (w->fire(w, edge))
			w->due = any = true;
	}
	return any;
}

void vkr_pollable_wake(struct vkr_pollable *p)
{
	struct vkr_watch *w;

	DL_FOREACH (p->watches, w) {
		if (!w->due)
			continue;
		w->due = false;
		w->wake(w);
	}
}

void vkr_pollable_set(struct vkr_pollable *p, uint32_t ready, uint32_t edge)
{
	if (vkr_pollable_post(p, ready, edge))
		vkr_pollable_wake(p);
}

void vkr_watch_add_locked(struct vkr_pollable *p, struct vkr_watch *w)
{
	w->due = false;
	DL_APPEND(p->watches, w);
	vkr_store(&p->watched, true);
}

void vkr_watch_add(struct vkr_pollable *p, struct vkr_watch *w)
{
	pthread_mutex_lock(&p->lock);
	vkr_watch_add_locked(p, w);
	pthread_mutex_unlock(&p->lock);
}

void vkr_watch_del(struct vkr_pollable *p, struct vkr_watch *w)
{
	pthread_mutex_lock(&p->lock);
	DL_DELETE(p->watches, w);
	vkr_store(&p->watched, p->watches != NULL);
	pthread_mutex_unlock(&p->lock);
}

bool vkr_watch_alone(struct vkr_pollable *p, struct vkr_watch *w)
{
	bool alone;

	pthread_mutex_lock(&p->lock);
	alone = p->watches == w && !w->next;
	pthread_mutex_unlock(&p->lock);
	return alone;
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Devices that go and come back, as connection management sees them. The kernel tells each id that is bound to a device
 * of its removal, and waits with it until nothing of the device is in use. A listener on the any address is bound to
 * none and would hear nothing, so an id of our own is bound to each device in use.
 *
 * A listener that was bound to the device serves TCP until its address has a device again; one on the any address
 * accepts from a new device by itself.
 */
#include "rdma_cm.h"

#include "log.h"
#include "socket.h"

#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <utlist.h>

#define RETRY_NS (2000 * VKR_MS)

static void retry_run(struct vkr_timer *timer);

/* By the context that its id is bound to: the engine's entry may have come to its end before, by a fatal error. */
static struct watch {
	struct vkr_cm_owner owner;
	struct rdma_cm_id *id;
} watches[VKR_MAX_DEVICES];
static struct vkr_timer retry = {.run = retry_run};

void vkr_cm_devices_forked(void)
{
	memset(watches, 0, sizeof(watches));
	retry.armed = false;
}

/* ------------------------------------------------------------------ watching */

void vkr_cm_device_watch(struct vkr_device *dev, const struct sockaddr *local)
{
	struct watch *w, *free = NULL;
	struct sockaddr_storage sa;

	for (w = watches; w < watches + VKR_MAX_DEVICES; w++) {
		if (w->id && w->id->verbs == dev->verbs)
			return;
		if (!w->id)
			free = w;
	}
	if (!free)
		return;
	vkr_cm_take_addr(&sa, local, false);
	((struct sockaddr_in *)&sa)->sin_port = 0; /* where a v6 address has it too */
	free->owner.kind = VKR_OWNER_DEVICE;
	if (vkr_cm_id_create(&free->id, &free->owner))
		return;
	if (vkr_verbs.rdma_bind_addr(free->id, (struct sockaddr *)&sa) || free->id->verbs != dev->verbs) {
		vkr_debug("the device of a connection is not watched for its removal: errno %d", errno);
		vkr_verbs.rdma_destroy_id(free->id);
		free->id = NULL;
	}
}

static void watch_end(const struct ibv_context *verbs)
{
	struct watch *w;

	for (w = watches; w < watches + VKR_MAX_DEVICES; w++) {
		if (w->id && w->id->verbs == verbs) {
			vkr_verbs.rdma_destroy_id(w->id);
			w->id = NULL;
		}
	}
}

/* ------------------------------------------------------------------ removal */

static void listeners_lost(const struct ibv_context *verbs)
{
	struct vkr_listener *l;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_listeners, l) {
		if (!l->id || l->id->verbs != verbs)
			continue;
		vkr_listener_suspend(l, "its RDMA device was removed");
		if (!retry.armed)
			vkr_timer_set(&retry, vkr_now_ns() + RETRY_NS);
	}
	pthread_mutex_unlock(&vkr_registry_lock);
}

void vkr_cm_device_removed(struct ibv_context *verbs)
{
	struct vkr_device *dev = vkr_device_find(verbs);

	if (!verbs)
		return;
	listeners_lost(verbs);
	watch_end(verbs);
	if (!dev) {
		vkr_device_let_go(verbs); /* opened for a listener, and nobody came */
		return;
	}
	if (!dev->removed)
		vkr_warn("an RDMA device was removed; its connections end");
	vkr_device_end(dev, true);
}

/* ------------------------------------------------------------------ return */

static void retry_run(struct vkr_timer *timer)
{
	struct vkr_listener *l;
	bool again = false;

	pthread_mutex_lock(&vkr_registry_lock);
	DL_FOREACH (vkr_listeners, l)
		again |= !l->id && vkr_listener_resume(l);
	pthread_mutex_unlock(&vkr_registry_lock);
	if (again)
		vkr_timer_set(timer, vkr_now_ns() + RETRY_NS);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Devices, their completion queues, their asynchronous events, and their end. All of it is the progress thread; other
 * threads walk over the entries without a lock, so that entries stay for ever and are used again.
 */
#include "engine.h"

#include "guard.h"
#include "libc_real.h"
#include "log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A few connections need no 2 MiB queue. */
#define CQ_FIRST 4096
#define CQ_NEXT  32767

struct vkr_device *vkr_devices[VKR_MAX_DEVICES];
_Atomic int vkr_n_devices;
_Atomic unsigned vkr_engine_changes;
pthread_mutex_t vkr_devices_lock = PTHREAD_MUTEX_INITIALIZER;

static void end_task(struct vkr_task *task);

/* ------------------------------------------------------------------ devices */

static void fd_nonblock(int fd)
{
	vkr_real.fcntl(fd, F_SETFL, vkr_real.fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Providers read these members at each use, so the numbers may be moved while nothing uses them yet. */
static void device_guard(struct vkr_device *dev)
{
	if (!vkr_verbs.soft) {
		dev->channel->fd = vkr_guard_fd(dev->channel->fd);
		if (!vkr_guard_has(dev->verbs->async_fd)) /* a context that was in use before has been moved */
			dev->verbs->async_fd = vkr_guard_fd(dev->verbs->async_fd);
		vkr_guard_mark(dev->verbs->cmd_fd);
	}
	fd_nonblock(dev->channel->fd);
	fd_nonblock(dev->verbs->async_fd);
}

/* An entry without a device, new or used before. It is published when it is complete. */
static struct vkr_device *entry_free(int *index)
{
	int d, n = atomic_load(&vkr_n_devices);
	struct vkr_device *dev;

	for (d = 0; d < n; d++)
		if (!vkr_devices[d]->verbs)
			break;
	*index = d;
	if (d < n)
		return vkr_devices[d];
	if (n == VKR_MAX_DEVICES) {
		errno = ENFILE;
		return NULL;
	}
	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return NULL;
	pthread_mutex_init(&dev->event_lock, NULL);
	vkr_store(&dev->channel_fd, -1);
	dev->task.run = end_task;
	return dev;
}

static struct ibv_comp_channel *device_open(struct vkr_device *dev, struct ibv_context *verbs)
{
	struct ibv_device_attr attr;

	memset(&attr, 0, sizeof(attr));
	if (vkr_verbs.ibv_query_device(verbs, &attr))
		return NULL;
	dev->max_cqe = (uint32_t)attr.max_cqe;
	dev->max_sge = attr.max_sge;
	return vkr_verbs.ibv_create_comp_channel(verbs);
}

struct vkr_device *vkr_device_find(const struct ibv_context *verbs)
{
	int d;

	for (d = 0; verbs && d < atomic_load(&vkr_n_devices); d++)
		if (vkr_devices[d]->verbs == verbs)
			return vkr_devices[d];
	return NULL;
}

struct vkr_device *vkr_device_get(struct ibv_context *verbs)
{
	struct vkr_device *dev = vkr_device_find(verbs);
	struct ibv_comp_channel *channel;
	const char *name;
	int index;

	if (dev) {
		errno = ENODEV;
		return dev->ending ? NULL : dev;
	}
	dev = entry_free(&index);
	if (!dev)
		return NULL;
	channel = device_open(dev, verbs);
	if (!channel) {
		if (index == atomic_load(&vkr_n_devices))
			free(dev);
		return NULL;
	}
	name = vkr_verbs.ibv_get_device_name(verbs->device);
	if (!vkr_stats->device[0] && name)
		strncpy(vkr_stats->device, name, sizeof(vkr_stats->device) - 1);
	vkr_debug("RDMA device %s opened", name ? name : "?");
	pthread_mutex_lock(&vkr_devices_lock);
	pthread_mutex_lock(&dev->event_lock);
	dev->verbs = verbs;
	dev->channel = channel;
	dev->ending = dev->removed = false;
	device_guard(dev);
	vkr_store_rel(&dev->channel_fd, channel->fd);
	pthread_mutex_unlock(&dev->event_lock);
	if (index == atomic_load(&vkr_n_devices)) {
		vkr_devices[index] = dev;
		atomic_store(&vkr_n_devices, index + 1);
	}
	atomic_fetch_add(&vkr_engine_changes, 1);
	pthread_mutex_unlock(&vkr_devices_lock);
	return dev;
}

void vkr_devices_forked(void)
{
	atomic_store(&vkr_n_devices, 0);
	memset(vkr_devices, 0, sizeof(vkr_devices));
	pthread_mutex_init(&vkr_devices_lock, NULL);
}

/* ------------------------------------------------------------------ completion queues */

/* Place i of the device's table, where there may have been one before. */
static struct vkr_cq *cq_new(struct vkr_device *dev, int i, int entries)
{
	int want = vkr_max(i ? CQ_NEXT : CQ_FIRST, entries);
	struct vkr_cq *c = dev->cqs[i];
	struct ibv_cq *cq;

	if (dev->max_cqe && (uint32_t)want > dev->max_cqe)
		want = (int)dev->max_cqe;
	if (!c) {
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		pthread_mutex_init(&c->lock, NULL);
		c->dev = dev;
	}
	cq = vkr_verbs.ibv_create_cq(dev->verbs, want, c, dev->channel, 0);
	if (!cq) {
		if (!dev->cqs[i])
			free(c);
		return NULL;
	}
	pthread_mutex_lock(&vkr_devices_lock);
	pthread_mutex_lock(&c->lock);
	c->cq = cq;
	c->capacity = want;
	c->failed = false;
	vkr_cq_arm(c);
	pthread_mutex_unlock(&c->lock);
	if (i == atomic_load(&dev->n_cqs)) {
		dev->cqs[i] = c;
		atomic_store(&dev->n_cqs, i + 1);
	}
	pthread_mutex_unlock(&vkr_devices_lock);
	vkr_gauge_add(&vkr_stats->cqs, 1);
	return c;
}

/* No connection uses it. Whoever took an event of it holds the event lock until it is counted. */
static void cq_close(struct vkr_cq *c)
{
	struct ibv_cq *cq;

	pthread_mutex_lock(&c->dev->event_lock);
	pthread_mutex_lock(&c->lock);
	cq = c->cq;
	c->cq = NULL;
	if (cq && c->unacked)
		vkr_verbs.ibv_ack_cq_events(cq, c->unacked);
	c->unacked = 0;
	pthread_mutex_unlock(&c->lock);
	if (cq) {
		vkr_verbs.ibv_destroy_cq(cq);
		vkr_gauge_add(&vkr_stats->cqs, -1);
	}
	pthread_mutex_unlock(&c->dev->event_lock);
}

int vkr_cq_reserve(struct vkr_device *dev, struct vkr_endpoint *ep, int entries)
{
	int i, n = atomic_load(&dev->n_cqs), place = n;
	struct vkr_cq *c = NULL;

	for (i = n - 1; i >= 0; i--) {
		if (dev->cqs[i]->failed && !dev->cqs[i]->reserved)
			cq_close(dev->cqs[i]);
		if (!dev->cqs[i]->cq)
			place = i;
		else if (!dev->cqs[i]->failed && dev->cqs[i]->capacity - dev->cqs[i]->reserved >= entries)
			c = dev->cqs[i];
	}
	if (!c) {
		errno = ENFILE;
		c = place < (int)VKR_ARRAY_SIZE(dev->cqs) ? cq_new(dev, place, entries) : NULL;
	}
	if (!c)
		return errno ? -errno : -ENOMEM;
	if (c->capacity - c->reserved < entries)
		return -ENOSPC;
	c->reserved += entries;
	dev->reserved += entries;
	ep->cq = c;
	ep->reserved = entries;
	return 0;
}

void vkr_cq_unreserve(struct vkr_cq *c, int entries)
{
	struct vkr_device *dev = c->dev;

	c->reserved -= entries;
	dev->reserved -= entries;
	if (c->failed && !c->reserved)
		cq_close(c);
	if (dev->ending && !dev->reserved)
		vkr_task_queue(&dev->task); /* not now: the connection is still being taken down */
}

/* ------------------------------------------------------------------ the end of a device */

/*
 * The kernel does not let a device go while a process has it open, and librdmacm, whose context this is, closes it at a
 * later time or never. What its numbers lead to is replaced: closing them will then do no harm.
 */
void vkr_device_let_go(struct ibv_context *verbs)
{
	int null = vkr_verbs.soft ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0)
		return;
	vkr_real.dup3(null, verbs->async_fd, O_CLOEXEC);
	vkr_real.dup3(null, verbs->cmd_fd, O_CLOEXEC);
	vkr_real.close(null);
}

static void end_task(struct vkr_task *task)
{
	struct vkr_device *dev = vkr_container_of(task, struct vkr_device, task);
	struct ibv_comp_channel *channel;
	int i;

	if (!dev->verbs || !dev->ending || dev->reserved)
		return;
	for (i = 0; i < atomic_load(&dev->n_cqs); i++)
		cq_close(dev->cqs[i]);
	pthread_mutex_lock(&vkr_devices_lock);
	pthread_mutex_lock(&dev->event_lock);
	channel = dev->channel;
	dev->channel = NULL;
	vkr_store(&dev->channel_fd, -1);
	atomic_fetch_add(&vkr_engine_changes, 1);
	pthread_mutex_unlock(&dev->event_lock);
	pthread_mutex_unlock(&vkr_devices_lock);
	if (!vkr_verbs.soft)
		vkr_guard_unmark(channel->fd);
	vkr_verbs.ibv_destroy_comp_channel(channel);
	if (dev->removed)
		vkr_device_let_go(dev->verbs);
	dev->verbs = NULL;
	vkr_info("an RDMA device has gone; nothing of it is held");
}

/* Tables change on this thread only, so it may walk them without the CQ lock; async() takes the endpoint's. */
static void cq_async(struct vkr_cq *c, enum ibv_event_type type)
{
	struct vkr_endpoint *ep, *tmp;

	HASH_ITER (hh, c->eps, ep, tmp)
		ep->async(ep, type);
}

static void device_async(struct vkr_device *dev, enum ibv_event_type type)
{
	int i;

	for (i = 0; i < atomic_load(&dev->n_cqs); i++)
		cq_async(dev->cqs[i], type);
}

void vkr_device_end(struct vkr_device *dev, bool removed)
{
	dev->removed |= removed;
	dev->ending = true;
	device_async(dev, IBV_EVENT_DEVICE_FATAL);
	if (!dev->reserved)
		vkr_task_queue(&dev->task);
}

/* ------------------------------------------------------------------ async events */

static void qp_async(struct vkr_device *dev, uint32_t qp_num, enum ibv_event_type type)
{
	struct vkr_endpoint *ep;
	int i;

	for (i = 0; i < atomic_load(&dev->n_cqs); i++) {
		HASH_FIND(hh, dev->cqs[i]->eps, &qp_num, sizeof(qp_num), ep);
		if (ep) {
			ep->async(ep, type);
			return;
		}
	}
}

static void async_dispatch(struct vkr_device *dev, const struct ibv_async_event *event)
{
	struct vkr_cq *c;

	switch (event->event_type) {
	case IBV_EVENT_COMM_EST:
		qp_async(dev, event->element.qp->qp_num, event->event_type);
		break;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_PATH_MIG_ERR:
		vkr_warn("device reports: %s", vkr_verbs.ibv_event_type_str(event->event_type));
		qp_async(dev, event->element.qp->qp_num, event->event_type);
		break;
	case IBV_EVENT_CQ_ERR:
		vkr_error("device reports: completion queue error; its connections end");
		c = event->element.cq->cq_context;
		c->failed = true;
		cq_async(c, event->event_type);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		vkr_error("device reports a fatal error; its connections end");
		vkr_device_end(dev, false);
		break;
	case IBV_EVENT_PORT_ERR:
		vkr_info("device reports: port %d is down", event->element.port_num);
		device_async(dev, event->event_type);
		break;
	default:
		vkr_debug("device reports: %s", vkr_verbs.ibv_event_type_str(event->event_type));
		break;
	}
}

/* Each is acknowledged before anything is destroyed on its account: endings are tasks. */
void vkr_device_async(struct vkr_device *dev)
{
	struct ibv_async_event event;

	while (!vkr_verbs.ibv_get_async_event(dev->verbs, &event)) {
		async_dispatch(dev, &event);
		vkr_verbs.ibv_ack_async_event(&event);
	}
}

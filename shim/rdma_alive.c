/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Finding peers that died without a word (T13): a machine that is gone, a cut link. With data in flight the queue pair
 * finds out by itself: it repeats for timeout x (retry_cnt + 1) and completes with RETRY_EXC. An idle connection is
 * given something to repeat: a zero-length RDMA write, which takes no receive at the peer and which its program never
 * sees.
 *
 * The write is not signaled: as long as the peer's device answers nothing completes, nobody wakes up, and the only cost
 * is the posting; a request that fails completes always. So a sweep over the connections that compares a counter is all
 * that an idle process does, and a busy one pays an increment a batch of completions.
 *
 * The sweep visits at most BATCH connections every STEP_NS; thousands of them are visited less often. What one
 * connection finds out makes all others with the same peer address look at once, and a port that goes down makes all
 * look, two seconds later. They do not end on that account: the link may be back before their queue pairs give up.
 */
#include "rdma_stream.h"

#include "config.h"
#include "socket.h"

#include <netinet/in.h>
#include <string.h>
#include <utlist.h>

#define BATCH         256
#define STEP_NS       (250 * VKR_MS)
#define PERIOD_MIN_NS (500 * VKR_MS)
/* A machine's death is found by each of its connections; once is enough for the others. */
#define SUSPECT_AGAIN_NS (1000 * VKR_MS)
/* A port that is back sooner costs nothing: rxe fails what is sent while it is down at once. */
#define DOUBT_NS (2000 * VKR_MS)

static void timer_run(struct vkr_timer *timer);
static void doubt_run(struct vkr_timer *timer);

/* Progress thread. */
static struct vkr_stream *watched; /* the next to be visited is the first */
static int n_watched;
static int64_t shortest, shortest_next; /* intervals: in force, of this round */
static int round_left;
static struct vkr_timer timer = {.run = timer_run};
static struct sockaddr_storage suspect;
static int64_t suspect_ns;
static struct vkr_timer doubt = {.run = doubt_run};

void vkr_alive_forked(void)
{
	watched = NULL;
	n_watched = 0;
	timer.armed = doubt.armed = false;
	shortest = 0;
	suspect_ns = 0;
}

/* Lock held. How long the connection may be idle, ns; 0: for ever. */
static int64_t interval(const struct vkr_stream *s)
{
	int64_t ours = (int64_t)vkr_config.keepalive_s * 1000 * VKR_MS;

	return ours && s->keepalive_ns ? vkr_min(ours, s->keepalive_ns) : ours ? ours : s->keepalive_ns;
}

/* Lock held. */
static void visit(struct vkr_stream *s, int64_t now)
{
	int64_t idle = interval(s);

	if (s->heard != s->heard_seen) {
		s->heard_seen = s->heard;
		s->heard_ns = now;
	} else if (now - s->heard_ns >= idle) {
		vkr_tx_probe(s);
		s->heard_ns = now;
	}
	shortest_next = shortest_next ? vkr_min(shortest_next, idle) : idle;
}

/* The time between two steps, and how many connections one visits, so that each is visited twice in its interval. */
static int64_t step_time(int *count)
{
	int64_t period = vkr_max(shortest / 2, PERIOD_MIN_NS);
	int steps = (n_watched + BATCH - 1) / BATCH;

	*count = (n_watched + steps - 1) / steps;
	return vkr_max(period / steps, vkr_min(period, STEP_NS));
}

static void timer_run(struct vkr_timer *t)
{
	int64_t now = vkr_now_ns(), wait;
	struct vkr_stream *s;
	int n;

	if (!watched)
		return;
	if (round_left <= 0) {
		round_left = n_watched;
		shortest_next = 0;
	}
	wait = step_time(&n);
	for (round_left -= n; n > 0 && watched; n--) {
		s = watched;
		DL_DELETE2(watched, s, alive_prev, alive_next);
		DL_APPEND2(watched, s, alive_prev, alive_next);
		pthread_mutex_lock(&s->p.lock);
		visit(s, now);
		pthread_mutex_unlock(&s->p.lock);
	}
	if (round_left <= 0)
		shortest = shortest_next;
	vkr_timer_set(t, now + wait);
}

void vkr_alive_forget(struct vkr_stream *s)
{
	if (!s->alive_watched)
		return;
	s->alive_watched = false;
	DL_DELETE2(watched, s, alive_prev, alive_next);
	if (!--n_watched)
		vkr_timer_cancel(&timer);
}

void vkr_alive_watch(struct vkr_stream *s)
{
	int64_t now = vkr_now_ns(), idle;
	int n;

	pthread_mutex_lock(&s->p.lock);
	idle = interval(s);
	if (!s->alive_watched)
		s->heard_ns = now;
	pthread_mutex_unlock(&s->p.lock);
	if (!idle) {
		vkr_alive_forget(s);
		return;
	}
	if (!s->alive_watched) {
		s->alive_watched = true;
		DL_APPEND2(watched, s, alive_prev, alive_next);
		n_watched++;
	}
	if (!timer.armed || idle < shortest) {
		shortest = idle;
		vkr_timer_set(&timer, now + step_time(&n));
	}
}

/* ------------------------------------------------------------------ suspicion */

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;

	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

static void probe(struct vkr_stream *s)
{
	pthread_mutex_lock(&s->p.lock);
	if (s->alive_watched && s->phase == VKR_PH_OPEN) {
		vkr_tx_probe(s);
		s->heard_ns = vkr_now_ns();
	}
	pthread_mutex_unlock(&s->p.lock);
}

void vkr_alive_lost(const struct vkr_stream *dead)
{
	int64_t now = vkr_now_ns();
	struct vkr_stream *s;

	if (suspect_ns && now - suspect_ns < SUSPECT_AGAIN_NS && same_host(&suspect, &dead->peer))
		return;
	suspect = dead->peer;
	suspect_ns = now;
	DL_FOREACH2(watched, s, alive_next)
	if (s != dead && same_host(&s->peer, &dead->peer))
		probe(s);
}

static void doubt_run(struct vkr_timer *t)
{
	struct vkr_stream *s;

	DL_FOREACH2(watched, s, alive_next)
	probe(s);
}

void vkr_alive_doubt(void)
{
	if (!doubt.armed)
		vkr_timer_set(&doubt, vkr_now_ns() + DOUBT_NS);
}

/* ------------------------------------------------------------------ rdma.h */

void vkr_stream_keepalive(struct vkr_stream *s, int idle_s)
{
	int cancel = vkr_verbs_enter();

	pthread_mutex_lock(&s->p.lock);
	if (s->keepalive_ns != idle_s * 1000 * VKR_MS) {
		s->keepalive_ns = idle_s * 1000 * VKR_MS;
		vkr_task_queue(&s->task);
	}
	pthread_mutex_unlock(&s->p.lock);
	vkr_verbs_leave(cancel);
}

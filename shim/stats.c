/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The counters' map. It is found and read by vkrdma-stat while we write it; nobody else can change its size (sealed),
 * nor write it where the kernel knows F_SEAL_FUTURE_WRITE. Slots are handed out from free lists kept in private memory:
 * nothing that is read back from the map decides anything here.
 */
#include "stats.h"
#include "config.h"
#include "guard.h"
#include "libc_real.h"
#include "log.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Free slots: those below `used` that were given back are on a list, linked by index plus one. */
struct slot_list {
	uint32_t used, limit, head;
	uint32_t *next;
};

static struct vkr_stats_header dummy;
static struct vkr_stats_map *map; /* NULL: not open */
static int map_fd = -1;
static bool open_failed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf: no other lock is taken with it held */

static uint32_t conn_next[VKR_STATS_CONNS], listener_next[VKR_STATS_LISTENERS];
static struct slot_list conns = {.limit = VKR_STATS_CONNS, .next = conn_next};
static struct slot_list listeners = {.limit = VKR_STATS_LISTENERS, .next = listener_next};

/* Shared by everyone who came too late; not in the map. */
static struct vkr_conn_stats overflow_conn;
static struct vkr_listener_stats overflow_listener;

struct vkr_stats_header *vkr_stats = &dummy;

static int slot_take(struct slot_list *list)
{
	uint32_t i = list->head;

	if (i) {
		list->head = list->next[i - 1];
		return (int)i - 1;
	}
	return list->used < list->limit ? (int)list->used++ : -1;
}

static void slot_give(struct slot_list *list, uint32_t i)
{
	list->next[i] = list->head;
	list->head = i + 1;
}

static void slots_reset(struct slot_list *list)
{
	list->used = 0;
	list->head = 0;
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void text_copy(char *to, size_t size, const char *from)
{
	size_t n = from ? strnlen(from, size - 1) : 0;

	if (n)
		memcpy(to, from, n);
	memset(to + n, 0, size - n);
}

static void address_copy(struct sockaddr_in6 *to, const struct sockaddr *from)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;

	memset(to, 0, sizeof(*to));
	if (!from)
		return;
	if (from->sa_family == AF_INET6) {
		memcpy(to, from, sizeof(*to));
	} else if (from->sa_family == AF_INET) {
		to->sin6_family = AF_INET;
		to->sin6_port = v4->sin_port;
		to->sin6_addr.s6_addr[10] = to->sin6_addr.s6_addr[11] = 0xff;
		memcpy(to->sin6_addr.s6_addr + 12, &v4->sin_addr, 4);
	}
}

/* Growing a file beyond RLIMIT_FSIZE raises SIGXFSZ, which would kill a program that limits itself. */
static int memfd_make(void)
{
	struct rlimit lim;
	int fd, rc;

	if (vkr_real.getrlimit(RLIMIT_FSIZE, &lim) == 0 && lim.rlim_cur < sizeof(struct vkr_stats_map))
		return -EFBIG;
	fd = memfd_create("vkrdma-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	do
		rc = ftruncate(fd, sizeof(struct vkr_stats_map)) < 0 ? -errno : 0;
	while (rc == -EINTR);
	if (rc < 0) {
		vkr_real.close(fd);
		return rc;
	}
	return fd;
}

static void memfd_seal(int fd)
{
	const int size_seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

	if (vkr_real.fcntl(fd, F_ADD_SEALS, size_seals | F_SEAL_FUTURE_WRITE) < 0)
		vkr_real.fcntl(fd, F_ADD_SEALS, size_seals);
}

static void header_fill(struct vkr_stats_header *h)
{
	*h = dummy; /* what was counted before the map was there */
	h->version = VKR_STATS_VERSION;
	h->size_conn = sizeof(struct vkr_conn_stats);
	h->size_listener = sizeof(struct vkr_listener_stats);
	h->n_conns = VKR_STATS_CONNS;
	h->n_listeners = VKR_STATS_LISTENERS;
	h->pid = (int32_t)getpid();
	h->provider = vkr_config.provider_soft;
	h->start_ms = now_ms();
	text_copy(h->program, sizeof(h->program), program_invocation_short_name);
	atomic_thread_fence(memory_order_release);
	h->magic = VKR_STATS_MAGIC; /* last: a reader takes the map from here on */
}

/* Lock held. 0 or -errno. */
static int map_open(void)
{
	struct vkr_stats_map *m;
	int fd = memfd_make();
	int rc;

	if (fd < 0)
		return fd;
	m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) {
		rc = -errno;
		vkr_real.close(fd);
		return rc;
	}
	memfd_seal(fd);
	map_fd = vkr_guard_fd(fd);
	vkr_guard_slot(map_fd, &map_fd);
	header_fill(&m->header);
	map = m;
	__atomic_store_n(&vkr_stats, &m->header, __ATOMIC_RELEASE);
	return 0;
}

/* Lock held. The errno (negative) of an attempt that has just failed, else 0. */
static int map_need(void)
{
	int rc;

	if (map || open_failed)
		return 0;
	rc = map_open();
	open_failed = rc < 0;
	return rc;
}

static void complain(int rc)
{
	if (rc < 0)
		vkr_warn("no counters for vkrdma-stat: shared memory cannot be had (%s)", strerrordesc_np(-rc));
}

void vkr_stats_open(void)
{
	int saved = errno;
	int rc;

	pthread_mutex_lock(&lock);
	rc = map_need();
	pthread_mutex_unlock(&lock);
	complain(rc);
	errno = saved;
}

static void conn_clear(struct vkr_conn_stats *c)
{
	size_t from = offsetof(struct vkr_conn_stats, transport);

	memset((char *)c + from, 0, sizeof(*c) - from);
	c->fd = -1;
}

struct vkr_conn_stats *vkr_stats_conn_new(enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
					  const char *rule)
{
	struct vkr_conn_stats *c = &overflow_conn;
	int saved = errno;
	int i = -1, rc;

	pthread_mutex_lock(&lock);
	rc = map_need();
	if (map)
		i = slot_take(&conns);
	if (i >= 0) {
		c = &map->conns[i];
		c->generation++;
		conn_clear(c);
		c->role = role;
		c->since_ms = now_ms();
		address_copy(&c->local, local);
		address_copy(&c->peer, peer);
		text_copy(c->rule, sizeof(c->rule), rule);
		vkr_store_rel(&c->state, VKR_SLOT_CONNECTING);
		vkr_store_rel(&map->header.high_conn, conns.used);
	}
	pthread_mutex_unlock(&lock);
	complain(rc);
	errno = saved;
	return c;
}

void vkr_stats_conn_addrs(struct vkr_conn_stats *c, const struct sockaddr *local, const struct sockaddr *peer)
{
	if (c == &overflow_conn)
		return;
	if (local)
		address_copy(&c->local, local);
	if (peer)
		address_copy(&c->peer, peer);
}

void vkr_stats_conn_open(struct vkr_conn_stats *c, enum vkr_transport t, const char *reason)
{
	struct vkr_totals *closed;

	pthread_mutex_lock(&lock);
	closed = &vkr_stats->closed;
	if (t == VKR_TRANSPORT_RDMA)
		vkr_count(&closed->conns_rdma, 1);
	else if (t == VKR_TRANSPORT_TCP)
		vkr_count(&closed->conns_tcp, 1);
	pthread_mutex_unlock(&lock);
	if (c == &overflow_conn)
		return;
	text_copy(c->reason, sizeof(c->reason), reason);
	c->transport = t;
	vkr_store_rel(&c->state, VKR_SLOT_OPEN);
}

/* The overflow slot has other users: what is added to the totals is taken away from it. */
static void counter_move(vkr_counter *to, vkr_counter *from)
{
	vkr_count(to, atomic_exchange_explicit(from, 0, memory_order_relaxed));
}

static void totals_add(struct vkr_totals *t, struct vkr_conn_stats *c)
{
	counter_move(&t->bytes_in, &c->bytes_in);
	counter_move(&t->bytes_out, &c->bytes_out);
	counter_move(&t->immediates_in, &c->immediates_in);
	counter_move(&t->immediates_out, &c->immediates_out);
	counter_move(&t->sends_in, &c->sends_in);
	counter_move(&t->sends_out, &c->sends_out);
	counter_move(&t->refreshes_in, &c->refreshes_in);
	counter_move(&t->refreshes_out, &c->refreshes_out);
	counter_move(&t->stalls, &c->stalls);
	counter_move(&t->rings_in, &c->rings_in);
	counter_move(&t->rings_out, &c->rings_out);
	counter_move(&t->credits_in, &c->credits_in);
	counter_move(&t->credits_out, &c->credits_out);
	counter_move(&t->wakes_in, &c->wakes_in);
	counter_move(&t->wakes_out, &c->wakes_out);
}

void vkr_stats_conn_free(struct vkr_conn_stats *c)
{
	pthread_mutex_lock(&lock);
	if (c == &overflow_conn) {
		totals_add(&vkr_stats->closed, c);
	} else if (map && c >= map->conns && c < map->conns + VKR_STATS_CONNS && vkr_load(&c->state) != VKR_SLOT_FREE) {
		if (c->transport == VKR_TRANSPORT_NONE)
			vkr_count(&map->header.closed.failed, 1);
		/* A reader that meets the slot now takes the counters from `closed` alone. */
		vkr_store_rel(&c->state, VKR_SLOT_FREE);
		totals_add(&map->header.closed, c);
		slot_give(&conns, (uint32_t)(c - map->conns));
	}
	pthread_mutex_unlock(&lock);
}

/* Live connections go on: their counters are read, not moved. */
void vkr_stats_log(void)
{
	uint64_t in = 0, out = 0, rdma = 0;
	uint32_t i;

	if (vkr_log_level < VKR_LOG_DEBUG)
		return;
	pthread_mutex_lock(&lock);
	if (map) {
		rdma = vkr_load(&map->header.closed.conns_rdma);
		in = vkr_load(&map->header.closed.immediates_in);
		out = vkr_load(&map->header.closed.immediates_out);
		for (i = 0; i < conns.used; i++)
			if (vkr_load(&map->conns[i].state) != VKR_SLOT_FREE) {
				in += vkr_load(&map->conns[i].immediates_in);
				out += vkr_load(&map->conns[i].immediates_out);
			}
	}
	pthread_mutex_unlock(&lock);
	if (rdma)
		vkr_debug("carried %llu connections with %llu immediates in and %llu out", (unsigned long long)rdma,
			  (unsigned long long)in, (unsigned long long)out);
}

struct vkr_listener_stats *vkr_stats_listener_new(const struct sockaddr *local, const char *rule)
{
	struct vkr_listener_stats *l = &overflow_listener;
	size_t from = offsetof(struct vkr_listener_stats, fd);
	int saved = errno;
	int i = -1, rc;

	pthread_mutex_lock(&lock);
	rc = map_need();
	if (map)
		i = slot_take(&listeners);
	if (i >= 0) {
		l = &map->listeners[i];
		memset((char *)l + from, 0, sizeof(*l) - from);
		l->fd = -1;
		address_copy(&l->local, local);
		text_copy(l->rule, sizeof(l->rule), rule);
		vkr_store_rel(&l->state, VKR_SLOT_OPEN);
		vkr_store_rel(&map->header.high_listener, listeners.used);
	}
	pthread_mutex_unlock(&lock);
	complain(rc);
	errno = saved;
	return l;
}

void vkr_stats_listener_free(struct vkr_listener_stats *l)
{
	pthread_mutex_lock(&lock);
	if (map && l >= map->listeners && l < map->listeners + VKR_STATS_LISTENERS &&
	    vkr_load(&l->state) != VKR_SLOT_FREE) {
		vkr_store_rel(&l->state, VKR_SLOT_FREE);
		slot_give(&listeners, (uint32_t)(l - map->listeners));
	}
	pthread_mutex_unlock(&lock);
}

/*
 * The parent's map must not be written from here on, yet stale pointers into it may still be followed. Private memory
 * is put in its place and stays. The descriptor is closed by the fork handler, with all guarded ones.
 */
void vkr_stats_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	if (map)
		mmap(map, sizeof(*map), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
		     -1, 0);
	memset(&dummy, 0, sizeof(dummy));
	vkr_stats = &dummy;
	map = NULL;
	map_fd = -1;
	open_failed = false;
	slots_reset(&conns);
	slots_reset(&listeners);
	memset(&overflow_conn, 0, sizeof(overflow_conn));
	memset(&overflow_listener, 0, sizeof(overflow_listener));
}

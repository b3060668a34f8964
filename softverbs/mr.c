/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory: the data memfd and its allocator, swapping of registered pages, keys.
 *
 * Peers reach memory that lies in the data memfd without our help. Arenas lie there from birth. Whole private anonymous
 * pages of other memory that is registered for remote access are replaced by pages of the memfd with the same contents,
 * and by private pages again when the last registration goes. All else is written by ourselves, from the ring.
 */
#include "soft.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* A peer may be reading the entry's last life: its second look at the key tells it. */
#define sv_put(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

#define PAGE      4096ull
#define N_CLASSES 256

struct sv_range {
	uint64_t start, end; /* our addresses */
	uint64_t off;
	int refs;
};

struct extent {
	struct extent *next;
	uint64_t off;
};

static pthread_mutex_t mr_lock = PTHREAD_MUTEX_INITIALIZER;
static struct extent *free_extents[N_CLASSES];
static uint64_t data_top;
static struct sv_range **ranges;
static size_t nranges, cap_ranges;
static _Atomic uint64_t pinned;

void sv_mr_reset(void)
{
	pthread_mutex_init(&mr_lock, NULL);
	memset(free_extents, 0, sizeof(free_extents));
	data_top = 0;
	ranges = NULL;
	nranges = cap_ranges = 0;
	atomic_store(&pinned, 0);
}

/* ------------------------------------------------------------------ the data memfd */

/* Rounds up to eight sizes between powers of two, so that freed extents fit again; returns the class. */
static unsigned extent_class(uint64_t *pages)
{
	uint64_t n = *pages, step;
	unsigned log2;

	if (n <= 16)
		return (unsigned)n;
	log2 = 63 - (unsigned)__builtin_clzll(n);
	step = 1ull << (log2 - 3);
	n = (n + step - 1) & ~(step - 1);
	log2 = 63 - (unsigned)__builtin_clzll(n);
	*pages = n;
	return 17 + (log2 - 4) * 8 + (unsigned)((n >> (log2 - 3)) & 7);
}

/* mr_lock held. SV_DATA_SIZE when there is none. */
static uint64_t extent_alloc(uint64_t len)
{
	uint64_t pages = (len + PAGE - 1) / PAGE, off;
	unsigned class;
	struct extent *e;

	if (!pages || pages > SV_DATA_SIZE / PAGE / 2)
		return SV_DATA_SIZE;
	class = extent_class(&pages);
	e = free_extents[class];
	if (e) {
		free_extents[class] = e->next;
		off = e->off;
		free(e);
		return off;
	}
	if (data_top + pages * PAGE > SV_DATA_SIZE)
		return SV_DATA_SIZE;
	off = data_top;
	data_top += pages * PAGE;
	return off;
}

static void extent_free(uint64_t off, uint64_t len)
{
	uint64_t pages = (len + PAGE - 1) / PAGE;
	unsigned class = extent_class(&pages);
	struct extent *e = malloc(sizeof(*e));

	fallocate(sv_proc.data_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)off, (off_t)(pages * PAGE));
	if (!e)
		return; /* the address range is lost, its pages are not */
	e->off = off;
	e->next = free_extents[class];
	free_extents[class] = e;
}

void *sv_arena_alloc(size_t len)
{
	uint64_t off;
	int ret = sv_start();

	if (ret) {
		errno = ret;
		return NULL;
	}
	pthread_mutex_lock(&mr_lock);
	off = extent_alloc(len);
	pthread_mutex_unlock(&mr_lock);
	if (off == SV_DATA_SIZE) {
		errno = ENOMEM;
		return NULL;
	}
	return sv_proc.data + off;
}

void sv_arena_free(void *p, size_t len)
{
	if (!p || !sv_proc.data || !sv_started())
		return;
	pthread_mutex_lock(&mr_lock);
	extent_free((uint64_t)((char *)p - sv_proc.data), len);
	pthread_mutex_unlock(&mr_lock);
}

/* ------------------------------------------------------------------ what the memory is */

struct mem_kind {
	bool mapped, writable, swappable;
	bool ours; /* still a mapping of the data memfd */
};

static struct mem_kind mem_kind(uint64_t start, uint64_t end)
{
	struct mem_kind k = {true, true, true, true};
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t at = start;
	char *line = NULL;
	size_t cap = 0;

	while (f && at < end && getline(&line, &cap, f) > 0) {
		unsigned long lo, hi, off, ino;
		char perm[8] = "", path[32] = "";

		if (sscanf(line, "%lx-%lx %7s %lx %*s %lu %31s", &lo, &hi, perm, &off, &ino, path) < 5 || hi <= at)
			continue;
		if (lo > at)
			break;
		at = hi;
		k.writable = k.writable && perm[1] == 'w';
		k.mapped = k.mapped && perm[0] == 'r';
		k.swappable = k.swappable && perm[0] == 'r' && perm[1] == 'w' && perm[3] == 'p' && !ino &&
			      perm[2] != 'x' && strcmp(path, "[stack]") != 0;
		k.ours = k.ours && !strncmp(path, "/memfd:vkrdma-soft-data", 23);
	}
	if (at < end)
		memset(&k, 0, sizeof(k));
	free(line);
	if (f)
		fclose(f);
	return k;
}

/* ------------------------------------------------------------------ swapping; mr_lock held */

static size_t range_pos(uint64_t addr)
{
	size_t lo = 0, hi = nranges;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (ranges[mid]->end <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int range_insert(struct sv_range *r)
{
	size_t pos = range_pos(r->start);

	if (nranges == cap_ranges) {
		size_t cap = cap_ranges ? cap_ranges * 2 : 64;
		struct sv_range **bigger = realloc(ranges, cap * sizeof(*ranges));

		if (!bigger)
			return ENOMEM;
		ranges = bigger;
		cap_ranges = cap;
	}
	memmove(ranges + pos + 1, ranges + pos, (nranges - pos) * sizeof(*ranges));
	ranges[pos] = r;
	nranges++;
	return 0;
}

static struct sv_range *range_swap(uint64_t start, uint64_t end)
{
	struct sv_range *r = calloc(1, sizeof(*r));
	uint64_t len = end - start;
	void *p;

	if (!r)
		return NULL;
	r->off = extent_alloc(len);
	if (r->off == SV_DATA_SIZE)
		goto fail;
	memcpy(sv_proc.data + r->off, (void *)start, len);
	r->start = start;
	r->end = end;
	r->refs = 1;
	if (range_insert(r))
		goto fail_extent;
	p = mmap((void *)start, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, sv_proc.data_fd, (off_t)r->off);
	if (p == MAP_FAILED) {
		size_t pos = range_pos(start);

		memmove(ranges + pos, ranges + pos + 1, (nranges - pos - 1) * sizeof(*ranges));
		nranges--;
		goto fail_extent;
	}
	madvise(p, len, MADV_DONTFORK);
	return r;
fail_extent:
	extent_free(r->off, len);
fail:
	free(r);
	return NULL;
}

static void range_put(struct sv_range *r)
{
	uint64_t len = r->end - r->start;
	size_t pos;

	if (--r->refs)
		return;
	pos = range_pos(r->start);
	memmove(ranges + pos, ranges + pos + 1, (nranges - pos - 1) * sizeof(*ranges));
	nranges--;
	/* Where the program has unmapped or replaced the memory before deregistering it, leave what is there alone. */
	if (mem_kind(r->start, r->end).ours) {
		void *copy = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (copy == MAP_FAILED)
			return; /* stays shared: correct, only not private */
		memcpy(copy, sv_proc.data + r->off, len);
		if (mremap(copy, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)r->start) == MAP_FAILED) {
			munmap(copy, len);
			return;
		}
	}
	extent_free(r->off, len);
	free(r);
}

static struct sv_range *range_get(uint64_t start, uint64_t end, bool swappable)
{
	size_t pos = range_pos(start);

	if (pos < nranges && ranges[pos]->start < end) {
		ranges[pos]->refs++;
		return ranges[pos];
	}
	return swappable ? range_swap(start, end) : NULL;
}

/* ------------------------------------------------------------------ registration */

static bool in_arena(uint64_t addr, uint64_t len)
{
	uint64_t base = (uint64_t)sv_proc.data;

	return addr >= base && addr - base <= SV_DATA_SIZE && len <= SV_DATA_SIZE - (addr - base);
}

static int mr_place(struct sv_mr *m, struct sv_mr_ent *e)
{
	uint64_t va = e->va, end = va + e->len, start_page = (va + PAGE - 1) & ~(PAGE - 1),
		 end_page = end & ~(PAGE - 1);
	struct mem_kind k;

	sv_put(&e->dir_start, e->addr);
	sv_put(&e->dir_end, e->addr);
	sv_put(&e->dir_off, 0);
	if (in_arena(va, e->len)) {
		sv_put(&e->dir_end, e->addr + e->len);
		sv_put(&e->dir_off, va - (uint64_t)sv_proc.data);
		return 0;
	}
	k = mem_kind(va, end);
	if (!k.mapped || ((m->access & IBV_ACCESS_LOCAL_WRITE) && !k.writable))
		return EFAULT;
	if (!(m->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)) ||
	    start_page >= end_page)
		return 0;
	m->range = range_get(start_page, end_page, mem_kind(start_page, end_page).swappable);
	if (m->range) {
		uint64_t lo = sv_max(start_page, m->range->start), hi = sv_min(end_page, m->range->end);

		sv_put(&e->dir_start, e->addr + (lo - va));
		sv_put(&e->dir_end, e->addr + (hi - va));
		sv_put(&e->dir_off, m->range->off + (lo - m->range->start));
	}
	return 0;
}

/* The lowest free slot; its tag changes with every use. */
static uint32_t mr_slot(uint8_t *tag)
{
	for (uint32_t i = sv_max(sv_proc.mr_hint, 1u); i < SV_MAX_MR; i++) {
		struct sv_mr_ent *e = &sv_proc.seg->mr[i];

		if (!sv_load(&e->key)) {
			sv_proc.mr_hint = i + 1;
			*tag = (uint8_t)++e->tag;
			return i;
		}
	}
	return 0;
}

static int mr_insert(struct sv_mr *m, struct ibv_pd *pd, uint64_t va, uint64_t len, uint64_t iova)
{
	struct sv_mr_ent *e;
	uint8_t tag = 0;
	int ret;

	m->idx = mr_slot(&tag);
	if (!m->idx)
		return ENOMEM;
	e = &sv_proc.seg->mr[m->idx];
	sv_put(&e->access, (uint32_t)m->access);
	sv_put(&e->pd, pd->handle);
	sv_put(&e->addr, iova);
	sv_put(&e->len, len);
	sv_put(&e->va, va);
	ret = mr_place(m, e);
	if (ret) {
		sv_proc.mr_hint = m->idx;
		return ret;
	}
	sv_store(&e->in_recv, 0);
	m->mr.lkey = m->mr.rkey = m->idx << 8 | tag;
	m->mr.handle = m->idx;
	sv_store_rel(&e->key, m->mr.rkey);
	return 0;
}

static uint64_t pages_of(const void *addr, size_t len)
{
	uint64_t start = (uint64_t)addr & ~(PAGE - 1), end = ((uint64_t)addr + len + PAGE - 1) & ~(PAGE - 1);

	return end - start;
}

static void unpin(const void *addr, size_t len)
{
	atomic_fetch_sub(&pinned, pages_of(addr, len));
}

static bool pin(const void *addr, size_t len)
{
	uint64_t now = atomic_fetch_add(&pinned, pages_of(addr, len)) + pages_of(addr, len);
	struct rlimit rl;

	if (sv_likely(!sv_fault_memlock()) || getrlimit(RLIMIT_MEMLOCK, &rl) || now <= rl.rlim_cur)
		return true;
	unpin(addr, len);
	return false;
}

struct ibv_mr *sv_mr_reg(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	const int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			  IBV_ACCESS_REMOTE_ATOMIC | (int)IBV_ACCESS_OPTIONAL_RANGE;
	struct sv_mr *m;
	int ret = 0;

	if (!sv_usable(pd->context) || (access & ~known) || !len || (uint64_t)addr + len < (uint64_t)addr)
		ret = EINVAL;
	else if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE))
		ret = EINVAL;
	else if (sv_fault_hit(SV_FAULT_REG_MR))
		ret = ENOMEM;
	if (ret) {
		errno = ret;
		return NULL;
	}
	if (!pin(addr, len)) {
		errno = ENOMEM;
		return NULL;
	}
	m = calloc(1, sizeof(*m));
	if (!m) {
		unpin(addr, len);
		return NULL;
	}
	m->mr.context = pd->context;
	m->mr.pd = pd;
	m->mr.addr = addr;
	m->mr.length = len;
	m->access = access;
	pthread_mutex_lock(&mr_lock);
	ret = mr_insert(m, pd, (uint64_t)addr, len, iova);
	pthread_mutex_unlock(&mr_lock);
	if (ret) {
		unpin(addr, len);
		free(m);
		errno = ret;
		return NULL;
	}
	atomic_fetch_add(&sv_container(pd, struct sv_pd, pd)->users, 1);
	return &m->mr;
}

int sv_mr_dereg(struct ibv_mr *mr)
{
	struct sv_mr *m = sv_container(mr, struct sv_mr, mr);
	struct sv_pd *pd = sv_container(mr->pd, struct sv_pd, pd);

	if (!sv_ours(mr->context))
		return EINVAL;
	atomic_store(&sv_proc.seg->mr[m->idx].key, SV_NONE); /* dead, but the slot is not free yet */
	sv_quiesce_pd(pd, sv_load(&sv_proc.seg->mr[m->idx].in_recv) ? mr->lkey : 0);
	pthread_mutex_lock(&mr_lock);
	if (m->range)
		range_put(m->range);
	sv_store_rel(&sv_proc.seg->mr[m->idx].key, 0);
	sv_proc.mr_hint = sv_min(sv_proc.mr_hint, m->idx);
	pthread_mutex_unlock(&mr_lock);
	atomic_fetch_sub(&pd->users, 1);
	unpin(mr->addr, mr->length);
	free(m);
	return 0;
}

/* ------------------------------------------------------------------ keys */

bool sv_lkey_ok(uint32_t lkey, uint64_t addr, uint64_t len, int access, uint32_t pd, char **va)
{
	struct sv_mr_ent *e = &sv_proc.seg->mr[(lkey >> 8) % SV_MAX_MR];
	uint64_t off;

	if (!lkey || sv_load(&e->key) != lkey || e->pd != pd || ((int)e->access & access) != access)
		return false;
	off = addr - e->addr;
	if (off > e->len || len > e->len - off)
		return false;
	*va = (char *)(e->va + off);
	return true;
}

bool sv_rkey_get(struct sv_seg *seg, uint32_t rkey, uint64_t addr, uint64_t len, uint32_t access, uint32_t pd,
		 struct sv_mr_ent *out)
{
	struct sv_mr_ent *e = &seg->mr[(rkey >> 8) % SV_MAX_MR];
	uint64_t off;

	if (!rkey || rkey == SV_NONE || atomic_load(&e->key) != rkey)
		return false;
	/* Each load is ordered before the second look at the key. */
	out->access = __atomic_load_n(&e->access, __ATOMIC_ACQUIRE);
	out->pd = __atomic_load_n(&e->pd, __ATOMIC_ACQUIRE);
	out->addr = __atomic_load_n(&e->addr, __ATOMIC_ACQUIRE);
	out->len = __atomic_load_n(&e->len, __ATOMIC_ACQUIRE);
	out->va = __atomic_load_n(&e->va, __ATOMIC_ACQUIRE);
	out->dir_start = __atomic_load_n(&e->dir_start, __ATOMIC_ACQUIRE);
	out->dir_end = __atomic_load_n(&e->dir_end, __ATOMIC_ACQUIRE);
	out->dir_off = __atomic_load_n(&e->dir_off, __ATOMIC_ACQUIRE);
	if (sv_load(&e->key) != rkey || out->pd != pd || (out->access & access) != access)
		return false;
	off = addr - out->addr;
	if (off > out->len || len > out->len - off)
		return false;
	/* What says "direct" must lie in the data memfd, whatever the owner's memory holds. */
	if (out->dir_start > out->dir_end || out->dir_end - out->dir_start > SV_DATA_SIZE ||
	    out->dir_off > SV_DATA_SIZE - (out->dir_end - out->dir_start))
		out->dir_start = out->dir_end = out->addr;
	return true;
}

/* ------------------------------------------------------------------ quiescence */

bool sv_quiesce_qp(struct sv_qp *qp)
{
	uint32_t seen = atomic_load(&qp->ent->busy);
	uint64_t until;

	if (!(seen & 1))
		return true;
	/* A peer that is stopped in the middle of a copy must not hold us for ever. */
	until = sv_now() + 2000000000ull;
	while (sv_load_acq(&qp->ent->busy) == seen && !(qp->peer && sv_load(&qp->peer->dead))) {
		if (sv_now() > until)
			return false;
		sched_yield();
	}
	return true;
}

static void quiesce_for_key(struct sv_qp *qp, uint32_t lkey)
{
	if (lkey) {
		sv_lock(&qp->lock);
		sv_recv_spoil(qp, lkey);
		sv_unlock(&qp->lock);
	}
	sv_quiesce_qp(qp);
}

void sv_quiesce_pd(struct sv_pd *pd, uint32_t lkey)
{
	pthread_mutex_lock(&pd->lock);
	for (struct sv_qp *qp = pd->qps; qp; qp = qp->pd_next)
		quiesce_for_key(qp, lkey);
	pthread_mutex_unlock(&pd->lock);
}

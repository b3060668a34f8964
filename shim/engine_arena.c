/* SPDX-License-Identifier: BSD-2-Clause */
#include "engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Blocks of 2^12 to 2^23 bytes are cut from slabs of 1 MiB, or are one, and stay; larger ones come and go. */
#define MIN_SHIFT  12
#define MAX_SHIFT  23
#define SLAB_SHIFT 20

/*
 * A free block's link is not kept inside it: a peer whose key was revoked a moment late, or a provider's bug, must not
 * be able to steer the allocator. Links live in ordinary memory.
 */
struct free_list {
	void **blocks;
	size_t n, room;
};

static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;
static struct free_list lists[MAX_SHIFT + 1];

static void *pages_map(size_t len)
{
	void *p;

	if (vkr_verbs.soft)
		return vkr_verbs.soft->arena_alloc(len);
	p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	/* A page that the device writes must never become copy-on-write in the parent. */
	if (madvise(p, len, MADV_DONTFORK)) {
		munmap(p, len);
		return NULL;
	}
	return p;
}

static void pages_unmap(void *p, size_t len)
{
	if (vkr_verbs.soft)
		vkr_verbs.soft->arena_free(p, len);
	else
		munmap(p, len);
}

static int shift_of(size_t len)
{
	int shift = MIN_SHIFT;

	while (((size_t)1 << shift) < len)
		shift++;
	return shift;
}

size_t vkr_arena_size(size_t len)
{
	return (size_t)1 << shift_of(len);
}

static bool list_reserve(struct free_list *l, size_t more)
{
	void **blocks;
	size_t room;

	if (l->n + more <= l->room)
		return true;
	room = vkr_max(l->room * 2, l->n + more);
	blocks = realloc(l->blocks, room * sizeof(*blocks));
	if (!blocks)
		return false;
	l->blocks = blocks;
	l->room = room;
	return true;
}

static void *slab_cut(struct free_list *l, int shift)
{
	size_t size = (size_t)1 << shift, whole = (size_t)1 << vkr_max(shift, SLAB_SHIFT), off;
	char *slab;

	if (!list_reserve(l, whole / size))
		return NULL;
	slab = pages_map(whole);
	if (!slab)
		return NULL;
	for (off = whole - size; off > 0; off -= size)
		l->blocks[l->n++] = slab + off;
	return slab;
}

void *vkr_arena_alloc(size_t len)
{
	int shift = shift_of(len);
	struct free_list *l;
	void *p;

	if (shift > MAX_SHIFT)
		return pages_map((size_t)1 << shift);
	l = &lists[shift];
	pthread_mutex_lock(&arena_lock);
	p = l->n ? l->blocks[--l->n] : slab_cut(l, shift);
	pthread_mutex_unlock(&arena_lock);
	return p;
}

void vkr_arena_free(void *p, size_t len)
{
	int shift = shift_of(len);
	struct free_list *l;

	if (!p)
		return;
	if (shift > MAX_SHIFT) {
		pages_unmap(p, (size_t)1 << shift);
		return;
	}
	l = &lists[shift];
	pthread_mutex_lock(&arena_lock);
	/* Without memory for the link the block is lost, not the process. */
	if (list_reserve(l, 1))
		l->blocks[l->n++] = p;
	pthread_mutex_unlock(&arena_lock);
}

void vkr_arena_lock(void)
{
	pthread_mutex_lock(&arena_lock);
}

void vkr_arena_unlock(void)
{
	pthread_mutex_unlock(&arena_lock);
}

void vkr_arena_forked(void)
{
	/* The blocks are not mapped here; and their links may be in the middle of a change. */
	pthread_mutex_init(&arena_lock, NULL);
	memset(lists, 0, sizeof(lists));
}

void vkr_gauge_add(vkr_counter *gauge, int64_t n)
{
	atomic_fetch_add_explicit(gauge, (uint64_t)n, memory_order_relaxed);
}

struct ibv_mr *vkr_mr_register(struct ibv_pd *pd, void *p, size_t len, int access, vkr_counter *mem)
{
	struct ibv_mr *mr = (vkr_verbs.ibv_reg_mr)(pd, p, len, access); /* the header has a macro of that name */

	if (!mr)
		return NULL;
	vkr_gauge_add(&vkr_stats->mrs, 1);
	vkr_gauge_add(&vkr_stats->mr_bytes, (int64_t)len);
	vkr_gauge_add(mem, (int64_t)len);
	return mr;
}

void vkr_mr_deregister(struct ibv_mr *mr, vkr_counter *mem)
{
	if (!mr)
		return;
	vkr_gauge_add(&vkr_stats->mrs, -1);
	vkr_gauge_add(&vkr_stats->mr_bytes, -(int64_t)mr->length);
	vkr_gauge_add(mem, -(int64_t)mr->length);
	vkr_verbs.ibv_dereg_mr(mr);
}

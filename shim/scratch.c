/* SPDX-License-Identifier: BSD-2-Clause */
#include "scratch.h"

#include <pthread.h>
#include <sys/mman.h>

static VKR_TLS struct {
	void *mem;
	size_t size;
	bool busy; /* for good where a handler has jumped out of the call */
} kept;

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool key_made;

static void *map(size_t size)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return mem == MAP_FAILED ? NULL : mem;
}

/* The thread ends, perhaps by a jump out of a call. */
static void thread_ends(void *mem)
{
	if (kept.mem)
		munmap(kept.mem, kept.size);
	kept.mem = NULL;
	kept.size = 0;
	kept.busy = false;
}

static void make_key(void)
{
	key_made = pthread_key_create(&key, thread_ends) == 0;
}

/* The thread's piece is taken. */
static bool grow(size_t size)
{
	void *mem = map(size);

	pthread_once(&once, make_key);
	if (!mem || !key_made || pthread_setspecific(key, mem)) {
		if (mem)
			munmap(mem, size);
		return false;
	}
	if (kept.mem)
		munmap(kept.mem, kept.size);
	kept.mem = mem;
	kept.size = size;
	return true;
}

void *vkr_scratch_take(size_t size)
{
	enum { STEP = 65536 };

	if (kept.busy)
		return map(size);
	kept.busy = true;
	atomic_signal_fence(memory_order_seq_cst);
	if (vkr_likely(size <= kept.size) || grow((size + STEP - 1) / STEP * STEP))
		return kept.mem;
	kept.busy = false;
	return map(size);
}

void vkr_scratch_give(void *mem, size_t size)
{
	if (mem && mem != kept.mem) {
		munmap(mem, size);
	} else if (mem) {
		atomic_signal_fence(memory_order_seq_cst);
		kept.busy = false;
	}
}

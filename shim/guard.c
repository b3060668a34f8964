/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The set of guarded descriptors: a two-level bitmap, no locks at all, so that a forked child finds it whole whatever
 * the other threads were doing. A leaf covers 32,768 numbers and is mapped when the first of them is guarded; its
 * slot and forward tables take memory only where they are touched.
 */
#include "guard.h"
#include "libc_real.h"
#include "nofile.h"
#include "socket.h"
#include "stats.h"

#include <fcntl.h>
#include <sys/mman.h>

#define LEAF_SHIFT 15
#define LEAF_BITS  (1 << LEAF_SHIFT)
#define LEAF_WORDS (LEAF_BITS / 64)
#define TOP_SIZE   1024 /* 33 million descriptors; numbers above are not guarded */
#define HIGH_MAX   65536

struct leaf {
	_Atomic uint64_t bits[LEAF_WORDS];
	/* Where the owner keeps the number. */
	int *_Atomic slots[LEAF_BITS];
	/* Where a number was moved to by vkr_guard_evict(), plus one: an owner that read its slot just before the move
	 * still closes the right descriptor. */
	_Atomic int forward[LEAF_BITS];
};

_Atomic unsigned vkr_guard_low = VKR_FD_CHUNK_SIZE;
static struct leaf *_Atomic top[TOP_SIZE];
static _Atomic int64_t guarded;

static struct leaf *leaf_find(int fd)
{
	if (fd < 0 || fd >> LEAF_SHIFT >= TOP_SIZE)
		return NULL;
	return vkr_load_acq(&top[fd >> LEAF_SHIFT]);
}

static struct leaf *leaf_make(int fd)
{
	struct leaf *leaf = leaf_find(fd);
	struct leaf *seen = NULL;

	if (leaf || fd < 0 || fd >> LEAF_SHIFT >= TOP_SIZE)
		return leaf;
	leaf = mmap(NULL, sizeof(*leaf), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (leaf == MAP_FAILED)
		return NULL;
	if (atomic_compare_exchange_strong(&top[fd >> LEAF_SHIFT], &seen, leaf))
		return leaf;
	munmap(leaf, sizeof(*leaf));
	return seen;
}

static unsigned bit_index(int fd)
{
	return (unsigned)fd & (LEAF_BITS - 1);
}

static void count_publish(int64_t change)
{
	int64_t now = atomic_fetch_add_explicit(&guarded, change, memory_order_relaxed) + change;

	vkr_store(&vkr_stats->library_fds, (uint64_t)now);
}

/* True if this call cleared the bit: of several racing closers one wins. */
static bool bit_clear(struct leaf *leaf, int fd)
{
	unsigned i = bit_index(fd);
	uint64_t mask = UINT64_C(1) << (i % 64);

	if (!(atomic_fetch_and(&leaf->bits[i / 64], ~mask) & mask))
		return false;
	count_publish(-1);
	return true;
}

void vkr_guard_mark(int fd)
{
	unsigned low = vkr_load(&vkr_guard_low);
	struct leaf *leaf = leaf_make(fd);
	unsigned i = bit_index(fd);
	uint64_t mask = UINT64_C(1) << (i % 64);

	if (!leaf)
		return;
	atomic_store(&leaf->slots[i], NULL);
	atomic_store(&leaf->forward[i], 0);
	while ((unsigned)fd < low && !atomic_compare_exchange_weak(&vkr_guard_low, &low, (unsigned)fd))
		;
	if (!(atomic_fetch_or(&leaf->bits[i / 64], mask) & mask))
		count_publish(1);
}

void vkr_guard_unmark(int fd)
{
	struct leaf *leaf = leaf_find(fd);

	if (leaf)
		bit_clear(leaf, fd);
}

bool vkr_guard_has(int fd)
{
	struct leaf *leaf = leaf_find(fd);
	unsigned i = bit_index(fd);

	return leaf && (vkr_load(&leaf->bits[i / 64]) >> (i % 64) & 1);
}

/*
 * Above all that the application's own limit lets it have, wherever the hard limit leaves room there; in the upper half
 * where it does not, so that the application keeps the lower. Never so high that the kernel's own table becomes large.
 */
static int dup_high(int fd)
{
	struct rlimit lim;
	rlim_t app, top;
	int n;

	if (vkr_real.getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return -errno;
	app = vkr_min(vkr_limits_app(), lim.rlim_cur);
	top = vkr_min(lim.rlim_cur, (rlim_t)HIGH_MAX);
	n = vkr_real.fcntl(fd, F_DUPFD_CLOEXEC, (int)(app < top ? app : top / 2));
	return n < 0 ? -errno : n;
}

int vkr_guard_spare(int fd)
{
	int n = fd < 0 ? fd : dup_high(fd);

	if (fd >= 0)
		vkr_real.close(fd);
	if (n >= 0)
		vkr_guard_mark(n);
	return n;
}

int vkr_guard_fd(int fd)
{
	int saved = errno;
	int n;

	if (fd < 0)
		return fd;
	n = dup_high(fd);
	if (n >= 0) {
		vkr_real.close(fd);
	} else {
		n = fd;
		vkr_real.fcntl(fd, F_SETFD, FD_CLOEXEC);
	}
	vkr_guard_mark(n);
	errno = saved;
	return n;
}

void vkr_guard_close(int fd)
{
	struct leaf *leaf = leaf_find(fd);
	int saved = errno;
	int moved;

	if (!leaf)
		return;
	if (bit_clear(leaf, fd)) {
		vkr_real.close(fd);
	} else {
		moved = atomic_exchange(&leaf->forward[bit_index(fd)], 0) - 1;
		leaf = leaf_find(moved);
		if (leaf && bit_clear(leaf, moved))
			vkr_real.close(moved);
	}
	errno = saved;
}

void vkr_guard_slot(int fd, int *slot)
{
	struct leaf *leaf = leaf_find(fd);

	if (leaf && vkr_guard_has(fd))
		atomic_store(&leaf->slots[bit_index(fd)], slot);
}

/*
 * The old number stays open on the same file until the application's dup2 replaces it, so that nobody else is given it
 * meanwhile. An owner may close in the middle: who clears the bit of the old number decides. It may also have put
 * something else into its slot, whose memory is a slot's for ever (guard.h): only the old number is replaced.
 */
int vkr_guard_evict(int fd)
{
	struct leaf *leaf = leaf_find(fd);
	int saved = errno;
	int *slot;
	int n, was = fd;

	if (!leaf || !vkr_guard_has(fd))
		return 0;
	slot = atomic_exchange(&leaf->slots[bit_index(fd)], NULL);
	if (!slot)
		return vkr_guard_has(fd) ? -EBUSY : 0;
	n = dup_high(fd);
	if (n < 0) {
		atomic_store(&leaf->slots[bit_index(fd)], slot);
		errno = saved;
		return n;
	}
	vkr_guard_mark(n);
	vkr_guard_slot(n, slot);
	atomic_store(&leaf->forward[bit_index(fd)], n + 1);
	__atomic_compare_exchange_n(slot, &was, n, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
	if (!bit_clear(leaf, fd))
		vkr_guard_close(n);
	errno = saved;
	return 0;
}

int vkr_guard_next(int fd)
{
	unsigned word, from = fd < 0 ? 0 : (unsigned)fd;
	struct leaf *leaf;
	uint64_t bits;
	int t;

	for (t = (int)(from >> LEAF_SHIFT); t < TOP_SIZE; t++, from = (unsigned)t << LEAF_SHIFT) {
		leaf = vkr_load_acq(&top[t]);
		if (!leaf)
			continue;
		bits = UINT64_MAX << (bit_index((int)from) % 64);
		for (word = bit_index((int)from) / 64; word < LEAF_WORDS; word++, bits = UINT64_MAX) {
			bits &= vkr_load(&leaf->bits[word]);
			if (bits)
				return (t << LEAF_SHIFT) + (int)word * 64 + __builtin_ctzll(bits);
		}
	}
	return -1;
}

void vkr_guard_each(void (*fn)(int fd, void *arg), void *arg)
{
	int fd;

	for (fd = vkr_guard_next(0); fd >= 0; fd = vkr_guard_next(fd + 1))
		fn(fd, arg);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Our descriptors: moved and closed through the hooks, known one by one, so that late hooks can move them and a forked
 * child can close its copies.
 */
#include "soft.h"
#include "softverbs.h"

#include <sys/epoll.h>
#include <sys/syscall.h>

struct known {
	bool used;
	bool user;             /* the program knows it */
	bool moved;            /* through the hook */
	int bias;              /* the slot holds fd + bias */
	_Atomic int *slots[4]; /* who must hear of a new number */
	struct sv_source *src; /* in the thread's loop under this number */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t sv_fd_batch = PTHREAD_MUTEX_INITIALIZER;
/* In chunks that never move: a child forked in the middle of anything finds them whole. */
#define CHUNK  256
#define CHUNKS 4096

static struct known *known[CHUNKS];
static int (*fd_move)(int fd);
static void (*fd_close)(int fd);

static struct known *known_get(int fd)
{
	return fd >= 0 && fd < CHUNK * CHUNKS && known[fd / CHUNK] ? &known[fd / CHUNK][fd % CHUNK] : NULL;
}

/* lock held */
static struct known *known_at(int fd)
{
	if (fd < 0 || fd >= CHUNK * CHUNKS)
		return NULL;
	if (!known[fd / CHUNK])
		known[fd / CHUNK] = calloc(CHUNK, sizeof(struct known));
	return known_get(fd);
}

int sv_fd_new(int fd)
{
	int saved = errno;
	struct known *k;

	if (fd < 0)
		return fd;
	pthread_mutex_lock(&lock);
	if (fd_move)
		fd = fd_move(fd);
	k = known_at(fd);
	if (k) {
		memset(k, 0, sizeof(*k));
		k->used = true;
		k->moved = fd_move != NULL;
	}
	pthread_mutex_unlock(&lock);
	errno = saved;
	return fd;
}

void sv_fd_slot(int fd, _Atomic int *slot, int bias)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	k = fd >= 0 ? known_at(fd) : NULL;
	for (int i = 0; k && i < 4; i++) {
		if (!k->slots[i] || k->slots[i] == slot) {
			k->slots[i] = slot;
			k->bias = bias;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
}

void sv_fd_source(int fd, struct sv_source *src)
{
	struct known *k;

	pthread_mutex_lock(&lock);
	k = fd >= 0 ? known_at(fd) : NULL;
	if (k)
		k->src = src;
	pthread_mutex_unlock(&lock);
}

void sv_fd_close(int fd)
{
	int saved = errno;
	void (*closefn)(int fd);
	struct known *k;

	if (fd < 0)
		return;
	pthread_mutex_lock(&lock);
	k = known_get(fd);
	/* What the hook has not moved it does not know. */
	closefn = !k || k->moved ? fd_close : NULL;
	if (k)
		k->used = false;
	pthread_mutex_unlock(&lock);
	if (closefn)
		closefn(fd);
	else
		close(fd);
	errno = saved;
}

bool sv_fd_raise(int fd)
{
	uint64_t one = 1;
	int saved = errno;
	bool raised = syscall(SYS_write, fd, &one, sizeof(one)) == sizeof(one);

	errno = saved;
	return raised;
}

void sv_fd_user(int fd)
{
	pthread_mutex_lock(&lock);
	if (known_get(fd))
		known_get(fd)->user = true;
	pthread_mutex_unlock(&lock);
}

void sv_fd_fork_child(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_mutex_init(&sv_fd_batch, NULL);
	for (int fd = 0; fd < CHUNK * CHUNKS; fd++) {
		struct known *k = known_get(fd);

		if (!k)
			fd += CHUNK - 1;
		else if (k->used && !k->user)
			sv_fd_close(fd);
		else
			k->used = false;
	}
}

/* lock held. Descriptors in the epoll set are filed under their number: out before, in again after. */
static void move_one(int fd)
{
	struct known k = *known_get(fd), *to;
	int now;

	if (k.src)
		sv_source_del(k.src);
	known_get(fd)->used = false;
	now = fd_move(fd);
	to = known_at(now);
	k.moved = true;
	if (to)
		*to = k;
	for (int i = 0; i < 4; i++)
		if (k.slots[i])
			atomic_store(k.slots[i], now + k.bias);
	if (k.src)
		sv_source_readd(k.src);
}

static void set_fd_hooks(int (*move)(int fd), void (*closefn)(int fd))
{
	/* Not while the thread has numbers in its hands. */
	pthread_mutex_lock(&sv_fd_batch);
	pthread_mutex_lock(&lock);
	fd_move = move;
	fd_close = closefn;
	for (int fd = 0; move && fd < CHUNK * CHUNKS; fd++) {
		struct known *k = known_get(fd);

		if (!k)
			fd += CHUNK - 1;
		else if (k->used && !k->moved)
			move_one(fd);
	}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&sv_fd_batch);
}

/* ------------------------------------------------------------------ the private entry */

SV_EXPORT const struct vkr_soft_api *vkr_soft_api(void)
{
	static const struct vkr_soft_api api = {
	    .abi = VKR_SOFT_ABI,
	    .arena_alloc = sv_arena_alloc,
	    .arena_free = sv_arena_free,
	    .set_fd_hooks = set_fd_hooks,
	    .max_inline = SV_MAX_INLINE,
	    .loop_own = sv_loop_own,
	    .loop_lend = sv_loop_lend,
	    .loop_fd = sv_loop_fd,
	    .loop_due = sv_loop_due,
	    .loop_run = sv_loop_run,
	    .cm_pending = sv_cm_pending,
	    .fault = sv_fault_now,
	    .cancels = sv_fault_cancels,
	};

	return &api;
}

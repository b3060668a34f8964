/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Small things every file needs. No state, no dependencies inside the project.
 */
#ifndef VKR_BASE_H
#define VKR_BASE_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define vkr_likely(x)                     __builtin_expect(!!(x), 1)
#define vkr_unlikely(x)                   __builtin_expect(!!(x), 0)
#define vkr_container_of(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))
#define VKR_ARRAY_SIZE(a)                 (sizeof(a) / sizeof((a)[0]))
#define VKR_EXPORT                        __attribute__((visibility("default")))
#define VKR_LOCAL                         __attribute__((visibility("hidden"))) /* a variable that no GOT entry leads to */
#define VKR_PRINTF(f, a)                  __attribute__((format(printf, f, a)))
#define VKR_INLINE                        inline __attribute__((always_inline)) /* on the path of every request */
#define VKR_COLD                          __attribute__((noinline, cold))
#define VKR_TLS                           __thread __attribute__((tls_model("initial-exec")))

#define vkr_min(a, b) ((a) < (b) ? (a) : (b))
#define vkr_max(a, b) ((a) > (b) ? (a) : (b))

/* Runs at the end of the scope, and when a cancelled thread unwinds through it (-fexceptions). */
#define VKR_CLEANUP(fn) __attribute__((cleanup(fn), unused))

/* What is surely no address of the application's: the kernel answers EFAULT, we must not touch it. Pages that are
 * merely not mapped cannot be told without a system call; they fault as in memcpy(). */
static inline bool vkr_bad_pointer(const void *p, size_t n)
{
	const uintptr_t low = 65536, span = (1ull << 47) - low;

	return n && (n > span || (uintptr_t)p - low > span - n);
}

/* CLOCK_MONOTONIC; engine_progress.c. */
int64_t vkr_now_ns(void);

/* Relaxed and ordered accesses by short names; the word is always naturally aligned. */
#define vkr_load(p)         atomic_load_explicit((p), memory_order_relaxed)
#define vkr_load_acq(p)     atomic_load_explicit((p), memory_order_acquire)
#define vkr_store(p, v)     atomic_store_explicit((p), (v), memory_order_relaxed)
#define vkr_store_rel(p, v) atomic_store_explicit((p), (v), memory_order_release)

#endif

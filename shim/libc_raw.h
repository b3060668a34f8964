/* SPDX-License-Identifier: BSD-2-Clause */
/* The system call instruction itself: no libc, no errno, no memory but the stack. VKR_RAW(n, up to six arguments)
 * returns the kernel's value, -errno included. */
#ifndef VKR_LIBC_RAW_H
#define VKR_LIBC_RAW_H

#if !defined(__LP64__)
#error "libvkrdma supports 64-bit Linux only"
#endif

#if defined(__x86_64__)
static inline long vkr_raw6(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}
#elif defined(__aarch64__)
static inline long vkr_raw6(long n, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
	return x0;
}
#else
#error "add the system call instruction of this machine"
#endif

#define VKR_RAW_PAD(n, a, b, c, d, e, f, ...)                                                                          \
	vkr_raw6((long)(n), (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define VKR_RAW(...) VKR_RAW_PAD(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

#endif

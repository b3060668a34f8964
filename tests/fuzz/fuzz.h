/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A fuzz target is a file with these two functions. It aborts when a promise of the code under test is broken, so it
 * serves libFuzzer (built with clang and -DVKRDMA_FUZZERS=ON) and the plain driver alike.
 */
#ifndef VKR_FUZZ_H
#define VKR_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define FUZZ_MAX 8192 /* bytes of an input */

/* Always 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The n-th seed into out (FUZZ_MAX bytes); its size, or 0 after the last. */
size_t fuzz_seed(unsigned n, uint8_t *out);

#define FUZZ_CHECK(x)                                                                                                  \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #x);                                \
			abort();                                                                                       \
		}                                                                                                      \
	} while (0)

#endif

/* SPDX-License-Identifier: BSD-2-Clause */
/* Stands in for libvkrdma.so beside a copy of vkrdma-run: says that it was loaded, and nothing else. */
#include <unistd.h>

static __attribute__((constructor)) void loaded(void)
{
	static const char text[] = "fixture loaded\n";

	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		_exit(99);
}

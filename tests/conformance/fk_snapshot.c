/* SPDX-License-Identifier: BSD-2-Clause */
/* BGSAVE: a child checks its frozen copy of memory into which the parent goes on receiving: both see the right bytes.
 */
#include "conf.h"

#define SIZE (4u << 20)

static char *mem;
static int fd[2], go[2];

static void child(void *arg)
{
	char c;

	(void)arg;
	CONF_EQ(read(go[0], &c, 1), 1);
	CONF_VERIFY(mem, SIZE, 1, 0);
	_exit(0);
}

static void *sender(void *arg)
{
	static char out[SIZE];

	conf_fill(out, SIZE, (uint32_t)(intptr_t)arg, 0);
	conf_write_all(fd[0], out, SIZE);
	return NULL;
}

CONF_TEST(0)
{
	struct conf_thread t;
	pid_t pid;

	mem = malloc(SIZE);
	conf_pair(fd);
	CONF_OK(pipe(go));
	for (int i = 0; i < 4; i++) {
		conf_thread_start(&t, sender, (void *)1);
		conf_read_all(fd[1], mem, SIZE);
		conf_thread_join(&t);
		CONF_VERIFY(mem, SIZE, 1, 0);
		conf_thread_start(&t, sender, (void *)2);
		/* In the middle of the second filling the first is frozen where it has not been reached. */
		pid = conf_fork(child, NULL);
		conf_read_all(fd[1], mem, SIZE);
		conf_thread_join(&t);
		CONF_VERIFY(mem, SIZE, 2, 0);
		conf_write_all(go[1], "g", 1);
		conf_join(pid);
	}
}

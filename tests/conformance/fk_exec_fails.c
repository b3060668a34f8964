/* SPDX-License-Identifier: BSD-2-Clause */
/* An exec that the kernel refuses at the last moment: the program goes on, and its listener lets in and blocks as
 * before. */
#include "conf.h"

#include <sys/mman.h>

static int l;

static void *accepter(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)CONF_OK(accept(l, NULL, NULL));
}

CONF_TEST(CONF_TCP_TOO)
{
	struct conf_thread t = {.fn = NULL};
	char path[32], *argv[] = {(char *)"junk", NULL};
	int junk = (int)CONF_OK(memfd_create("junk", MFD_CLOEXEC)), fd[2];

	l = conf_listener(AF_INET, 8);
	conf_write_all(junk, "no program", 10);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", junk);
	CONF_ERR(execv(path, argv), ENOEXEC);
	conf_thread_start(&t, accepter, NULL);
	conf_thread_asleep(&t);
	fd[0] = conf_dial(l);
	fd[1] = (int)(intptr_t)conf_thread_join(&t);
	conf_exchange(fd[0], fd[1]);
	conf_close2(fd[0], fd[1]);
	CONF_OK(close(l));
	CONF_OK(close(junk));
}

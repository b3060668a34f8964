/* SPDX-License-Identifier: BSD-2-Clause */
/* Another preloaded library uses sockets in its constructor and destructor, before and after everybody else. */
#include "conf.h"

CONF_TEST(0)
{
	const char *did = getenv("CONF_CONSTRUCTOR");
	int fd[2];

	CONF_TRUE(did && !strcmp(did, "worked"));
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	conf_close2(fd[0], fd[1]);
}

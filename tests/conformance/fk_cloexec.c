/* SPDX-License-Identifier: BSD-2-Clause */
/* exec in a child with FD_CLOEXEC streams: the new program has none of them (and none of the library's), the parent
 * all. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), fd[2], status;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	char out[64] = "";
	FILE *f;

	fd[0] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	CONF_OK(connect(fd[0], (struct sockaddr *)&ss, len));
	fd[1] = (int)CONF_OK(accept4(l, NULL, NULL, SOCK_CLOEXEC));
	CONF_OK(fcntl(l, F_SETFD, FD_CLOEXEC));
	conf_exchange(fd[0], fd[1]);
	/* Everything above 2 that the shell inherits; ls's own directory is one of them, popen's pipe is 0 to 2. */
	f = popen("exec env -u LD_PRELOAD ls -l /proc/self/fd | grep -c -E 'socket:|eventfd|eventpoll|memfd'", "r");
	CONF_TRUE(f && fgets(out, sizeof(out), f));
	status = pclose(f);
	CONF_TRUE(WIFEXITED(status));
	conf_note("%s", out);
	CONF_EQ(atoi(out), 0);
	conf_exchange(fd[1], fd[0]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* A flagged client and a server without the library: the connection is TCP, soon enough, and works; then from memory.
 */
#include "conf.h"

int conf_plain(const char *arg, int port)
{
	int l = conf_listener(AF_INET, 8);

	(void)arg;
	port = conf_port(l);
	CONF_EQ(write(1, &port, sizeof(port)), sizeof(port));
	for (int i = 0; i < 3; i++) {
		int s = (int)CONF_OK(accept(l, NULL, NULL));
		char buf[64];
		ssize_t k;

		while ((k = CONF_OK(read(s, buf, sizeof(buf)))) > 0)
			conf_write_all(s, buf, (size_t)k);
		close(s);
	}
	return 0;
}

CONF_TEST(CONF_TCP_TOO)
{
	struct sockaddr_in sin = {.sin_family = AF_INET};
	int p[2], out = (int)CONF_OK(dup(1)), port = 0, fd[2];
	pid_t pid;

	CONF_OK(pipe(p));
	CONF_OK(dup2(p[1], 1));
	pid = conf_spawn_plain("serve", 0);
	CONF_OK(dup2(out, 1));
	CONF_EQ(read(p[0], &port, sizeof(port)), sizeof(port));
	sin.sin_port = htons((uint16_t)port);
	sin.sin_addr.s_addr = conf_addr4();
	for (int i = 0; i < 3; i++) {
		int64_t from = conf_ms();
		char buf[4];
		int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | (i == 1 ? SOCK_NONBLOCK : 0), 0)), err = -1;
		socklen_t len = sizeof(err);

		if (i == 1) {
			CONF_ERR(connect(c, (struct sockaddr *)&sin, sizeof(sin)), EINPROGRESS);
			CONF_EVENTS(conf_poll1(c, POLLOUT, CONF_PATIENCE_MS), POLLOUT);
			CONF_OK(getsockopt(c, SOL_SOCKET, SO_ERROR, &err, &len));
			CONF_EQ(err, 0);
		} else {
			CONF_OK(connect(c, (struct sockaddr *)&sin, sizeof(sin)));
		}
		CONF_LE(conf_ms() - from, 2500 * conf_scale());
		conf_write_all(c, "abcd", 4);
		conf_read_all(c, buf, 4);
		CONF_OK(close(c));
	}
	conf_join(pid);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

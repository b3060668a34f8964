/* SPDX-License-Identifier: BSD-2-Clause */
/* Carried connections saturate one epoll loop while a client without the library (plain TCP) asks: it is served. */
#include "conf.h"

#define FLOODS   4
#define REQUESTS 300

static int flood[FLOODS][2];
static _Atomic bool stop;

int conf_plain(const char *arg, int port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char buf[4];

	(void)arg;
	sin.sin_addr.s_addr = conf_addr4();
	CONF_OK(connect(fd, (struct sockaddr *)&sin, sizeof(sin)));
	for (int i = 0; i < REQUESTS; i++) {
		int64_t from = conf_ms();

		conf_write_all(fd, "ping", 4);
		conf_read_all(fd, buf, 4);
		CONF_LE(conf_ms() - from, 2000);
	}
	return 0;
}

static void *flooder(void *p)
{
	static char junk[30000];
	int fd = *(int *)p;

	while (!atomic_load(&stop))
		conf_write_all(fd, junk, sizeof(junk));
	return NULL;
}

CONF_TEST(CONF_TCP_TOO | CONF_LONG)
{
	int l = conf_listener(AF_INET, 8), ep = conf_epoll(), answered = 0;
	struct conf_thread t[FLOODS];
	static char buf[65536];
	uint64_t flooded = 0;
	pid_t pid;

	conf_ep_add(ep, l, EPOLLIN);
	for (int i = 0; i < FLOODS; i++) {
		conf_pair(flood[i]);
		conf_nonblock(flood[i][1], true);
		conf_ep_add(ep, flood[i][1], EPOLLIN);
	}
	pid = conf_spawn_plain("ask", conf_port(l));
	for (int i = 0; i < FLOODS; i++)
		conf_thread_start(&t[i], flooder, &flood[i][0]);
	for (int plain = -1; answered < REQUESTS;) {
		struct epoll_event ev[2];
		int n = (int)CONF_OK(epoll_wait(ep, ev, 2, CONF_PATIENCE_MS));

		CONF_GE(n, 1);
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			ssize_t k;

			if (fd == l) {
				plain = (int)CONF_OK(accept(l, NULL, NULL));
				conf_ep_add(ep, plain, EPOLLIN);
				continue;
			}
			k = read(fd, buf, fd == plain ? 4 : sizeof(buf));
			if (k > 0 && fd == plain) {
				CONF_EQ(k, 4);
				conf_write_all(plain, buf, 4);
				answered++;
			} else if (k > 0) {
				flooded += (uint64_t)k;
			}
		}
	}
	CONF_GE(flooded, 100000); /* on a busy machine the flooders get little of it */
	atomic_store(&stop, true);
	conf_join(pid);
	/* The flooders may be stuck in a full socket: what they wrote is read away until they have ended. */
	for (int i = 0; i < FLOODS; i++) {
		while (!atomic_load(&t[i].done))
			if (recv(flood[i][1], buf, sizeof(buf), MSG_DONTWAIT) <= 0)
				conf_pause();
		conf_thread_join(&t[i]);
	}
}

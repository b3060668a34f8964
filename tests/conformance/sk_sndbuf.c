/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_SNDBUF bounds what waits unsent for a reader that does not read: set before connect, later, and on a listener. */
#include "conf.h"

#include <poll.h>

/* Far above what the two small buffers and a first window hold, far below what is taken where the option has no effect.
 */
#define MOST  (160 << 10)
#define TOTAL (1 << 20)

static void set(int fd, int name, int bytes)
{
	CONF_OK(setsockopt(fd, SOL_SOCKET, name, &bytes, sizeof(bytes)));
}

/* Until nothing more is taken for a while. */
static size_t fill(int fd, unsigned char *buf, size_t done)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	ssize_t n;

	while (done < TOTAL) {
		n = send(fd, buf + done, TOTAL - done, MSG_DONTWAIT);
		if (n > 0)
			done += (size_t)n;
		else
			CONF_EQ(errno, EAGAIN);
		if (n < 0 && !CONF_OK(poll(&p, 1, CONF_QUIET_MS)))
			break;
	}
	return done;
}

/* What was taken arrives, and the writer is told of the room that this makes. */
static void drain(int from, int to, unsigned char *buf, size_t done)
{
	unsigned char got[4096];
	size_t seen = 0;
	ssize_t n;

	while (seen < TOTAL) {
		n = CONF_OK(recv(to, got, sizeof(got), 0));
		CONF_TRUE(n > 0 && !memcmp(got, buf + seen, (size_t)n));
		seen += (size_t)n;
		if (seen == done && done < TOTAL) {
			struct pollfd p = {.fd = from, .events = POLLOUT};

			CONF_EQ(poll(&p, 1, CONF_PATIENCE_MS), 1);
			n = CONF_OK(send(from, buf + done, TOTAL - done, MSG_DONTWAIT));
			done += (size_t)n;
		}
	}
}

CONF_TEST(0)
{
	unsigned char *buf = malloc(TOTAL);
	int l = conf_listener(AF_INET, 2), c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0)), s, i;
	struct sockaddr_storage ss;
	socklen_t len = conf_name(l, &ss);
	size_t n, more;

	for (i = 0; i < TOTAL; i++)
		buf[i] = (unsigned char)(i * 7 + i / 251);
	set(l, SO_RCVBUF, 4096);
	set(l, SO_SNDBUF, 4096);
	set(c, SO_RCVBUF, 4096);
	set(c, SO_SNDBUF, 4096);
	CONF_OK(connect(c, (struct sockaddr *)&ss, len));
	s = (int)CONF_OK(accept(l, NULL, NULL));

	n = fill(c, buf, 0);
	CONF_LE(n, MOST);
	drain(c, s, buf, n);

	n = fill(s, buf, 0); /* as its listener */
	CONF_LE(n, MOST);
	set(s, SO_SNDBUF, 100000); /* raised while full: there is room at once */
	more = fill(s, buf, n);
	CONF_GE(more, n + 50000);
	drain(s, c, buf, more);
	conf_close2(c, s);
	free(buf);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Two processes, echo of a random stream with a window in flight: intact, both ways, either side listening. */
#include "conf.h"

#define TOTAL (8u << 20)

static void child(int fd)
{
	static char buf[30000];
	uint32_t rng = 5;
	ssize_t k;

	while ((k = CONF_OK(read(fd, buf, 1 + conf_rand(&rng) % sizeof(buf)))) > 0)
		conf_write_all(fd, buf, (size_t)k);
}

static void parent(int fd, pid_t pid)
{
	static char buf[50000];
	uint64_t sent = 0, got = 0;
	uint32_t rng = 17;

	conf_nonblock(fd, true);
	while (got < TOTAL) {
		struct pollfd p = {fd, (short)(POLLIN | (sent < TOTAL ? POLLOUT : 0)), 0};
		ssize_t k;

		CONF_GE(poll(&p, 1, CONF_PATIENCE_MS), 1);
		if (p.revents & POLLOUT) {
			size_t n = 1 + conf_rand(&rng) % sizeof(buf);

			n = n < TOTAL - sent ? n : TOTAL - sent;
			conf_fill(buf, n, 4, sent);
			k = write(fd, buf, n);
			if (k < 0)
				CONF_EQ(errno, EAGAIN);
			sent += k > 0 ? (uint64_t)k : 0;
		}
		if (p.revents & POLLIN) {
			k = CONF_OK(read(fd, buf, sizeof(buf)));
			CONF_GE(k, 1);
			CONF_VERIFY(buf, (size_t)k, 4, got);
			got += (uint64_t)k;
		}
	}
	CONF_OK(shutdown(fd, SHUT_WR));
	conf_read_eof(fd);
	CONF_OK(close(fd));
	conf_join(pid);
}

CONF_TEST(0)
{
	conf_two(parent, child);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Edge-triggered OUT: silent while full, one event when room has come; a writer that stops at EAGAIN is never lost. */
#include "conf.h"

#define TOTAL (16u << 20)

static int reader_fd;

static void *reader(void *arg)
{
	(void)arg;
	conf_drain(reader_fd, TOTAL);
	return NULL;
}

static void each(int a, int b)
{
	static char junk[100000];
	struct conf_thread t;
	int ep = conf_epoll();
	size_t total, sent = 0;

	conf_small_buffers(a, b);
	conf_nonblock(a, true);
	conf_ep_add(ep, a, EPOLLIN | EPOLLOUT | EPOLLET);
	CONF_EP_EXPECT(ep, a, EPOLLOUT);
	total = conf_stuff(a);
	/* An event of the time while it filled may still be queued; the state it is checked against is "not writable".
	 */
	CONF_EP_QUIET(ep);
	conf_drain(b, total);
	CONF_EP_EXPECT(ep, a, EPOLLOUT);

	reader_fd = b;
	conf_thread_start(&t, reader, NULL);
	while (sent < TOTAL) {
		size_t n = TOTAL - sent < sizeof(junk) ? TOTAL - sent : sizeof(junk);
		ssize_t k = write(a, junk, n);

		if (k > 0) {
			sent += (size_t)k;
			continue;
		}
		CONF_EQ(errno, EAGAIN);
		conf_note("%zu bytes sent", sent);
		CONF_EP_EXPECT(ep, a, EPOLLOUT);
	}
	conf_thread_join(&t);
	conf_close2(a, b);
	CONF_OK(close(ep));
}

CONF_TEST(0)
{
	conf_each_role(each);
}

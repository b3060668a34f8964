/* SPDX-License-Identifier: BSD-2-Clause */
/* A writer with far more than fits is stopped, and the connection reset: what had come is still read. */
#include "conf.h"

enum { MUCH = 32 << 20 };

static uint8_t much[MUCH], got[MUCH];
static int fd_out;
static ssize_t sent;

static void *do_send(void *arg)
{
	(void)arg;
	sent = send(fd_out, much, sizeof(much), MSG_NOSIGNAL);
	return NULL;
}

static void each(int a, int b)
{
	struct conf_thread t;
	size_t n = 0;
	ssize_t k;

	fd_out = b;
	conf_exchange(a, b);
	conf_thread_start(&t, do_send, NULL);
	conf_thread_asleep(&t);
	CONF_OK(shutdown(b, SHUT_RDWR));
	conf_thread_join(&t);
	CONF_GE(sent, 1);
	CONF_LE(sent, MUCH - 1);
	while (send(a, "x", 1, MSG_NOSIGNAL) == 1) /* b does not take it: a reset */
		conf_pause();
	CONF_TRUE(errno == ECONNRESET || errno == EPIPE);
	while ((k = recv(a, got + n, sizeof(got) - n, 0)) > 0)
		n += (size_t)k;
	CONF_GE(n, 16384);
	CONF_LE(n, sent);
	CONF_VERIFY(got, n, 7, 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_fill(much, sizeof(much), 7, 0);
	conf_each_role(each);
}

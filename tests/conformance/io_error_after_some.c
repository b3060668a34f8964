/* SPDX-License-Identifier: BSD-2-Clause */
/* A call that has moved bytes before an error says how many; the error stays for the next. */
#include "conf.h"

#include <stdlib.h>

#define BIG (24 << 20)

static char *big;

static void *writer(void *arg)
{
	return (void *)(intptr_t)send(*(int *)arg, big, BIG, MSG_NOSIGNAL);
}

static void *reader(void *arg)
{
	return (void *)(intptr_t)recv(*(int *)arg, big, 100, MSG_WAITALL);
}

static void sending(int a, int b)
{
	struct conf_thread t;
	intptr_t n;

	conf_thread_start(&t, writer, &a);
	conf_thread_asleep(&t);
	CONF_OK(close(b)); /* with much unread */
	n = (intptr_t)conf_thread_join(&t);
	CONF_TRUE(n > 0 && n < BIG);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), ECONNRESET);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(close(a));
}

static void *peeker(void *arg)
{
	char byte;

	return (void *)(intptr_t)recv(*(int *)arg, &byte, 1, MSG_PEEK);
}

/* The reset comes while the call is at work: closed, b lives until its reader wakes. */
static void sending_on(int a, int b)
{
	struct conf_thread t;
	ssize_t n;

	conf_thread_start(&t, peeker, &b);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	n = send(a, big, BIG, MSG_NOSIGNAL);
	CONF_EQ((intptr_t)conf_thread_join(&t), 1);
	CONF_TRUE(n > 0 && n < BIG);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), ECONNRESET);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(close(a));
}

static void receiving(int a, int b)
{
	struct conf_thread t;

	conf_write_all(a, "unread", 6);
	conf_wait_inq(b, 6);
	conf_thread_start(&t, reader, &a);
	conf_thread_asleep(&t);
	conf_write_all(b, "some", 4);
	conf_thread_asleep(&t);
	CONF_OK(close(b));
	CONF_EQ((intptr_t)conf_thread_join(&t), 4);
	CONF_ERR(recv(a, big, 1, 0), ECONNRESET);
	CONF_EQ(recv(a, big, 1, 0), 0);
	CONF_OK(close(a));
}

CONF_TEST(0)
{
	big = calloc(1, BIG);
	CONF_TRUE(big != NULL);
	conf_each_role(sending);
	conf_each_role(receiving);
	for (int i = 0; i < 20; i++)
		conf_each_role(sending_on);
	free(big);
}

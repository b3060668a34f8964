/* SPDX-License-Identifier: BSD-2-Clause */
/* A signal during accept: EINTR, or on with SA_RESTART, but EINTR again when the listener has SO_RCVTIMEO. */
#include "conf.h"

static int listener;

static void *acceptor(void *arg)
{
	int r = accept(listener, NULL, NULL);

	(void)arg;
	return (void *)(intptr_t)(r < 0 ? -errno : r);
}

static void interrupted(struct conf_thread *t)
{
	conf_caught = 0;
	conf_thread_start(t, acceptor, NULL);
	conf_thread_asleep(t);
	CONF_EQ(pthread_kill(t->thread, SIGUSR1), 0);
	CONF_UNTIL(conf_caught == 1);
}

CONF_TEST(0)
{
	struct timeval tv = {20, 0};
	struct conf_thread t;
	int c, s;

	listener = conf_listener(AF_INET, 4);
	conf_catch(SIGUSR1, 0);
	interrupted(&t);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
	conf_catch(SIGUSR1, SA_RESTART);
	interrupted(&t);
	conf_thread_asleep(&t);
	c = conf_dial(listener);
	s = (int)(intptr_t)conf_thread_join(&t);
	CONF_GE(s, 0);
	conf_exchange(c, s);
	CONF_OK(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	interrupted(&t);
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
}

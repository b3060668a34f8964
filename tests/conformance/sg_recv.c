/* SPDX-License-Identifier: BSD-2-Clause */
/* A signal during a blocking read: EINTR for a plain handler, and the next read delivers; SA_RESTART goes on sleeping.
 */
#include "conf_io.h"

struct job {
	int fd;
	const struct conf_reader *r;
	char buf[8];
};

static void *reader(void *p)
{
	struct job *j = p;
	ssize_t k = j->r->fn(j->fd, j->buf, sizeof(j->buf));

	return (void *)(intptr_t)(k < 0 ? -errno : k);
}

static void each(int a, int b)
{
	struct conf_thread t;

	for (size_t i = 0; i < conf_n_readers; i++) {
		struct job j = {b, &conf_readers[i], ""};

		conf_note("%s", j.r->name);
		conf_catch(SIGUSR1, 0);
		conf_thread_start(&t, reader, &j);
		conf_thread_asleep(&t);
		CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
		CONF_EQ((intptr_t)conf_thread_join(&t), -EINTR);
		conf_write_all(a, "abc", 3);
		CONF_EQ(j.r->fn(b, j.buf, sizeof(j.buf)), 3);
		CONF_EQ(memcmp(j.buf, "abc", 3), 0);

		conf_catch(SIGUSR1, SA_RESTART);
		conf_thread_start(&t, reader, &j);
		for (int s = 0; s < 2; s++) {
			conf_thread_asleep(&t);
			conf_caught = 0;
			CONF_EQ(pthread_kill(t.thread, SIGUSR1), 0);
			CONF_UNTIL(conf_caught == 1);
		}
		conf_thread_asleep(&t);
		conf_write_all(a, "defg", 4);
		CONF_EQ((intptr_t)conf_thread_join(&t), 4);
		CONF_EQ(memcmp(j.buf, "defg", 4), 0);
	}
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

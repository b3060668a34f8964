/* SPDX-License-Identifier: BSD-2-Clause */
/* SO_SNDTIMEO: a write to a full socket gives EAGAIN after that time, or the part that went; room in time is used. */
#include "conf_io.h"

#define BIG (16u << 20)

static void each(int a, int b)
{
	struct timeval tv = {.tv_usec = 60000};
	char *big = calloc(1, BIG);
	size_t total;
	ssize_t k;
	int64_t from;

	conf_small_buffers(a, b);
	CONF_OK(setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)));
	from = conf_ns();
	k = CONF_OK(write(a, big, BIG));
	CONF_GE(conf_ns() - from, 60000000 - CONF_JIFFY_NS);
	CONF_GE(k, 1);
	CONF_LE(k, BIG - 1);
	total = (size_t)k + conf_stuff(a);
	for (size_t i = 0; i < conf_n_writers; i++) {
		conf_note("%s", conf_writers[i].name);
		from = conf_ns();
		CONF_ERR(conf_writers[i].fn(a, big, 4096), EAGAIN);
		CONF_GE(conf_ns() - from, 60000000 - CONF_JIFFY_NS);
		CONF_LE(conf_ns() - from, 3000000000);
	}
	conf_drain(b, total);
	conf_exchange(a, b);
	free(big);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Eight threads, 10,000 socket and close each: finishes, and nothing is left open. */
#include "conf.h"

static void *churn(void *arg)
{
	(void)arg;
	for (int i = 0; i < 10000; i++)
		CONF_OK(close((int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0))));
	return NULL;
}

CONF_TEST(CONF_NO_RDMA)
{
	struct conf_thread t[8];
	int before = conf_count_fds();

	for (int i = 0; i < 8; i++)
		conf_thread_start(&t[i], churn, NULL);
	for (int i = 0; i < 8; i++)
		conf_thread_join(&t[i]);
	CONF_EQ(conf_count_fds(), before);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* epoll_wait with an array that cannot be written, also in part: EFAULT, no event is lost, and a program that handles
 * SIGSEGV by a jump has nothing to handle. */
#include "conf.h"

#include <sys/mman.h>

static void each(int a, int b)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *area = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct epoll_event *good, *none, *part;
	int ep = conf_epoll();

	CONF_TRUE(area != MAP_FAILED);
	CONF_OK(mprotect(area + page, page, PROT_READ));
	good = (void *)area;
	part = (void *)(area + page - sizeof(*good));
	none = (void *)(area + page);
	conf_ep_add(ep, b, EPOLLIN | EPOLLET);
	conf_write_all(a, "x", 1);
	conf_wait_inq(b, 1);
	CONF_ERR(epoll_wait(ep, none, 1, 1000), EFAULT);
	CONF_ERR(epoll_wait(ep, none, 1, 0), EFAULT);
	CONF_EQ(epoll_wait(ep, good, 4, 1000), 1);
	CONF_EQ(good->data.fd, b);
	CONF_EQ(epoll_wait(ep, part, 1, 0), 0);
	conf_write_all(a, "x", 1);
	CONF_EQ(epoll_wait(ep, part, 1, 1000), 1);
	conf_close2(a, b);
	CONF_OK(close(ep));
	munmap(area, 2 * page);
}

CONF_TEST(0)
{
	conf_each_role(each);
}

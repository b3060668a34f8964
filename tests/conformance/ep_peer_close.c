/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer closes, with and without unread data: the bits in epoll, level and edge, RDHUP only when asked for. */
#include "conf.h"

static void orderly(int a, int b)
{
	int lt = conf_epoll(), et = conf_epoll(), plain = conf_epoll();

	conf_ep_add(lt, b, EPOLLIN | EPOLLRDHUP);
	conf_ep_add(et, b, EPOLLIN | EPOLLRDHUP | EPOLLET);
	conf_ep_add(plain, b, EPOLLIN);
	CONF_OK(close(a));
	CONF_EP_EXPECT(lt, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_EXPECT(lt, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_EXPECT(et, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_QUIET(et);
	CONF_EP_EXPECT(plain, b, EPOLLIN);
	conf_read_eof(b);
	CONF_EP_EXPECT(lt, b, EPOLLIN | EPOLLRDHUP);
	CONF_EP_QUIET(et);
	CONF_OK(close(b));
	CONF_EP_QUIET(lt);
	conf_close2(lt, et);
	CONF_OK(close(plain));
}

static void reset(int a, int b)
{
	const uint32_t all = EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP;
	int lt = conf_epoll(), bare = conf_epoll();
	char c;

	conf_exchange(a, b);
	conf_ep_add(lt, b, EPOLLIN | EPOLLRDHUP);
	conf_ep_add(bare, b, 0);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(a, 6);
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_EP_EXPECT(lt, b, all);
	CONF_EP_EXPECT(bare, b, EPOLLERR | EPOLLHUP);
	CONF_ERR(read(b, &c, 1), ECONNRESET);
	CONF_EP_EXPECT(lt, b, all & ~(uint32_t)EPOLLERR);
	CONF_EP_EXPECT(bare, b, EPOLLHUP);
	CONF_OK(close(b));
	conf_close2(lt, bare);
}

CONF_TEST(0)
{
	conf_each_role(orderly);
	conf_each_role(reset);
}

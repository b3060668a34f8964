/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer closes with unread data: IN OUT ERR HUP RDHUP; recv ECONNRESET, then 0; send EPIPE. After both ends have
 * been told there is nothing left to reset. */
#include "conf.h"

static int so_error(int fd)
{
	int err = -1;
	socklen_t len = sizeof(err);

	CONF_OK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len));
	return err;
}

static void by_recv(int a, int b)
{
	char buf[8];

	conf_exchange(a, b);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(a, 6);
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_ERR(recv(b, buf, 8, 0), ECONNRESET);
	CONF_STATE(b, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
	CONF_EQ(recv(b, buf, 8, 0), 0);
	CONF_ERR(send(b, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(close(b));
}

static void by_so_error(int a, int b)
{
	conf_exchange(a, b);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(a, 6);
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_EQ(so_error(b), ECONNRESET);
	CONF_EQ(so_error(b), 0);
	CONF_STATE(b, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
	CONF_OK(close(b));
}

static void by_send(int a, int b)
{
	conf_exchange(a, b);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(a, 6);
	CONF_OK(close(a));
	CONF_STATE(b, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
	CONF_ERR(send(b, "x", 1, MSG_NOSIGNAL), ECONNRESET);
	CONF_ERR(send(b, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(close(b));
}

static void all_over(int a, int b)
{
	conf_exchange(a, b);
	conf_write_all(b, "unread", 6);
	conf_wait_inq(a, 6);
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_STATE(a, POLLIN | POLLOUT | POLLRDHUP);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_STATE(b, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
	CONF_STATE(a, POLLIN | POLLOUT | POLLHUP | POLLRDHUP);
	CONF_OK(close(a));
	CONF_EVENTS(conf_poll1(b, POLLERR, CONF_QUIET_MS), POLLHUP);
	CONF_EQ(so_error(b), 0);
	CONF_OK(close(b));
}

/* After the peer's end a reset is EPIPE to an end that may still send, as long as it has not told its own. */
static void after_end(int a, int b, bool told, int err)
{
	conf_exchange(a, b);
	conf_stuff(a);
	if (told)
		CONF_OK(shutdown(a, SHUT_WR)); /* behind much that has no room */
	CONF_OK(shutdown(b, SHUT_WR));
	CONF_EVENTS(conf_poll1(a, POLLRDHUP, CONF_PATIENCE_MS), told ? POLLRDHUP | POLLHUP : POLLRDHUP);
	CONF_OK(close(b));
	CONF_EVENTS(conf_poll1(a, 0, CONF_PATIENCE_MS) & POLLHUP, POLLHUP);
	CONF_UNTIL(conf_poll1(a, 0, 0) & POLLERR);
	CONF_EQ(so_error(a), err);
	CONF_EQ(so_error(a), 0);
	CONF_OK(close(a));
}

static void close_wait(int a, int b)
{
	after_end(a, b, false, EPIPE);
}

static void closing(int a, int b)
{
	after_end(a, b, true, ECONNRESET);
}

CONF_TEST(0)
{
	conf_each_role(close_wait);
	conf_each_role(closing);
	conf_each_role(all_over);
	conf_each_role(by_recv);
	conf_each_role(by_so_error);
	conf_each_role(by_send);
}

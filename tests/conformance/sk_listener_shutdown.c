/* SPDX-License-Identifier: BSD-2-Clause */
/* shutdown of a listener: a thread in accept gets EINVAL at once; who waits to be accepted is reset, who comes is
 * refused; poll shows a fresh socket's OUT HUP; a bare close wakes nobody. SHUT_WR does nothing to it.
 */
#include "conf.h"

static int listener;

static void *acceptor(void *arg)
{
	int r = accept(listener, NULL, NULL);

	(void)arg;
	return (void *)(intptr_t)(r < 0 ? -errno : r);
}

static void refused(void)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(listener, &ss);
	int fd = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));

	CONF_ERR(connect(fd, (struct sockaddr *)&ss, len), ECONNREFUSED);
	CONF_OK(close(fd));
}

/* Connections that are being made just then are nobody's either. */
static void while_connecting(void)
{
	struct sockaddr_storage ss;
	socklen_t len = conf_name(listener, &ss);
	int c[4];

	for (int i = 0; i < 40; i++) {
		CONF_OK(listen(listener, 16));
		for (int k = 0; k < 4; k++) {
			c[k] = (int)CONF_OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
			CONF_ERR(connect(c[k], (struct sockaddr *)&ss, len), EINPROGRESS);
			if (k == 1)
				conf_poll1(c[0], POLLOUT, i % 8); /* some of them further than others */
		}
		CONF_OK(shutdown(listener, SHUT_RD));
		for (int k = 0; k < 4; k++) {
			CONF_STATE(c[k], EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
			CONF_OK(close(c[k]));
		}
		CONF_STATE(listener, POLLOUT | POLLHUP);
	}
}

CONF_TEST(CONF_TCP_TOO) /* what listens again may do so for TCP alone */
{
	struct conf_thread t;
	int c, s, fd[2];

	listener = conf_listener(AF_INET, 4);
	conf_thread_start(&t, acceptor, NULL);
	conf_thread_asleep(&t);
	CONF_OK(shutdown(listener, SHUT_WR));
	conf_thread_asleep(&t);
	CONF_OK(shutdown(listener, SHUT_RD));
	CONF_EQ((intptr_t)conf_thread_join(&t), -EINVAL);
	CONF_ERR(accept(listener, NULL, NULL), EINVAL);
	CONF_STATE(listener, POLLOUT | POLLHUP);
	refused();
	while_connecting();
	/* It may listen again on the same port. */
	CONF_OK(listen(listener, 4));
	c = conf_dial(listener);
	s = (int)CONF_OK(accept(listener, NULL, NULL));
	conf_exchange(c, s);
	conf_close2(c, s);
	c = conf_dial(listener);
	CONF_STATE(listener, POLLIN);
	CONF_OK(shutdown(listener, SHUT_RDWR));
	CONF_STATE(c, EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLRDHUP);
	CONF_ERR(read(c, &s, 1), ECONNRESET);
	CONF_OK(close(c));
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

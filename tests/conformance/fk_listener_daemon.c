/* SPDX-License-Identifier: BSD-2-Clause */
/* A process listens, forks and ends (daemon(), a master with workers): its child serves clients on, as well as the
 * parent did; whether the child was waiting already or not, and by whatever call. */
#include "conf.h"

static int up[2], hold[2];

static int serve(int listener, int ep)
{
	struct epoll_event ev;
	int s, clients = 0;
	char c;

	while (clients < 2) {
		if (ep >= 0)
			CONF_EQ(epoll_wait(ep, &ev, 1, CONF_PATIENCE_MS), 1);
		s = accept(listener, NULL, NULL);
		if (s < 0) {
			CONF_EQ(errno, EAGAIN);
			CONF_EQ(write(up[1], "r", 1), 1); /* an owner has gone: tells nothing natively */
			continue;
		}
		conf_read_all(s, &c, 1);
		conf_write_all(s, &c, 1);
		conf_read_eof(s);
		CONF_OK(close(s));
		clients++;
	}
	return conf_end();
}

/* The listener's number may be in an epoll set before the owner goes. */
static void heir(int listener, bool epoll)
{
	int ep = -1;
	char c;

	conf_nonblock(listener, true);
	if (epoll) {
		ep = conf_epoll();
		conf_ep_add(ep, listener, EPOLLIN);
	}
	CONF_EQ(write(up[1], "u", 1), 1);
	CONF_EQ(read(hold[0], &c, 1), 0); /* the parent has gone */
	CONF_ERR(accept(listener, NULL, NULL), EAGAIN);
	if (!epoll)
		conf_nonblock(listener, false);
	CONF_EQ(write(up[1], "r", 1), 1);
	c = serve(listener, ep) ? 'b' : 'g';
	CONF_EQ(write(up[1], &c, 1), 1);
	_exit(0);
}

static void owner(void *arg)
{
	int listener = conf_listener(AF_INET, 4);
	uint16_t port = (uint16_t)conf_port(listener);

	CONF_EQ(write(up[1], &port, 2), 2);
	if (fork() == 0) {
		CONF_OK(close(hold[1]));
		alarm(25);
		heir(listener, arg != NULL);
	}
	_exit(0);
}

static void client(uint16_t port)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = conf_addr4()};
	int c = (int)CONF_OK(socket(AF_INET, SOCK_STREAM, 0));
	char x;

	CONF_OK(connect(c, (struct sockaddr *)&sin, sizeof(sin)));
	conf_write_all(c, "x", 1);
	conf_read_all(c, &x, 1);
	CONF_OK(shutdown(c, SHUT_WR));
	conf_read_eof(c);
	CONF_OK(close(c));
}

static void round_of(bool epoll)
{
	uint16_t port;
	pid_t pid;
	char c;

	conf_note("epoll %d", epoll);
	CONF_OK(pipe(hold));
	pid = conf_fork(owner, epoll ? up : NULL);
	CONF_OK(close(hold[1]));
	CONF_EQ(read(up[0], &port, 2), 2);
	conf_join(pid);
	CONF_EQ(read(up[0], &c, 1), 1);
	CONF_EQ(c, 'u');
	CONF_EQ(read(up[0], &c, 1), 1);
	CONF_EQ(c, 'r');
	client(port);
	client(port);
	do
		CONF_EQ(read(up[0], &c, 1), 1);
	while (c == 'r');
	CONF_EQ(c, 'g');
	CONF_OK(close(hold[0]));
}

CONF_TEST(0)
{
	CONF_OK(pipe(up));
	round_of(false);
	round_of(true);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Half-close and the ends of a stream that a child uses: its shutdown, the peer's, the peer's reset. */
#include "conf.h"

static int fd[2], go[2];

static void half(void *arg)
{
	char buf[4];

	(void)arg;
	CONF_OK(close(fd[0]));
	conf_write_all(fd[1], "last", 4);
	CONF_OK(shutdown(fd[1], SHUT_WR));
	CONF_ERR(send(fd[1], "x", 1, MSG_NOSIGNAL), EPIPE);
	conf_read_all(fd[1], buf, 4);
	conf_read_eof(fd[1]);
	CONF_STATE(fd[1], POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	_exit(0);
}

static void half_close(void)
{
	char buf[4];
	pid_t pid;

	conf_pair(fd);
	pid = conf_fork(half, NULL);
	conf_read_all(fd[0], buf, 4);
	conf_read_eof(fd[0]);
	CONF_STATE(fd[0], POLLIN | POLLOUT | POLLRDHUP);
	conf_write_all(fd[0], "late", 4);
	CONF_OK(shutdown(fd[0], SHUT_WR));
	conf_join(pid);
	conf_close2(fd[0], fd[1]);
}

static void peers_half(void *arg)
{
	char buf[4];

	(void)arg;
	CONF_OK(close(fd[0]));
	conf_read_all(fd[1], buf, 4);
	conf_read_eof(fd[1]);
	CONF_STATE(fd[1], POLLIN | POLLOUT | POLLRDHUP);
	conf_write_all(fd[1], "back", 4);
	CONF_OK(close(fd[1]));
	_exit(0);
}

static void peers_half_close(void)
{
	char buf[4];
	pid_t pid;

	conf_pair(fd);
	pid = conf_fork(peers_half, NULL);
	CONF_OK(close(fd[1]));
	conf_write_all(fd[0], "then", 4);
	CONF_OK(shutdown(fd[0], SHUT_WR));
	conf_read_all(fd[0], buf, 4);
	conf_read_eof(fd[0]);
	conf_join(pid);
	CONF_OK(close(fd[0]));
}

static void reset(void *arg)
{
	char buf[4], c;

	(void)arg;
	CONF_OK(close(fd[0]));
	conf_write_all(fd[1], "unread", 6);
	CONF_EQ(write(go[1], "r", 1), 1);
	conf_read_all(fd[1], buf, 4);
	CONF_ERR(read(fd[1], &c, 1), ECONNRESET);
	conf_read_eof(fd[1]);
	CONF_ERR(send(fd[1], "x", 1, MSG_NOSIGNAL), EPIPE);
	_exit(0);
}

/* The peer closes with bytes unread. */
static void peers_reset(void)
{
	pid_t pid;
	char c;

	CONF_OK(pipe(go));
	conf_pair(fd);
	conf_write_all(fd[0], "kept", 4);
	conf_wait_inq(fd[1], 4);
	pid = conf_fork(reset, NULL);
	CONF_EQ(read(go[0], &c, 1), 1);
	conf_wait_inq(fd[0], 6);
	CONF_OK(close(fd[0]));
	conf_join(pid);
	CONF_OK(close(fd[1]));
}

static void leaves(void *arg)
{
	(void)arg;
	CONF_OK(close(fd[0]));
	CONF_EVENTS(conf_poll1(fd[1], POLLIN, CONF_PATIENCE_MS), POLLIN);
	_exit(0); /* with bytes unread */
}

/* The last holder goes with bytes unread. */
static void childs_reset(void)
{
	pid_t pid;
	char c;

	conf_pair(fd);
	pid = conf_fork(leaves, NULL);
	CONF_OK(close(fd[1]));
	conf_write_all(fd[0], "to nobody", 9);
	conf_join(pid);
	CONF_EVENTS(conf_poll1(fd[0], POLLIN, CONF_PATIENCE_MS) & (POLLERR | POLLHUP), POLLERR | POLLHUP);
	CONF_ERR(read(fd[0], &c, 1), ECONNRESET);
	CONF_OK(close(fd[0]));
}

CONF_TEST(0)
{
	conf_note("half-close");
	half_close();
	conf_note("the peer's half-close");
	peers_half_close();
	conf_note("the peer's reset");
	peers_reset();
	conf_note("a child leaves bytes");
	childs_reset();
}

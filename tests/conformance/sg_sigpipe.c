/* SPDX-License-Identifier: BSD-2-Clause */
/* SIGPIPE: kills by default, EPIPE alone when ignored, blocked it stays pending for that thread; MSG_NOSIGNAL never. */
#include "conf.h"

static int fd[2];

static void dies(void *arg)
{
	(void)arg;
	signal(SIGPIPE, SIG_DFL);
	conf_pair(fd);
	CONF_OK(shutdown(fd[0], SHUT_WR));
	if (write(fd[0], "x", 1) < 0)
		_exit(1);
	_exit(2);
}

static void each(int a, int b)
{
	struct timespec zero = {0};
	sigset_t pipe_set, old, pending;

	conf_exchange(a, b);
	CONF_OK(shutdown(a, SHUT_WR));
	CONF_TRUE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_TRUE(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
	CONF_ERR(write(a, "x", 1), EPIPE);
	CONF_TRUE(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
	sigemptyset(&pipe_set);
	sigaddset(&pipe_set, SIGPIPE);
	CONF_EQ(pthread_sigmask(SIG_BLOCK, &pipe_set, &old), 0);
	CONF_ERR(send(a, "x", 1, MSG_NOSIGNAL), EPIPE);
	CONF_OK(sigpending(&pending));
	CONF_EQ(sigismember(&pending, SIGPIPE), 0);
	CONF_ERR(write(a, "x", 1), EPIPE);
	CONF_OK(sigpending(&pending));
	CONF_EQ(sigismember(&pending, SIGPIPE), 1);
	CONF_EQ(sigtimedwait(&pipe_set, NULL, &zero), SIGPIPE);
	CONF_EQ(pthread_sigmask(SIG_SETMASK, &old, NULL), 0);
	conf_close2(a, b);
}

CONF_TEST(0)
{
	pid_t pid = conf_fork(dies, NULL);
	int status = 0;

	CONF_EQ(waitpid(pid, &status, 0), pid);
	CONF_TRUE(WIFSIGNALED(status));
	CONF_EQ(WTERMSIG(status), SIGPIPE);
	conf_each_role(each);
}

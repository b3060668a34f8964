/* SPDX-License-Identifier: BSD-2-Clause */
/* Threads use, shut down and close the same numbers at the same time: only errors a closed number gives, no crash. */
#include "conf.h"

#define ROUNDS 300

static _Atomic int fd_a, fd_b, ep;
static _Atomic bool stop;

static void *user(void *arg)
{
	uint32_t rng = (uint32_t)(intptr_t)arg;
	char buf[64] = "";

	while (!atomic_load(&stop)) {
		int fd = conf_rand(&rng) & 1 ? atomic_load(&fd_a) : atomic_load(&fd_b);
		struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT, .data.fd = fd};
		struct pollfd p = {fd, POLLIN | POLLOUT, 0};

		switch (conf_rand(&rng) % 7) {
		case 0:
			send(fd, buf, sizeof(buf), MSG_DONTWAIT | MSG_NOSIGNAL);
			break;
		case 1:
			recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
			break;
		case 2:
			epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev);
			break;
		case 3:
			epoll_ctl(ep, EPOLL_CTL_DEL, fd, &ev);
			break;
		case 4:
			poll(&p, 1, 0);
			break;
		case 5:
			epoll_wait(ep, &ev, 1, 0);
			break;
		default:
			shutdown(fd, SHUT_WR);
			break;
		}
	}
	return NULL;
}

CONF_TEST(CONF_LONG | CONF_TCP_TOO) /* a stray shutdown or ADD may hit a socket before it connects */
{
	struct conf_thread t[3];
	int fd[2], l = conf_listener(AF_INET, 8);

	ep = conf_epoll();
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
	fd_a = fd[0];
	fd_b = fd[1];
	for (int i = 0; i < 3; i++)
		conf_thread_start(&t[i], user, (void *)(intptr_t)(i + 1));
	for (int i = 0; i < ROUNDS; i++) {
		int a = atomic_load(&fd_a), b = atomic_load(&fd_b);

		conf_note("round %d", i);
		fd[0] = conf_dial(l);
		fd[1] = (int)CONF_OK(accept(l, NULL, NULL));
		fd_a = fd[0];
		fd_b = fd[1];
		sched_yield();
		CONF_OK(close(a));
		CONF_OK(close(b));
	}
	atomic_store(&stop, true);
	for (int i = 0; i < 3; i++)
		conf_thread_join(&t[i]);
	conf_close2(fd_a, fd_b);
	conf_pair(fd);
	conf_exchange(fd[0], fd[1]);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* For a test of others that makes its streams with socketpair(): they are TCP connections over loopback instead. */
#ifndef TCP_PAIR_H
#define TCP_PAIR_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static inline int tcp_pair(int domain, int type, int protocol, int pair[2])
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(at);
	int listener;

	(void)domain;
	(void)protocol;
	if ((type & 0xf) != SOCK_STREAM)
		return -1;
	listener = socket(AF_INET, SOCK_STREAM, 0);
	pair[0] = socket(AF_INET, SOCK_STREAM | (type & SOCK_CLOEXEC), 0);
	if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&at, &len) || connect(pair[0], (struct sockaddr *)&at, len))
		return -1;
	pair[1] = accept4(listener, NULL, NULL, type & (SOCK_CLOEXEC | SOCK_NONBLOCK));
	close(listener);
	if (pair[1] < 0)
		return -1;
	if (type & SOCK_NONBLOCK) {
		int on = 1;

		return ioctl(pair[0], FIONBIO, &on);
	}
	return 0;
}

#define socketpair tcp_pair

#endif

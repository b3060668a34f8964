/* SPDX-License-Identifier: BSD-2-Clause */
/* Not a test: a library for LD_PRELOAD whose constructor and destructor use sockets, as other preloaded ones do. */
#include <netinet/in.h>
#include <stdlib.h>
#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener = -1, client = -1;

__attribute__((constructor)) static void begin(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET};
	const char *address = getenv("CONF_ADDR4");
	socklen_t len = sizeof(sin);
	struct epoll_event ev = {.events = EPOLLIN};
	int ep = epoll_create1(EPOLL_CLOEXEC);

	sin.sin_addr.s_addr = inet_addr(address ? address : "127.0.0.1");
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&sin, sizeof(sin)) == 0 && listen(listener, 1) == 0 &&
	    getsockname(listener, (struct sockaddr *)&sin, &len) == 0 &&
	    epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev) == 0 && connect(client, (struct sockaddr *)&sin, len) == 0 &&
	    epoll_wait(ep, &ev, 1, 5000) == 1 && write(client, "c", 1) == 1)
		setenv("CONF_CONSTRUCTOR", "worked", 1);
	close(ep);
}

__attribute__((destructor)) static void finish(void)
{
	char c;
	int s = accept(listener, NULL, NULL);

	if (s < 0 || read(s, &c, 1) != 1 || c != 'c')
		_exit(9);
	close(s);
	close(client);
	close(listener);
}

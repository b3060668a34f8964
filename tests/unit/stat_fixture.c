/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A process for vkrdma-stat to look at. It prints "ready" and obeys lines on standard input:
 *
 *   stat_fixture made          counters made through stats.c, as the library does; then
 *                              "more": bytes go through the first connection; "close": the first connection ends;
 *                              "fork": a child that keeps the map's descriptor, and lives as long as this process
 *   stat_fixture raw FILE      a map with FILE's bytes, not sealed; then "truncate N"
 */
#include "libc_real.h"
#include "stats.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static struct vkr_conn_stats *first;

static struct sockaddr_in v4(const char *ip, uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

	inet_pton(AF_INET, ip, &sa.sin_addr);
	return sa;
}

static struct vkr_conn_stats *conn(enum vkr_role role, uint16_t port, const char *rule)
{
	struct sockaddr_in a = v4("10.0.0.1", 6379), b = v4("10.0.0.2", port);

	return vkr_stats_conn_new(role, (struct sockaddr *)&a, (struct sockaddr *)&b, rule);
}

static void numbers(struct vkr_conn_stats *c, uint64_t base)
{
	vkr_counter *v = &c->bytes_in;
	int i;

	for (i = 0; i < 15; i++)
		vkr_count(v + i, base + (uint64_t)i);
	vkr_store(&c->mem_mr, 65536);
	vkr_store(&c->mem_queue, 16384);
}

static void make(void)
{
	struct sockaddr_in any = v4("0.0.0.0", 6379);
	struct sockaddr_in6 six = {
	    .sin6_family = AF_INET6, .sin6_port = htons(6380), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct vkr_listener_stats *l = vkr_stats_listener_new((struct sockaddr *)&any, "6379");
	struct vkr_conn_stats *c;

	l->transport = VKR_TRANSPORT_RDMA;
	l->fd = 7;
	vkr_count(&l->accepted_rdma, 3);
	vkr_count(&l->accepted_tcp, 1);
	l = vkr_stats_listener_new((struct sockaddr *)&six, "[::1]:6380");
	l->transport = VKR_TRANSPORT_TCP;
	strcpy(l->reason, "the port is taken");
	strcpy(vkr_stats->device, "soft0");
	vkr_store(&vkr_stats->qps, 2);
	vkr_store(&vkr_stats->mr_bytes, 4096);
	vkr_store(&vkr_stats->wakeups, 42);
	vkr_store(&vkr_stats->fallbacks, 1);

	c = conn(VKR_ROLE_ACCEPT, 1000, "6379"); /* closed: 100 to 114 */
	vkr_stats_conn_open(c, VKR_TRANSPORT_RDMA, NULL);
	numbers(c, 100);
	first = conn(VKR_ROLE_ACCEPT, 1001, "6379");
	vkr_stats_conn_free(c);
	first->fd = 9;
	first->peer_kind = VKR_PEER_NATIVE;
	vkr_stats_conn_open(first, VKR_TRANSPORT_RDMA, NULL);
	numbers(first, 1000);
	c = conn(VKR_ROLE_CONNECT, 1002, "*"); /* takes the freed slot */
	c->peer_kind = VKR_PEER_SHIM;
	vkr_stats_conn_open(c, VKR_TRANSPORT_RDMA, NULL);
	numbers(c, 10);
	c = conn(VKR_ROLE_CONNECT, 1003, "*");
	vkr_stats_conn_open(c, VKR_TRANSPORT_TCP, "no \"device\"\\\n\033[2J\xff");
	conn(VKR_ROLE_CONNECT, 1004, "*"); /* still connecting */
	vkr_stats_conn_new(VKR_ROLE_CONNECT, NULL, NULL, "*");
	vkr_stats_conn_free(conn(VKR_ROLE_CONNECT, 1005, "*")); /* failed */
}

static int raw(const char *file)
{
	int in = open(file, O_RDONLY), fd = memfd_create("vkrdma-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	char buf[65536];
	ssize_t n;

	while ((n = read(in, buf, sizeof(buf))) > 0)
		if (write(fd, buf, (size_t)n) != n)
			exit(3);
	if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED)
		exit(4);
	return fd;
}

static void child(void)
{
	pid_t parent = getpid(), pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			pause();
		_exit(0);
	}
	printf("%d\n", (int)pid);
}

static void obey(char *line, int fd)
{
	if (strcmp(line, "more\n") == 0)
		numbers(first, 100000);
	else if (strcmp(line, "close\n") == 0)
		vkr_stats_conn_free(first);
	else if (strcmp(line, "fork\n") == 0)
		child();
	else if (strncmp(line, "truncate ", 9) == 0 && ftruncate(fd, atol(line + 9)) < 0)
		exit(5);
	puts("done");
}

int main(int argc, char **argv)
{
	char line[64];
	int fd = -1;

	if (argc == 2 && strcmp(argv[1], "made") == 0)
		make();
	else if (argc == 3 && strcmp(argv[1], "raw") == 0)
		fd = raw(argv[2]);
	else
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin))
		obey(line, fd);
	return 0;
}

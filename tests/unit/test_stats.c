/* SPDX-License-Identifier: BSD-2-Clause */
/* The counters' map: slots, totals, what a reader finds, what a fork leaves. */
#include "unit.h"

#include "guard.h"
#include "libc_real.h"
#include "log.h"
#include "stats.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in v4(const char *ip, uint16_t port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

	assert_int_equal(inet_pton(AF_INET, ip, &sa.sin_addr), 1);
	return sa;
}

static struct vkr_conn_stats *conn(enum vkr_role role)
{
	struct sockaddr_in a = v4("10.0.0.1", 1000), b = v4("10.0.0.2", 6379);

	return vkr_stats_conn_new(role, (struct sockaddr *)&a, (struct sockaddr *)&b, "6379");
}

static struct vkr_stats_map *the_map(void)
{
	return (struct vkr_stats_map *)vkr_stats;
}

/* Each test in a child: the map is made once a process. */
static void in_child(void (*fn)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		fn();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (status)
		fail_msg("child ended with status 0x%x", status);
}

/* In a child an assertion cannot report through cmocka. */
#define CHECK(x)                                                                                                       \
	do {                                                                                                           \
		if (!(x)) {                                                                                            \
			dprintf(STDERR_FILENO, "%s:%d: %s\n", __FILE__, __LINE__, #x);                                 \
			_exit(1);                                                                                      \
		}                                                                                                      \
	} while (0)

static void dummy_first(void)
{
	struct vkr_conn_stats *c;

	vkr_count(&vkr_stats->wakeups, 3);
	strcpy(vkr_stats->device, "soft0");
	CHECK(vkr_stats->magic == 0);
	errno = 5;
	c = conn(VKR_ROLE_CONNECT); /* opens the map */
	CHECK(errno == 5);
	CHECK(vkr_stats->magic == VKR_STATS_MAGIC);
	CHECK(vkr_load(&vkr_stats->wakeups) == 3);
	CHECK(strcmp(vkr_stats->device, "soft0") == 0);
	CHECK(c == &the_map()->conns[0]);
}

static void test_dummy_before_open(void **state)
{
	in_child(dummy_first);
}

static void header_and_seals(void)
{
	struct vkr_stats_header h;
	struct stat st;
	int fd, fl, ro;
	char path[64], link[64] = "";

	vkr_stats_open();
	vkr_stats_open();
	fd = vkr_guard_next(0);
	CHECK(fd > 255 && vkr_guard_next(fd + 1) == -1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	CHECK(readlink(path, link, sizeof(link) - 1) > 0);
	CHECK(strncmp(link, "/memfd:vkrdma-stats", 19) == 0);
	CHECK(fstat(fd, &st) == 0 && st.st_size == sizeof(struct vkr_stats_map));
	CHECK(st.st_blocks * 512 < 1 << 20); /* sparse */
	fl = fcntl(fd, F_GET_SEALS);
	CHECK((fl & (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
	CHECK(ftruncate(fd, 4096) < 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	ro = open(path, O_RDONLY);
	CHECK(ro >= 0);
	CHECK(pread(ro, &h, sizeof(h), 0) == sizeof(h));
	CHECK(h.magic == VKR_STATS_MAGIC && h.version == VKR_STATS_VERSION);
	CHECK(h.size_conn == 512 && h.size_listener == 256);
	CHECK(h.n_conns == VKR_STATS_CONNS && h.n_listeners == VKR_STATS_LISTENERS);
	CHECK(h.pid == getpid() && h.start_ms > 0);
	CHECK(strcmp(h.program, program_invocation_short_name) == 0);
	CHECK(vkr_load(&h.library_fds) == 1);
}

static void test_header_and_seals(void **state)
{
	in_child(header_and_seals);
}

static void addresses(void)
{
	struct vkr_conn_stats *c = conn(VKR_ROLE_ACCEPT);
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(5)};
	char text[INET6_ADDRSTRLEN];

	CHECK(c->role == VKR_ROLE_ACCEPT && c->fd == -1 && c->since_ms > 0);
	CHECK(vkr_load(&c->state) == VKR_SLOT_CONNECTING);
	CHECK(c->local.sin6_family == AF_INET && ntohs(c->local.sin6_port) == 1000);
	CHECK(IN6_IS_ADDR_V4MAPPED(&c->peer.sin6_addr) && ntohs(c->peer.sin6_port) == 6379);
	CHECK(inet_ntop(AF_INET6, &c->peer.sin6_addr, text, sizeof(text)));
	CHECK(strcmp(text, "::ffff:10.0.0.2") == 0);
	six.sin6_addr.s6_addr[15] = 1;
	vkr_stats_conn_addrs(c, NULL, (struct sockaddr *)&six);
	CHECK(ntohs(c->local.sin6_port) == 1000);
	CHECK(c->peer.sin6_family == AF_INET6 && memcmp(&c->peer, &six, sizeof(six)) == 0);
	c = vkr_stats_conn_new(VKR_ROLE_CONNECT, NULL, NULL, NULL);
	CHECK(c->local.sin6_family == 0 && c->rule[0] == 0);
}

static void test_addresses(void **state)
{
	in_child(addresses);
}

static void reuse(void)
{
	struct vkr_conn_stats *a = conn(VKR_ROLE_CONNECT), *b = conn(VKR_ROLE_CONNECT);
	char big[300];
	uint32_t generation = a->generation;

	memset(big, 'r', sizeof(big));
	big[299] = 0;
	CHECK(b == a + 1);
	vkr_stats_conn_open(a, VKR_TRANSPORT_TCP, big);
	CHECK(strlen(a->reason) == sizeof(a->reason) - 1);
	vkr_count(&a->bytes_in, 7);
	vkr_store(&a->mem_mr, 99);
	vkr_stats_conn_free(a);
	CHECK(vkr_load(&a->state) == VKR_SLOT_FREE);
	vkr_stats_conn_free(a); /* twice: no effect */
	CHECK(vkr_load(&vkr_stats->closed.bytes_in) == 7);
	CHECK(conn(VKR_ROLE_ACCEPT) == a);
	CHECK(a->generation == generation + 1);
	CHECK(a->reason[0] == 0 && vkr_load(&a->bytes_in) == 0 && vkr_load(&a->mem_mr) == 0);
	CHECK(a->transport == VKR_TRANSPORT_NONE);
	CHECK(conn(VKR_ROLE_ACCEPT) == b + 1);
	CHECK(vkr_load(&vkr_stats->high_conn) == 3);
}

static void test_slots_are_reused(void **state)
{
	in_child(reuse);
}

static void totals(void)
{
	struct vkr_totals *t;
	struct vkr_conn_stats *a = conn(VKR_ROLE_CONNECT), *b = conn(VKR_ROLE_ACCEPT), *c = conn(VKR_ROLE_CONNECT);
	int i;
	vkr_counter *from[] = {&a->bytes_in,  &a->bytes_out,    &a->immediates_in, &a->immediates_out, &a->sends_in,
			       &a->sends_out, &a->refreshes_in, &a->refreshes_out, &a->stalls,         &a->rings_in,
			       &a->rings_out, &a->credits_in,   &a->credits_out,   &a->wakes_in,       &a->wakes_out};

	t = &vkr_stats->closed;
	vkr_stats_conn_open(a, VKR_TRANSPORT_RDMA, NULL);
	vkr_stats_conn_open(b, VKR_TRANSPORT_TCP, "the client came over TCP");
	CHECK(vkr_load(&t->conns_rdma) == 1 && vkr_load(&t->conns_tcp) == 1 && vkr_load(&t->failed) == 0);
	vkr_stats_conn_free(c); /* never opened */
	CHECK(vkr_load(&t->failed) == 1);
	c = conn(VKR_ROLE_CONNECT);
	vkr_stats_conn_open(c, VKR_TRANSPORT_TCP, "no device");
	for (i = 0; i < (int)VKR_ARRAY_SIZE(from); i++)
		vkr_count(from[i], 10 + i);
	vkr_stats_conn_free(a);
	CHECK(vkr_load(&t->bytes_in) == 10 && vkr_load(&t->bytes_out) == 11);
	CHECK(vkr_load(&t->immediates_in) == 12 && vkr_load(&t->immediates_out) == 13);
	CHECK(vkr_load(&t->sends_in) == 14 && vkr_load(&t->sends_out) == 15);
	CHECK(vkr_load(&t->refreshes_in) == 16 && vkr_load(&t->refreshes_out) == 17);
	CHECK(vkr_load(&t->stalls) == 18);
	CHECK(vkr_load(&t->rings_in) == 19 && vkr_load(&t->rings_out) == 20);
	CHECK(vkr_load(&t->credits_in) == 21 && vkr_load(&t->credits_out) == 22);
	CHECK(vkr_load(&t->wakes_in) == 23 && vkr_load(&t->wakes_out) == 24);
	vkr_stats_conn_free(b);
	vkr_stats_conn_free(c);
	CHECK(vkr_load(&t->failed) == 1 && vkr_load(&t->conns_tcp) == 2);
}

static void test_totals(void **state)
{
	in_child(totals);
}

static void overflow(void)
{
	struct vkr_conn_stats *first = conn(VKR_ROLE_CONNECT), *c = NULL, *over, *again;
	int i;

	for (i = 1; i < VKR_STATS_CONNS; i++) {
		c = conn(VKR_ROLE_CONNECT);
		CHECK(c == first + i);
	}
	over = conn(VKR_ROLE_CONNECT);
	CHECK(over < the_map()->conns || over >= the_map()->conns + VKR_STATS_CONNS);
	CHECK(conn(VKR_ROLE_CONNECT) == over);
	CHECK(vkr_load(&vkr_stats->high_conn) == VKR_STATS_CONNS);
	vkr_stats_conn_open(over, VKR_TRANSPORT_RDMA, NULL);
	vkr_count(&over->bytes_out, 5);
	vkr_stats_conn_free(over);
	vkr_stats_conn_free(over);
	CHECK(vkr_load(&vkr_stats->closed.bytes_out) == 5);
	CHECK(vkr_load(&vkr_stats->closed.conns_rdma) == 1);
	vkr_stats_conn_free(first + 7);
	again = conn(VKR_ROLE_CONNECT);
	CHECK(again == first + 7);
}

static void test_overflow_slot(void **state)
{
	in_child(overflow);
}

static void listeners(void)
{
	struct sockaddr_in a = v4("0.0.0.0", 6379);
	struct vkr_listener_stats *l[VKR_STATS_LISTENERS], *over;
	int i;

	for (i = 0; i < VKR_STATS_LISTENERS; i++) {
		l[i] = vkr_stats_listener_new((struct sockaddr *)&a, "6379");
		CHECK(l[i] == &the_map()->listeners[i]);
	}
	CHECK(vkr_load(&l[3]->state) == VKR_SLOT_OPEN && strcmp(l[3]->rule, "6379") == 0 && l[3]->fd == -1);
	over = vkr_stats_listener_new((struct sockaddr *)&a, "6379");
	CHECK(over != NULL && (void *)over != (void *)the_map()->conns);
	vkr_stats_listener_free(over);
	vkr_stats_listener_free(l[9]);
	vkr_stats_listener_free(l[9]);
	CHECK(vkr_load(&l[9]->state) == VKR_SLOT_FREE);
	CHECK(vkr_stats_listener_new((struct sockaddr *)&a, "1") == l[9]);
	CHECK(vkr_stats_listener_new((struct sockaddr *)&a, "1") == over);
	CHECK(vkr_load(&vkr_stats->high_listener) == VKR_STATS_LISTENERS);
}

static void test_listeners(void **state)
{
	in_child(listeners);
}

static void no_memory_map(void)
{
	struct rlimit lim = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
	struct vkr_conn_stats *c;

	CHECK(setrlimit(RLIMIT_FSIZE, &lim) == 0); /* growing beyond it would be SIGXFSZ */
	close(STDERR_FILENO);
	c = conn(VKR_ROLE_CONNECT);
	CHECK(c != NULL && vkr_stats->magic == 0 && vkr_guard_next(0) == -1);
	vkr_stats_conn_open(c, VKR_TRANSPORT_RDMA, NULL);
	vkr_count(&c->bytes_in, 4);
	vkr_stats_conn_free(c);
	CHECK(vkr_load(&vkr_stats->closed.bytes_in) == 4);
}

static void test_no_map_is_harmless(void **state)
{
	in_child(no_memory_map);
}

/* The child of a fork leaves the parent's numbers alone, even through stale pointers, and has a map of its own. */
static void forked(void)
{
	struct vkr_conn_stats *c = conn(VKR_ROLE_CONNECT), *mine;
	struct vkr_stats_header *parents = vkr_stats;
	pid_t pid;
	int status;

	vkr_count(&c->bytes_in, 1);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		vkr_guard_close(vkr_guard_next(0));
		vkr_stats_forked();
		CHECK(vkr_stats != parents && vkr_stats->magic == 0);
		CHECK(vkr_load(&c->bytes_in) == 0);
		vkr_count(&c->bytes_in, 1000);
		vkr_stats_conn_free(c);
		CHECK(vkr_load(&vkr_stats->closed.bytes_in) == 0);
		mine = conn(VKR_ROLE_CONNECT);
		CHECK(mine == &the_map()->conns[0] && mine != c);
		CHECK(vkr_stats->pid == getpid());
		CHECK(vkr_load(&vkr_stats->library_fds) == 1);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(vkr_load(&c->bytes_in) == 1 && vkr_load(&c->state) == VKR_SLOT_CONNECTING);
	CHECK(vkr_load(&vkr_stats->high_conn) == 1);
}

static void test_fork(void **state)
{
	in_child(forked);
}

static void *churn(void *arg)
{
	int i;

	for (i = 0; i < 5000; i++) {
		struct vkr_conn_stats *c = conn(VKR_ROLE_ACCEPT);

		vkr_stats_conn_open(c, VKR_TRANSPORT_RDMA, NULL);
		vkr_count(&c->bytes_in, 3);
		vkr_stats_conn_free(c);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t t[4];
	int i;

	for (i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, churn, NULL) == 0);
	for (i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(vkr_load(&vkr_stats->closed.bytes_in) == 4 * 5000 * 3);
	CHECK(vkr_load(&vkr_stats->closed.conns_rdma) == 4 * 5000);
	CHECK(vkr_load(&vkr_stats->high_conn) <= 4);
}

static void test_threads(void **state)
{
	in_child(threads);
}

/* The line at the end of a program counts what is closed and what still lives, and nothing is said of nothing. */
static void log_line(void)
{
	char path[] = "/tmp/vkr-stats-log-XXXXXX", text[512] = "";
	struct vkr_conn_stats *a, *b;
	int fd = mkstemp(path);

	CHECK(fd >= 0);
	vkr_log_open(VKR_LOG_DEBUG, path);
	vkr_stats_log();
	a = conn(VKR_ROLE_CONNECT);
	b = conn(VKR_ROLE_ACCEPT);
	vkr_stats_log();
	vkr_stats_conn_open(a, VKR_TRANSPORT_RDMA, "");
	vkr_stats_conn_open(b, VKR_TRANSPORT_RDMA, "");
	vkr_count(&a->immediates_in, 3);
	vkr_count(&a->immediates_out, 5);
	vkr_count(&b->immediates_in, 10);
	vkr_count(&b->immediates_out, 20);
	vkr_stats_conn_free(a);
	vkr_stats_log();
	CHECK(read(fd, text, sizeof(text) - 1) > 0);
	CHECK(strstr(text, "debug: carried 2 connections with 13 immediates in and 25 out\n"));
	CHECK(strchr(text, '\n')[1] == 0);
	unlink(path);
}

static void test_log_line(void **state)
{
	in_child(log_line);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_dummy_before_open),
	    cmocka_unit_test(test_header_and_seals),
	    cmocka_unit_test(test_addresses),
	    cmocka_unit_test(test_slots_are_reused),
	    cmocka_unit_test(test_totals),
	    cmocka_unit_test(test_overflow_slot),
	    cmocka_unit_test(test_listeners),
	    cmocka_unit_test(test_no_map_is_harmless),
	    cmocka_unit_test(test_fork),
	    cmocka_unit_test(test_threads),
	    cmocka_unit_test(test_log_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Harness of the conformance tests. A test is one file, one behaviour and one process:
 *
 *	#include "conf.h"
 *
 *	CONF_TEST(0)
 *	{
 *		...
 *	}
 *
 * It runs natively on kernel TCP, and then, unchanged, carried (preloaded). Then CONF_EXPECT_RDMA=1 is in the
 * environment and main() ends with a look at the process's own counters: unless the flags below say otherwise the test
 * fails if no connection, or no byte, went over RDMA, or if any flagged connection was TCP.
 *
 * Exit status: 0 passed, 1 failed, 77 skipped, 124 hung (the watchdog prints where). A failed check prints file, line,
 * both values and the note set last, then ends the process. Nothing here sleeps to be in time: helpers wait for
 * conditions, for at most CONF_PATIENCE_MS.
 */
#ifndef VKR_CONF_H
#define VKR_CONF_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CONF_NO_RDMA (1u << 0) /* by its nature the test makes no connection */
#define CONF_NO_SEND (1u << 1) /* connections, but nothing is sent by this process */
#define CONF_TCP_TOO (1u << 2) /* some flagged connections are TCP by the test's intent (fallback, refused) */
#define CONF_LONG    (1u << 3) /* watchdog after 90 s in place of 30 */

int conf_scale(void); /* CONF_SCALE: how many times slower than usual this machine may be */
#define CONF_PATIENCE_MS (8000 * conf_scale())
#define CONF_QUIET_MS    40 /* how long "nothing more happens" is watched */

/* The kernel keeps socket timeouts in jiffies, counted from the last tick: they may end up to one early. */
#define CONF_JIFFY_NS 10000000

#define CONF_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

extern const unsigned conf_flags;
void conf_run(void);
#define CONF_TEST(flags)                                                                                               \
	const unsigned conf_flags = (flags);                                                                           \
	void conf_run(void)

/* ---- checks: each prints both values */
#define CONF_WHERE __FILE__, __LINE__
void conf_at(const char *file, int line);
_Noreturn void conf_fail(const char *file, int line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
_Noreturn void conf_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* What is being tried, shown with a failure: one slot a thread, printf rules. */
void conf_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

long long conf_check_ok(const char *file, int line, const char *expr, long long got);
void conf_check_err(const char *file, int line, const char *expr, long long got, int want_errno);
void conf_check_cmp(const char *file, int line, const char *a_text, const char *op, const char *b_text, long long a,
		    long long b);
void conf_check_events(const char *file, int line, uint32_t got, uint32_t want);

/* The call did not fail; its value. */
#define CONF_OK(call) (conf_at(CONF_WHERE), errno = 0, conf_check_ok(CONF_WHERE, #call, (long long)(call)))
/* The call returned -1 with this errno. */
#define CONF_ERR(call, want)                                                                                           \
	(conf_at(CONF_WHERE), errno = 0, conf_check_err(CONF_WHERE, #call, (long long)(call), (want)))
#define CONF_EQ(a, b)   (conf_at(CONF_WHERE), conf_check_cmp(CONF_WHERE, #a, "==", #b, (long long)(a), (long long)(b)))
#define CONF_NE(a, b)   (conf_at(CONF_WHERE), conf_check_cmp(CONF_WHERE, #a, "!=", #b, (long long)(a), (long long)(b)))
#define CONF_GE(a, b)   (conf_at(CONF_WHERE), conf_check_cmp(CONF_WHERE, #a, ">=", #b, (long long)(a), (long long)(b)))
#define CONF_LE(a, b)   (conf_at(CONF_WHERE), conf_check_cmp(CONF_WHERE, #a, "<=", #b, (long long)(a), (long long)(b)))
#define CONF_TRUE(cond) (conf_at(CONF_WHERE), (cond) ? (void)0 : conf_fail(CONF_WHERE, "not true: %s", #cond))
/* Two masks of EPOLL* (= POLL*) bits, printed by name. */
#define CONF_EVENTS(got, want) (conf_at(CONF_WHERE), conf_check_events(CONF_WHERE, (uint32_t)(got), (uint32_t)(want)))
/* Re-evaluates cond until it holds, or fails. */
#define CONF_UNTIL(cond)                                                                                               \
	do {                                                                                                           \
		int64_t conf_end_ = conf_ms() + CONF_PATIENCE_MS;                                                      \
		conf_at(CONF_WHERE);                                                                                   \
		while (!(cond)) {                                                                                      \
			if (conf_ms() > conf_end_)                                                                     \
				conf_fail(CONF_WHERE, "never became true: %s", #cond);                                 \
			conf_pause();                                                                                  \
		}                                                                                                      \
	} while (0)

/* ---- time */
int64_t conf_ns(void); /* CLOCK_MONOTONIC */
int64_t conf_ms(void);
void conf_pause(void); /* about a millisecond, between two looks at a condition */

/* ---- sockets. All on one address of this machine, ephemeral ports. */
in_addr_t conf_addr4(void);       /* 127.0.0.1, or CONF_ADDR4: a device needs an address that it stands behind */
struct in6_addr conf_addr6(void); /* ::1, or CONF_ADDR6 */
int conf_listener(int family, int backlog);
int conf_bound(int family); /* a TCP socket bound to that address, port 0 */
socklen_t conf_name(int fd, struct sockaddr_storage *ss);
int conf_port(int fd);
int conf_dial(int listener);    /* blocking connect to it */
int conf_dial_nb(int listener); /* non-blocking connect, completed; the socket is non-blocking */
/* fd[0] connected, fd[1] accepted; both blocking. */
void conf_pair(int fd[2]);
void conf_pair_of(int family, int fd[2]);
void conf_nonblock(int fd, bool on);
/* fn(a, b) with a connected pair, once with a the connecting side, once with a the accepting one. fn closes both. */
void conf_each_role(void (*fn)(int a, int b));
void conf_close2(int a, int b);
/* An address of loopback where nobody listens (the port was bound and closed). */
void conf_dead_addr(struct sockaddr_in *sin);

/* ---- data */
void conf_fill(void *buf, size_t n, uint32_t seed, uint64_t offset);
void conf_verify(const char *file, int line, const void *buf, size_t n, uint32_t seed, uint64_t offset);
#define CONF_VERIFY(buf, n, seed, off) (conf_at(CONF_WHERE), conf_verify(CONF_WHERE, (buf), (n), (seed), (off)))
void conf_write_all(int fd, const void *buf, size_t n); /* EAGAIN waits for OUT */
void conf_read_all(int fd, void *buf, size_t n);        /* EOF is a failure */
void conf_read_eof(int fd);                             /* the next read is 0 */
void conf_exchange(int a, int b);                       /* a few bytes each way: the pair works */
void conf_small_buffers(int a, int b);                  /* 64 KiB each way: no growing on demand */
size_t conf_stuff(int fd);                              /* non-blocking writes until EAGAIN for good; bytes taken */
size_t conf_drain(int fd, size_t n);                    /* reads n bytes away */
void conf_wait_inq(int fd, int n);                      /* until FIONREAD says n */
uint32_t conf_rand(uint32_t *state);                    /* xorshift; *state != 0 */

/* ---- readiness */
uint32_t conf_poll1(int fd, short events, int timeout_ms); /* revents, 0 on timeout */
/* Until poll with IN PRI OUT RDHUP shows exactly want. */
void conf_wait_state(const char *file, int line, int fd, uint32_t want);
#define CONF_STATE(fd, want) (conf_at(CONF_WHERE), conf_wait_state(CONF_WHERE, (fd), (want)))
int conf_epoll(void);
void conf_ep_add(int ep, int fd, uint32_t events);
void conf_ep_mod(int ep, int fd, uint32_t events);
/* One event comes within the patience: these bits, data.fd == fd. */
void conf_ep_expect(const char *file, int line, int ep, int fd, uint32_t want);
#define CONF_EP_EXPECT(ep, fd, want) (conf_at(CONF_WHERE), conf_ep_expect(CONF_WHERE, (ep), (fd), (want)))
/* Nothing is reported for CONF_QUIET_MS. */
void conf_ep_quiet(const char *file, int line, int ep);
#define CONF_EP_QUIET(ep) (conf_at(CONF_WHERE), conf_ep_quiet(CONF_WHERE, (ep)))

/* ---- threads and processes */
struct conf_thread {
	pthread_t thread;
	_Atomic pid_t tid;
	_Atomic bool done;
	int err; /* errno at its end */
	void *(*fn)(void *);
	void *arg;
};
void conf_thread_start(struct conf_thread *t, void *(*fn)(void *), void *arg);
void *conf_thread_join(struct conf_thread *t);
/* This thread, and those that it starts, on one processor: who is woken runs before who woke it goes on. */
void conf_one_cpu(void);
/* Until the thread sleeps in the kernel and has made no switch for a while. Fails if it has ended. */
void conf_thread_asleep(struct conf_thread *t);
/* The same for another process's only thread. */
void conf_process_asleep(pid_t pid);

/* A child with its own watchdog that dies with its parent; ends by exit(conf_end()). */
pid_t conf_fork(void (*fn)(void *arg), void *arg);
void conf_join(pid_t pid); /* it ended with status 0 */
/* Two processes, forked before any socket exists: one end each, first with the child listening, then with the parent.
 * Every process checks its own evidence. parent gets the child's pid and must wait for it. */
void conf_two(void (*parent)(int fd, pid_t child), void (*child)(int fd));
/* Runs this program again without the preload: it calls conf_plain(arg, port) and exits with its value. */
pid_t conf_spawn_plain(const char *arg, int port);
int conf_plain(const char *arg, int port);

/* ---- signals: conf_catch installs a handler that counts in conf_caught */
extern _Atomic int conf_caught;
void conf_catch(int sig, int sa_flags);

bool conf_carried(void);        /* CONF_EXPECT_RDMA=1 */
int conf_end(void);             /* 0, or 1 with a message: the evidence is missing */
uint64_t conf_shared(void);     /* of them, those whose bytes are pumped for other holders; 0 natively */
uint64_t conf_conns_rdma(void); /* connections of this process so far that were RDMA; 0 natively */
int conf_count_fds(void);       /* open descriptors of this process */

#endif

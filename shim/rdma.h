/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the socket layers (socket.c, poll_emul.c) know of RDMA: streams, listeners, and the engine's sleep protocol.
 * Implemented by engine.c, rdma_cm.c and rdma_stream.c. Nothing here blocks unless it says so. Functions return 0 or a
 * count, or -errno. No verbs type appears.
 */
#ifndef VKR_RDMA_H
#define VKR_RDMA_H

#include "base.h"
#include "pollable.h"
#include "stats.h"

#include <sys/socket.h>
#include <sys/uio.h>

/* ------------------------------------------------------------------ engine */

#define VKR_MAX_DEVICES 8

/*
 * Starts the engine once per process: opens the libraries, the CM channel and the progress thread. Cheap when it
 * runs already. -errno where RDMA is not to be had at all; *reason (static string) then says why in user's words and
 * one WARN line has been logged (the first time only; the failure is remembered, that there is no device for ten
 * seconds).
 */
int vkr_engine_start(const char **reason);
extern VKR_LOCAL _Atomic bool vkr_engine_runs;
static inline bool vkr_engine_running(void)
{
	return vkr_load_acq(&vkr_engine_runs);
}

/*
 * The sleep protocol. A thread that wants to wait for streams:
 *
 *   vkr_engine_poll(); look at the ready masks; nothing:
 *   vkr_engine_sleep_begin();   counts the caller as asleep and arms every CQ, then polls once more
 *   look at the ready masks again; nothing:
 *   really sleep on vkr_engine_fds() (readable = completion events) and on whatever else the caller waits for
 *   vkr_engine_sleep_end();
 *   for each engine fd that was readable: vkr_engine_event(fd)   consumes and acknowledges the event, re-arms if others
 *                                                                sleep, and polls
 *
 * Whoever polls dispatches to every stream of the CQ, so watches of other threads fire from this thread.
 * vkr_engine_poll() returns the number of completions it handled; when another thread is polling a CQ it does not wait
 * for it. sleep_begin's poll does wait: a completion taken by another thread has reached its stream when sleep_begin
 * returns.
 */
int vkr_engine_poll(void);
void vkr_engine_sleep_begin(void);
void vkr_engine_sleep_end(void);
void vkr_engine_event(int fd);
/* Fills fds, returns their number (0 if the engine does not run). -1 stands where a device has gone;
 * vkr_engine_generation() changes when one comes or goes. */
int vkr_engine_fds(int fds[VKR_MAX_DEVICES]);
unsigned vkr_engine_generation(void);

/* Blocks: waits until every stream's accepted bytes have been delivered or ms have passed, then disconnects. For exit
 * and exec. */
void vkr_engine_flush(int ms);

/* A descriptor of the layers above that the progress thread watches too; readable() runs on that thread. fd() < 0: none
 * now. Once, before or after the start. */
void vkr_engine_watch(int (*fd)(void), void (*readable)(void));

/* fork: prepare takes every lock of these three files in order; the child forgets all objects (frees nothing, calls no
 * verbs). */
void vkr_engine_fork_prepare(void);
void vkr_engine_fork_parent(void);
void vkr_engine_fork_child(void);

/* ------------------------------------------------------------------ streams */

enum vkr_stream_state {
	VKR_STREAM_CONNECTING,
	VKR_STREAM_OPEN,   /* includes half-closed and ended by the peer: see the ready mask */
	VKR_STREAM_FAILED, /* the connect attempt failed: vkr_stream_failure() */
};

/*
 * One byte stream on one RC QP. The socket layer holds one reference from vkr_connect_start()/vkr_listener_accept()
 * until vkr_stream_close(), and makes no call on it after that. May be called from any thread, several at once.
 *
 * The ready mask follows Linux TCP: IN = bytes, EOF or error; OUT = room for at least a quarter of the send buffer, or
 * a write would fail at once; RDHUP = the peer will send no more; HUP = both directions ended; ERR = an error that
 * SO_ERROR or the next call reports. While CONNECTING the mask is 0. A connect that fails sets state FAILED, leaves the
 * mask 0, and fires watches with the edge VKR_EDGE_STATE, as does success (with OUT).
 */
struct vkr_stream;
#define VKR_EDGE_STATE (1u << 27) /* no EPOLL* bit: the state changed (connected, or failed) */

struct vkr_pollable *vkr_stream_pollable(struct vkr_stream *s);
enum vkr_stream_state vkr_stream_state(struct vkr_stream *s);
/* FAILED only: the errno of the attempt (-ETIMEDOUT, -ECONNREFUSED, -ENETUNREACH, -ENOMEM, ...) and a reason in user's
 * words, kept until close. */
int vkr_stream_failure(struct vkr_stream *s, const char **reason);
struct vkr_conn_stats *vkr_stream_stats(struct vkr_stream *s);
/* v4 peers as AF_INET, v6 as AF_INET6 (v4-mapped where the listener was a v6 one). Valid when OPEN. */
void vkr_stream_addrs(struct vkr_stream *s, struct sockaddr_storage *local, struct sockaddr_storage *peer);

/*
 * recv: copies up to `want` bytes, which the iovecs hold. > 0 bytes; 0 = end of the stream, or bytes are there and none
 * was asked for; -EAGAIN; -ECONNRESET, -ETIMEDOUT, ... a pending error, reported once, after the data before it.
 * VKR_IO_PEEK leaves the bytes, VKR_IO_MORE (the call has bytes already) the error. send: > 0 of `total` bytes
 * accepted, perhaps not all; 0 only for a total of 0; -EAGAIN; -EPIPE; a pending error once. VKR_IO_EAGER (much is left
 * to send) polls a moment for room at the peer, takes part of the bytes at a time and stages none; its -EAGAIN is no
 * promise of an OUT: ask again without. Accepted bytes are the library's to deliver. User memory is read or written
 * directly: the caller has checked nothing, a bad pointer faults as in memcpy (the socket layer guards for EFAULT).
 */
#define VKR_IO_PEEK  1u
#define VKR_IO_MORE  2u
#define VKR_IO_EAGER 4u
ssize_t vkr_stream_recv(struct vkr_stream *s, const struct iovec *iov, size_t want, unsigned how);
ssize_t vkr_stream_send(struct vkr_stream *s, const struct iovec *iov, int iovcnt, size_t total, unsigned how);

/*
 * For pump.c. After hand_over() recv is -EXDEV for everybody, whoever waits for input is woken, and the ready mask
 * keeps VKR_EDGE_STATE. forward() then offers what has been received to take(), called under the stream's lock and
 * returning how many bytes it took, perhaps 0. Returns the same, or what recv would for an empty stream.
 */
void vkr_stream_hand_over(struct vkr_stream *s);
ssize_t vkr_stream_forward(struct vkr_stream *s, ssize_t (*take)(void *arg, const struct iovec *iov, int n), void *arg);

size_t vkr_stream_inq(struct vkr_stream *s);  /* bytes that recv would deliver now: FIONREAD */
size_t vkr_stream_outq(struct vkr_stream *s); /* bytes accepted and not known to be at the peer: SIOCOUTQ */
/* The error is pending again; edge-triggered members hear nothing of it. */
void vkr_stream_put_error(struct vkr_stream *s, int err);
int vkr_stream_take_error(struct vkr_stream *s); /* SO_ERROR: pending errno as a positive number, cleared; 0 if none */

/* SO_KEEPALIVE with TCP_KEEPIDLE: a peer that has said nothing for idle_s is asked whether it lives; 0: never (unless
 * VKRDMA_KEEPALIVE says so). The connection ends with ETIMEDOUT where it does not answer. */
void vkr_stream_keepalive(struct vkr_stream *s, int idle_s);
/* SO_SNDBUF: how many bytes may wait here for room at the peer; the library's own limit stays the upper one. */
void vkr_stream_sndbuf(struct vkr_stream *s, uint32_t bytes);

/* how: SHUT_RD, SHUT_WR, SHUT_RDWR. -ENOTCONN when already fully ended. */
int vkr_stream_shutdown(struct vkr_stream *s, int how);
bool vkr_stream_over(struct vkr_stream *s); /* fully ended: TCP's state CLOSE */

/* Gives the reference back. Unsent bytes drain behind it until the deadline (0: discard and reset: SO_LINGER with 0).
 * Never blocks. */
void vkr_stream_close(struct vkr_stream *s, int drain_ms);

/* Starts an attempt: resolve, route, QP, connect, negotiation, all within timeout_ms, by the progress thread. 0 and a
 * CONNECTING stream (with its stats slot), or -errno and a reason. `local` is the bound address or NULL. `rule` is
 * copied. */
int vkr_connect_start(const struct sockaddr *local, const struct sockaddr *peer, int timeout_ms, const char *rule,
		      struct vkr_stream **stream, const char **reason);

/* ------------------------------------------------------------------ listeners */

/* An RDMA listener on the address that getsockname() gave (port set; the any address allowed). Streams are handed out
 * established, up to backlog wait. Its pollable has IN while one waits. */
struct vkr_listener;

/*
 * What the layer above needs for a connection, got before its request is answered: a client that would have to be
 * turned away at accept() can then still choose TCP. The ticket travels with the stream.
 */
struct vkr_admission {
	void *(*admit)(void *arg);     /* progress thread, a request at a time; NULL refuses it */
	void (*dismiss)(void *ticket); /* there will be no accept after all; any thread, no lock held */
	void *arg;
};

/* `admission` is copied; NULL: every request is let in. */
int vkr_listener_create(const struct sockaddr *local, bool v6only, int backlog, const char *rule,
			struct vkr_listener_stats *stats, const struct vkr_admission *admission,
			struct vkr_listener **l, const char **reason);
struct vkr_pollable *vkr_listener_pollable(struct vkr_listener *l);
void vkr_listener_backlog(struct vkr_listener *l, int backlog); /* a second listen() */
/* shutdown: refuses everybody, those who wait too, until vkr_listener_backlog(). */
void vkr_listener_stop(struct vkr_listener *l);
/* NULL: none waits. The ticket (NULL without an admission) is the caller's. */
struct vkr_stream *vkr_listener_accept(struct vkr_listener *l, void **ticket);
/* Not taken after all: first in the queue again, with its ticket. */
void vkr_listener_return(struct vkr_listener *l, struct vkr_stream *s, void *ticket);
/* fn is called, under the listener's lock, with the ticket of each stream that waits. */
void vkr_listener_each(struct vkr_listener *l, void (*fn)(void *ticket, void *arg), void *arg);
void vkr_listener_close(struct vkr_listener *l); /* waiting streams are closed */

#endif

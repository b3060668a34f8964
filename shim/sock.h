/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A tracked TCP socket and what its parts (socket.c, sock_connect.c, sock_io.c, sock_opts.c) share.
 */
#ifndef VKR_SOCK_H
#define VKR_SOCK_H

#include "fdmap.h"
#include "pollable.h"
#include "rdma.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum vkr_sock_state {
	VKR_SOCK_TCP,        /* kernel socket that a rule may still flag */
	VKR_SOCK_LISTEN,     /* flagged: kernel and RDMA listener */
	VKR_SOCK_CONNECTING, /* flagged: the attempt runs; the number is an unconnected kernel TCP socket */
	VKR_SOCK_CARRIED,    /* the number is our end of a socketpair, the bytes go by RDMA */
	VKR_SOCK_PAIRED, /* carried and shared: the number is used as the kernel has it, the bytes are pumped (pump.h)
			  */
	VKR_SOCK_FINAL,  /* kernel TCP for good; tracked for its counters only */
};

struct vkr_options;
struct vkr_pump;

#define VKR_HEIRS 32

struct vkr_sock {
	struct vkr_file file;
	_Atomic uint8_t state;
	_Atomic bool nonblock; /* as the application set it */
	bool shared;           /* another process has the unconnected socket too: TCP */
	bool silent;           /* the attempt had no answer at all */
	_Atomic bool on_trial; /* fell back; whether TCP answers decides if the address is remembered */
	_Atomic bool vouched;  /* it was remembered because this connection stood */
	_Atomic bool told;     /* a connect() has reported success */
	bool inherited;        /* waits to be accepted, and has its listener's options already */
	bool dissolved; /* by connect(AF_UNSPEC): its ECONNRESET is no connect()'s to report, and `stream` is one of
			   the past */
	_Atomic bool shut_wr;
	int domain, type, protocol;
	struct vkr_stream *stream;
	struct vkr_stream **past; /* of attempts that failed and connections that were dissolved: kept for threads that
				     look at them */
	int n_past;
	int connect_waits; /* threads inside a blocking connect(), who will end the attempt themselves */
	struct vkr_listener *listener;
	struct vkr_listener_stats *listener_stats;
	struct vkr_conn_stats *tcp_stats;
	int kernel_fd; /* guarded: the kernel's listener by a number that nobody else closes while a thread sleeps in
			  accept; or the socket that holds the port to which a carried one was bound */
	int pair_lib, pair_app; /* guarded; until the number has been replaced, then pair_lib is the pump's */
	struct vkr_pump *pump;
	struct vkr_bequest {          /* of a listener: bequest.h */
		int owner, heir;      /* guarded, -1 */
		bool announced;       /* an heir's: the owner knows that it waits for connections */
		bool listed, watches; /* the owner's */
		_Atomic bool wanted;  /* the owner's: there have been heirs that wait */
		bool strangers;       /* ... more than are known by their descriptors */
		int heirs[VKR_HEIRS]; /* pidfds, guarded */
		int n_heirs;
		struct vkr_watch watch;
		struct vkr_sock *prev, *next;
	} bequest;
	_Atomic int error;                  /* SO_ERROR of a connect that failed after it had returned EINPROGRESS */
	_Atomic unsigned turn;              /* accept: who is asked first */
	_Atomic int64_t rcvtimeo, sndtimeo; /* ns, 0 none */
	int linger_on, linger_s;
	struct sockaddr_storage peer; /* of the attempt */
	char rule[72];
	int64_t retry_at; /* LISTEN without an RDMA listener: ns */
	int backlog;
	struct vkr_options *options;
	_Atomic uint64_t touched; /* what the program has set before the socket was carried: sock_opts.c */
};

static inline void vkr_sock_put(struct vkr_sock *s)
{
	vkr_file_put(&s->file);
}

/* For VKR_CLEANUP. */
static inline void vkr_sock_putp(struct vkr_sock **s)
{
	if (*s)
		vkr_sock_put(*s);
}

/* Moves a CONNECTING socket on when its attempt has ended. Returns the state. No lock held. */
enum vkr_sock_state vkr_sock_settle(struct vkr_sock *s);
static inline bool vkr_is_connected(enum vkr_sock_state state)
{
	return state == VKR_SOCK_CARRIED || state == VKR_SOCK_PAIRED;
}
/* What the layers above watch: NULL for a kernel-only file. */
struct vkr_pollable *vkr_file_pollable(struct vkr_file *f);

/* sock_opts.c */
void vkr_options_seed(struct vkr_sock *s, int tcp_fd);                         /* from a kernel TCP socket */
int vkr_options_room(struct vkr_sock *child, const struct vkr_sock *listener); /* 0 or -ENOMEM: for what it inherits */
void vkr_options_inherit(struct vkr_sock *child, struct vkr_sock *listener, int listener_fd);
/* To the stream what it has to know, of a socket that got its stream later than its options. */
void vkr_options_apply(struct vkr_sock *s);
/* To a kernel TCP socket again. */
void vkr_options_return(struct vkr_sock *s, int tcp_fd);
void vkr_options_free(struct vkr_sock *s);
void vkr_options_forked(void);

/* sock_io.c: takes the carried socket of fd, or says what the caller returns: VKR_PASS for the kernel's, VKR_PAIRED for
 * those with TCP's answers (vkr_pair_recv(), vkr_pair_send()), or -errno. */
#define VKR_PAIRED (VKR_PASS + 1)
struct vkr_sock *vkr_carried_else(int fd, struct vkr_sock *s, int *r);
static VKR_INLINE struct vkr_sock *vkr_carried_get(int fd, int *r)
{
	struct vkr_sock *s;

	vkr_fork_check();
	s = vkr_sock_get(fd);
	if (vkr_likely(s && vkr_load_acq(&s->state) == VKR_SOCK_CARRIED && !vkr_file_inherited(&s->file)))
		return s;
	return vkr_carried_else(fd, s, r);
}

/* socket.c */

/* The two ends of the socketpair that stands for the connection. 0 or -errno. */
int vkr_pair_make(struct vkr_sock *s);
void vkr_pair_free(struct vkr_sock *s);
/* A flagged connection that stays kernel TCP: seen in vkrdma-stat with its reason, and otherwise left alone. */
void vkr_sock_final(struct vkr_sock *s, enum vkr_role role, const struct sockaddr *local, const struct sockaddr *peer,
		    const char *why);
/* The number is a listening kernel socket that a rule flags, with nothing of ours around it yet: makes this process the
 * owner of its RDMA listener. */
void vkr_sock_listen_own(struct vkr_sock *s, int fd);
/* LISTEN without an RDMA listener: another try at the port now and then. */
void vkr_sock_listen_retry(struct vkr_sock *s, int fd);
/* An address for the application, as the kernel copies it: cut to *len, which then is its true length. */
void vkr_copy_address(const struct sockaddr_storage *from, struct sockaddr *sa, socklen_t *len);
/* The kernel's checks of the arguments for it: 0 or -errno. */
int vkr_check_address(const struct sockaddr *sa, const socklen_t *len);
/* No rule wants it: the number is the kernel's alone from now on, and costs nothing more. */
void vkr_sock_untrack(int fd, struct vkr_sock *s);
/*
 * sock_accept.c, the listener's vkr_admission: a client is let in only with the socket that accept() will hand out, so
 * that it is refused, and can take TCP, while there is still somebody to tell. The number that the application gets is
 * not chosen before accept().
 */
void *vkr_sock_admit(void *listener);
void vkr_sock_dismiss(void *ticket);
/* sock_disconnect.c */
int vkr_sock_disconnect(struct vkr_sock *s); /* CARRIED or CONNECTING becomes an unconnected kernel socket; or -errno */
void vkr_stream_keep(struct vkr_sock *s, struct vkr_stream *stream);
void vkr_streams_release(struct vkr_sock *s);
/* sock_connect.c: the TCP connection that an attempt fell back to stands. */
void vkr_sock_tcp_stands(struct vkr_sock *s);
void vkr_sock_tcp_closes(struct vkr_sock *s, int fd); /* fd is about to be closed */
void vkr_connect_forked(void);

/* SO_RCVTIMEO or SO_SNDTIMEO of a kernel socket, ns. */
int64_t vkr_kernel_timeout(int fd, int name);

#endif

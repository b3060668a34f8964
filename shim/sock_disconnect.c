/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * connect() to AF_UNSPEC: TCP's way to end a connection, or an attempt, and keep the socket. The numbers become a fresh
 * kernel socket with the options that the program had set; the stream is cut off. Other threads may be inside a call on
 * it: it is kept with the socket (decisions/0004).
 */
#include "epset.h"
#include "guard.h"
#include "libc_real.h"
#include "pump.h"
#include "sock.h"
#include "socket.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

void vkr_stream_keep(struct vkr_sock *s, struct vkr_stream *stream)
{
	struct vkr_stream **past = realloc(s->past, (size_t)(s->n_past + 1) * sizeof(*past));

	if (!past)
		return; /* and the stream is lost, memory and all */
	past[s->n_past++] = stream;
	s->past = past;
}

void vkr_streams_release(struct vkr_sock *s)
{
	int i;

	for (i = 0; i < s->n_past; i++)
		vkr_stream_close(s->past[i], 0);
	free(s->past);
	s->past = NULL;
	s->n_past = 0;
}

static void number_replace(int fd, struct vkr_file *f, void *arg)
{
	int flags = vkr_real.fcntl(fd, F_GETFD);

	(void)f;
	vkr_real.dup3(*(int *)arg, fd, flags >= 0 && flags & FD_CLOEXEC ? O_CLOEXEC : 0);
}

/* vkr_ctl_lock held, state CARRIED. */
static int carried_end(struct vkr_sock *s)
{
	int type = s->type | SOCK_CLOEXEC | (vkr_load(&s->nonblock) ? SOCK_NONBLOCK : 0);
	int fresh = vkr_guard_spare(vkr_real.socket(s->domain, type, s->protocol));

	if (fresh < 0)
		return -ENOBUFS;
	vkr_options_return(s, fresh);
	vkr_file_each_number(&s->file, number_replace, &fresh);
	vkr_guard_close(fresh);
	return 0;
}

int vkr_sock_disconnect(struct vkr_sock *s)
{
	struct vkr_stream *stream = NULL;
	struct vkr_pump *pump = NULL;
	enum vkr_sock_state was;
	int r = 0;

	pthread_mutex_lock(&vkr_ctl_lock);
	was = vkr_load(&s->state);
	if (was == VKR_SOCK_CARRIED)
		r = carried_end(s);
	else if (was != VKR_SOCK_CONNECTING || s->connect_waits)
		r = -EISCONN; /* another thread was here, or is */
	if (!r) {
		stream = s->stream; /* and stays there for who has just found the socket carried */
		vkr_store(&s->told, false);
		s->dissolved = true;
		vkr_store(&s->shut_wr, false);
		vkr_store(&s->error, was == VKR_SOCK_CARRIED ? ECONNRESET : 0); /* as tcp_disconnect() */
		vkr_store_rel(&s->state, VKR_SOCK_TCP);
		vkr_items_return(&s->file);
		vkr_pair_free(s);
		pump = s->pump;
		s->pump = NULL;
		vkr_stream_keep(s, stream);
	}
	pthread_mutex_unlock(&vkr_ctl_lock);
	if (pump)
		vkr_pump_drop(pump);
	if (stream)
		vkr_stream_shutdown(stream, SHUT_RDWR);
	return r;
}

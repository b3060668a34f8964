/* SPDX-License-Identifier: BSD-2-Clause */
/* Walking over an iovec array piece by piece. The caller asks for no more bytes than it holds. */
#ifndef VKR_IOV_H
#define VKR_IOV_H

#include "base.h"

#include <string.h>
#include <sys/uio.h>

struct vkr_iov {
	const struct iovec *iov;
	const struct iovec *end; /* where the caller needs to know how many are left */
	size_t off;
};

/* Up to n bytes that lie together, n > 0: where, and how many. */
static inline size_t vkr_iov_piece(struct vkr_iov *c, size_t n, void **at)
{
	size_t part;

	while (c->off == c->iov->iov_len) {
		c->iov++;
		c->off = 0;
	}
	part = vkr_min(c->iov->iov_len - c->off, n);
	*at = (char *)c->iov->iov_base + c->off;
	c->off += part;
	return part;
}

static inline void vkr_iov_scatter(struct vkr_iov *c, const uint8_t *from, size_t n)
{
	size_t part;
	void *at;

	for (; n; n -= part, from += part) {
		part = vkr_iov_piece(c, n, &at);
		memcpy(at, from, part);
	}
}

static inline void vkr_iov_gather(struct vkr_iov *c, uint8_t *to, size_t n)
{
	size_t part;
	void *at;

	for (; n; n -= part, to += part) {
		part = vkr_iov_piece(c, n, &at);
		memcpy(to, at, part);
	}
}

static inline void vkr_iov_skip(struct vkr_iov *c, size_t n)
{
	void *at;

	while (n)
		n -= vkr_iov_piece(c, n, &at);
}

#endif

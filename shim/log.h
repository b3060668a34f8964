/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One line to a descriptor per message: "libvkrdma[PID] LEVEL: text". Formats on the stack, writes once, no malloc, no
 * stdio stream, errno preserved. The level and the target come from VKRDMA_LOG (see config.h): LEVEL or LEVEL:FILE.
 * Default level: warn, to stderr. Of each kind of warning, that is of each format, one line a second is written, with
 * the number of those that were left out before it: peers can make us warn. Descriptor 2 is not duplicated (a copy
 * would keep a pipe open behind a daemon): before each line it is compared with what it was at vkr_log_open(), and one
 * that the program closed or reused is left alone.
 */
#ifndef VKR_LOG_H
#define VKR_LOG_H

#include "base.h"

#include <sys/socket.h>

enum vkr_log_level { VKR_LOG_NONE, VKR_LOG_ERROR, VKR_LOG_WARN, VKR_LOG_INFO, VKR_LOG_DEBUG };

extern enum vkr_log_level vkr_log_level;

void vkr_log_open(enum vkr_log_level level, const char *file_or_null);
void vkr_log_write(enum vkr_log_level level, const char *fmt, ...) VKR_PRINTF(2, 3);
/* After fork, in the child: the descriptor was closed with the other guarded ones; take a new one when needed. */
void vkr_log_forked(void);
/* "10.0.0.1:6379" or "[::1]:6379" into buf (80 bytes do); returns buf. */
const char *vkr_address_text(const struct sockaddr *sa, char *buf, size_t size);

#define vkr_log(level, ...)                                                                                            \
	do {                                                                                                           \
		if (vkr_unlikely((level) <= vkr_log_level))                                                            \
			vkr_log_write((level), __VA_ARGS__);                                                           \
	} while (0)
#define vkr_error(...) vkr_log(VKR_LOG_ERROR, __VA_ARGS__)
#define vkr_warn(...)  vkr_log(VKR_LOG_WARN, __VA_ARGS__)
#define vkr_info(...)  vkr_log(VKR_LOG_INFO, __VA_ARGS__)
#define vkr_debug(...) vkr_log(VKR_LOG_DEBUG, __VA_ARGS__)

#endif

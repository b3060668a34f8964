/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Rules from the environment, parsed once before the first use; grammar in libvkrdma(7).
 *
 *   VKRDMA_LISTEN           comma-separated rules: PORT, PORT-PORT or *, after ADDR[/BITS]: or [V6][/BITS]: or *: where
 *                           only that address counts (the one that is bound); ! before a rule excludes; first match
 *                           wins
 *   VKRDMA_CONNECT          the same; the address is the peer's
 *   VKRDMA_FALLBACK         tcp (default) or none
 *   VKRDMA_LOG              none, error, warn, info or debug; then :FILE if not to stderr
 *   VKRDMA_PROVIDER         verbs (default) or soft
 *   VKRDMA_CONNECT_TIMEOUT  milliseconds, 1..60000, default 2000
 *   VKRDMA_KEEPALIVE        seconds, 0..3600, default 3: how long a peer may say nothing before it is asked; 0: only
 *                           where the program set SO_KEEPALIVE
 *   VKRDMA_RING             bytes of a receive ring advertised to a peer that is not a shim, default 262144 (4 KiB to
 *                           64 MiB, suffixes k and m)
 *   VKRDMA_EARLY_REFRESH    yes (default): a peer that has filled a ring is offered another before the first is read
 *   VKRDMA_POLL             microseconds that a wait may poll before it sleeps, 0..1000, default 50; off is 0
 *   VKRDMA_FEATURES         what may be agreed upon with a peer that is a shim: all (default), none, or a
 *                           comma-separated list of fin, resize, credit, keep, lend
 *
 * An empty variable counts as unset. A variable that cannot be parsed gives one error line on stderr that names the
 * variable, the offending text and its place; then no rule is active at all and the program runs on plain TCP.
 * Secure-execution (AT_SECURE) programs see no rules. No allocation: rules live in fixed tables (VKR_MAX_RULES each;
 * more is an error line).
 */
#ifndef VKR_CONFIG_H
#define VKR_CONFIG_H

#include "base.h"
#include "log.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define VKR_MAX_RULES 64

struct vkr_rule {
	bool exclude;
	uint8_t family;            /* AF_UNSPEC: any address */
	uint8_t bits;              /* of addr: 96 more than written for v4 */
	uint16_t port_lo, port_hi; /* host order, inclusive; 0..65535 for * */
	struct in6_addr addr;      /* v4 in its mapped form */
	char text[72];             /* as the user wrote it, for logs and vkrdma-stat */
};

struct vkr_config {
	bool active; /* at least one rule, and everything parsed */
	bool fallback_none;
	bool provider_soft;
	uint32_t connect_timeout_ms;
	uint32_t keepalive_s;
	bool late_refresh;    /* VKRDMA_EARLY_REFRESH=no */
	uint32_t native_ring; /* bytes */
	uint32_t poll_us;
	uint32_t features; /* VKR_FEAT_* */
	enum vkr_log_level log_level;
	const char *log_file; /* NULL: stderr; points into the variable */
	int n_listen, n_connect;
	struct vkr_rule listen[VKR_MAX_RULES], connect[VKR_MAX_RULES];
};

extern struct vkr_config vkr_config;

/* Idempotent, not thread-safe (called under the init once). Reads the environment, opens the log. */
void vkr_config_load(void);

/* Pure parser, for the tests and for vkrdma-run: parses into cfg; 0, or -EINVAL with a one-line message in err. */
int vkr_config_parse(struct vkr_config *cfg, const char *(*getenv_fn)(const char *name), char *err, size_t errlen);

/* First matching rule, NULL if none or an exclusion matched. sa: AF_INET or AF_INET6 (v4-mapped handled). */
const struct vkr_rule *vkr_config_match_listen(const struct sockaddr *sa);
const struct vkr_rule *vkr_config_match_connect(const struct sockaddr *sa);

#endif

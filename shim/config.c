/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The grammar of the environment, and the rules' matching: pure functions. Addresses are kept and compared as 128 bits,
 * v4 in its mapped form with 96 added to the length of its prefix; a rule for v6 addresses does not match mapped ones.
 */
#include "config.h"
#include "wire.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 2000
#define DEFAULT_RING       262144
#define DEFAULT_POLL_US    50
#define DEFAULT_KEEPALIVE  3

struct vkr_config vkr_config;

/* A piece of a variable's value, not terminated. */
struct span {
	const char *at;
	size_t len;
};

struct report {
	const char *variable;
	const char *value; /* the whole of it: gives the place */
	char *err;
	size_t errlen;
};

static const uint8_t mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* Always -EINVAL. The offending text is shown shortened and without what could disturb a terminal. */
static int fail(const struct report *r, struct span s, const char *why)
{
	char shown[49];
	size_t i, n = vkr_min(s.len, sizeof(shown) - 1);

	for (i = 0; i < n; i++)
		shown[i] = s.at[i] < ' ' || s.at[i] == 0x7f ? '?' : s.at[i];
	shown[n] = '\0';
	snprintf(r->err, r->errlen, "%s: \"%s\"%s at character %zu: %s", r->variable, shown, n < s.len ? "..." : "",
		 (size_t)(s.at - r->value) + 1, why);
	return -EINVAL;
}

static struct span span_of(const char *text)
{
	return (struct span){text, strlen(text)};
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static struct span trim(struct span s)
{
	while (s.len && is_blank(s.at[0])) {
		s.at++;
		s.len--;
	}
	while (s.len && is_blank(s.at[s.len - 1]))
		s.len--;
	return s;
}

static bool equals(struct span s, const char *word)
{
	return s.len == strlen(word) && memcmp(s.at, word, s.len) == 0;
}

/* Index of c, or s.len. */
static size_t find(struct span s, char c)
{
	const char *p = s.len ? memchr(s.at, c, s.len) : NULL;

	return p ? (size_t)(p - s.at) : s.len;
}

static struct span cut(struct span s, size_t from, size_t to)
{
	return (struct span){s.at + from, to - from};
}

/* Decimal digits only; false for none, for anything else and above max. */
static bool number(struct span s, uint64_t max, uint64_t *out)
{
	uint64_t v = 0;
	size_t i;

	if (!s.len)
		return false;
	for (i = 0; i < s.len; i++) {
		if (s.at[i] < '0' || s.at[i] > '9')
			return false;
		v = v * 10 + (uint64_t)(s.at[i] - '0');
		if (v > max)
			return false;
	}
	*out = v;
	return true;
}

static int parse_ports(const struct report *r, struct span s, struct vkr_rule *rule)
{
	size_t dash = find(s, '-');
	uint64_t lo, hi;

	if (equals(s, "*")) {
		rule->port_lo = 0;
		rule->port_hi = 65535;
		return 0;
	}
	if (!number(cut(s, 0, dash), 65535, &lo) || lo == 0)
		return fail(r, s, "expected a port (1 to 65535), a range as 6379-6389, or *");
	hi = lo;
	if (dash < s.len && (!number(cut(s, dash + 1, s.len), 65535, &hi) || hi == 0))
		return fail(r, s, "the range does not end with a port (1 to 65535)");
	if (hi < lo)
		return fail(r, s, "the range ends before it begins");
	rule->port_lo = (uint16_t)lo;
	rule->port_hi = (uint16_t)hi;
	return 0;
}

static void mask_host_bits(struct in6_addr *a, unsigned bits)
{
	unsigned i;

	for (i = 0; i < 16; i++) {
		unsigned keep = bits <= i * 8 ? 0 : vkr_min(bits - i * 8, 8u);

		a->s6_addr[i] &= (uint8_t)(0xff00u >> keep);
	}
}

/* `s` is the address without brackets and prefix length. */
static bool parse_host(struct span s, bool v6, struct vkr_rule *rule)
{
	char text[INET6_ADDRSTRLEN];

	if (s.len >= sizeof(text))
		return false;
	memcpy(text, s.at, s.len);
	text[s.len] = '\0';
	if (v6) {
		rule->family = AF_INET6;
		return inet_pton(AF_INET6, text, &rule->addr) == 1;
	}
	rule->family = AF_INET;
	memcpy(rule->addr.s6_addr, mapped_prefix, sizeof(mapped_prefix));
	return inet_pton(AF_INET, text, rule->addr.s6_addr + 12) == 1;
}

/* ADDR, ADDR/BITS, [V6], [V6]/BITS or *. */
static int parse_address(const struct report *r, struct span s, struct vkr_rule *rule)
{
	bool v6 = s.len && s.at[0] == '[';
	size_t end = v6 ? find(s, ']') : find(s, '/');
	uint64_t max = v6 ? 128 : 32, bits = max;
	size_t rest = v6 ? end + 1 : end;

	if (equals(s, "*"))
		return 0;
	if (v6 && end == s.len)
		return fail(r, s, "the bracket is not closed");
	if (!parse_host(cut(s, v6, end), v6, rule))
		return fail(r, s, v6 ? "not an IPv6 address" : "not an IPv4 address (IPv6 is written in brackets)");
	if (rest < s.len && (s.at[rest] != '/' || !number(cut(s, rest + 1, s.len), max, &bits)))
		return fail(r, s, v6 ? "the prefix length is not 0 to 128" : "the prefix length is not 0 to 32");
	rule->bits = (uint8_t)(v6 ? bits : bits + 96);
	if (v6 && rule->bits >= 96 && memcmp(&rule->addr, mapped_prefix, sizeof(mapped_prefix)) == 0)
		rule->family = AF_INET;
	mask_host_bits(&rule->addr, rule->bits);
	return 0;
}

static int parse_rule(const struct report *r, struct span s, struct vkr_rule *rule)
{
	struct span whole = s;
	size_t colon;
	int rc = 0;

	memset(rule, 0, sizeof(*rule));
	if (s.len >= sizeof(rule->text))
		return fail(r, s, "the rule is too long");
	memcpy(rule->text, s.at, s.len);
	if (s.len && s.at[0] == '!') {
		rule->exclude = true;
		s = trim(cut(s, 1, s.len));
	}
	if (!s.len)
		return fail(r, whole, "the rule is empty");
	/* The last colon: inside an address without brackets there may be more, and the message says so. */
	for (colon = s.len; colon > 0 && s.at[colon - 1] != ':' && s.at[colon - 1] != ']'; colon--)
		;
	if (colon > 0 && s.at[colon - 1] == ']')
		return fail(r, s, "a port is missing after the address (write ADDRESS:PORT)");
	if (colon > 0)
		rc = parse_address(r, cut(s, 0, colon - 1), rule);
	else if (find(s, '.') < s.len || find(s, '/') < s.len)
		return fail(r, s, "a port is missing after the address (write ADDRESS:PORT)");
	return rc ? rc : parse_ports(r, cut(s, colon, s.len), rule);
}

static int parse_rules(const struct report *r, struct vkr_rule *rules, int *n)
{
	struct span rest = span_of(r->value);
	int rc = 0;

	*n = 0;
	if (!trim(rest).len)
		return 0;
	while (rc == 0) {
		size_t comma = find(rest, ',');

		if (*n == VKR_MAX_RULES)
			return fail(r, trim(cut(rest, 0, comma)), "too many rules (64 is the limit)");
		rc = parse_rule(r, trim(cut(rest, 0, comma)), &rules[*n]);
		if (rc == 0)
			++*n;
		if (comma == rest.len)
			break;
		rest = cut(rest, comma + 1, rest.len);
	}
	return rc;
}

static int parse_bytes(const struct report *r, uint32_t *out)
{
	struct span s = trim(span_of(r->value));
	unsigned shift = 0;
	uint64_t v;

	if (s.len && (s.at[s.len - 1] == 'k' || s.at[s.len - 1] == 'K'))
		shift = 10;
	else if (s.len && (s.at[s.len - 1] == 'm' || s.at[s.len - 1] == 'M'))
		shift = 20;
	if (!number(cut(s, 0, s.len - (shift != 0)), 64u << 20, &v) || v << shift < 4096 || v << shift > 64u << 20)
		return fail(r, s, "expected a size of 4k to 64m");
	*out = (uint32_t)(v << shift);
	return 0;
}

static int parse_timeout(const struct report *r, uint32_t *out)
{
	struct span s = trim(span_of(r->value));
	uint64_t v;

	if (!number(s, 60000, &v) || v == 0)
		return fail(r, s, "expected milliseconds, 1 to 60000");
	*out = (uint32_t)v;
	return 0;
}

static int parse_poll(const struct report *r, uint32_t *out)
{
	struct span s = trim(span_of(r->value));
	uint64_t v = 0;

	if (!equals(s, "off") && !number(s, 1000, &v))
		return fail(r, s, "expected microseconds, 0 to 1000, or off");
	*out = (uint32_t)v;
	return 0;
}

static int parse_keepalive(const struct report *r, uint32_t *out)
{
	struct span s = trim(span_of(r->value));
	uint64_t v;

	if (!number(s, 3600, &v))
		return fail(r, s, "expected seconds, 0 to 3600");
	*out = (uint32_t)v;
	return 0;
}

static int parse_features(const struct report *r, uint32_t *out)
{
	static const struct {
		const char *name;
		uint32_t bits;
	} words[] = {{"all", VKR_FEAT_ALL},       {"none", 0},
		     {"fin", VKR_FEAT_FIN},       {"resize", VKR_FEAT_RESIZE},
		     {"credit", VKR_FEAT_CREDIT}, {"keep", VKR_FEAT_KEEP},
		     {"lend", VKR_FEAT_LEND}};
	struct span rest = span_of(r->value);
	size_t comma, i;

	for (*out = 0;; rest = cut(rest, comma + 1, rest.len)) {
		struct span word;

		comma = find(rest, ',');
		word = trim(cut(rest, 0, comma));
		for (i = 0; i < VKR_ARRAY_SIZE(words) && !equals(word, words[i].name); i++)
			;
		if (i == VKR_ARRAY_SIZE(words))
			return fail(r, word, "expected all, none, or some of fin, resize, credit, keep and lend");
		*out |= words[i].bits;
		if (comma == rest.len)
			return 0;
	}
}

/* One of two words. */
static int parse_choice(const struct report *r, const char *no, const char *yes, bool *out)
{
	struct span s = trim(span_of(r->value));
	char why[64];

	*out = equals(s, yes);
	if (*out || equals(s, no))
		return 0;
	snprintf(why, sizeof(why), "expected %s or %s", no, yes);
	return fail(r, s, why);
}

/* LEVEL or LEVEL:FILE */
static int parse_log(const struct report *r, struct vkr_config *cfg)
{
	static const char *const names[] = {"none", "error", "warn", "info", "debug"};
	struct span s = span_of(r->value);
	size_t colon = find(s, ':');
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(names); i++)
		if (equals(trim(cut(s, 0, colon)), names[i]))
			break;
	if (i == VKR_ARRAY_SIZE(names))
		return fail(r, cut(s, 0, colon), "expected none, error, warn, info or debug, then :FILE if wanted");
	if (colon + 1 == s.len)
		return fail(r, s, "no file name after the colon");
	cfg->log_level = (enum vkr_log_level)i;
	cfg->log_file = colon < s.len ? r->value + colon + 1 : NULL;
	return 0;
}

/* An unset variable is NULL, an empty one counts as unset. */
static bool lookup(struct report *r, const char *(*getenv_fn)(const char *name), const char *variable)
{
	r->variable = variable;
	r->value = getenv_fn(variable);
	return r->value && r->value[0];
}

static int parse_all(struct vkr_config *cfg, const char *(*getenv_fn)(const char *name), struct report *r)
{
	int rc = 0;

	if (lookup(r, getenv_fn, "VKRDMA_LOG"))
		rc = parse_log(r, cfg);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_LISTEN"))
		rc = parse_rules(r, cfg->listen, &cfg->n_listen);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_CONNECT"))
		rc = parse_rules(r, cfg->connect, &cfg->n_connect);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_FALLBACK"))
		rc = parse_choice(r, "tcp", "none", &cfg->fallback_none);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_PROVIDER"))
		rc = parse_choice(r, "verbs", "soft", &cfg->provider_soft);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_CONNECT_TIMEOUT"))
		rc = parse_timeout(r, &cfg->connect_timeout_ms);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_KEEPALIVE"))
		rc = parse_keepalive(r, &cfg->keepalive_s);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_RING"))
		rc = parse_bytes(r, &cfg->native_ring);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_EARLY_REFRESH"))
		rc = parse_choice(r, "yes", "no", &cfg->late_refresh);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_POLL"))
		rc = parse_poll(r, &cfg->poll_us);
	if (!rc && lookup(r, getenv_fn, "VKRDMA_FEATURES"))
		rc = parse_features(r, &cfg->features);
	return rc;
}

static void defaults(struct vkr_config *cfg)
{
	memset(cfg, 0, sizeof(*cfg));
	cfg->connect_timeout_ms = DEFAULT_TIMEOUT_MS;
	cfg->keepalive_s = DEFAULT_KEEPALIVE;
	cfg->native_ring = DEFAULT_RING;
	cfg->poll_us = DEFAULT_POLL_US;
	cfg->features = VKR_FEAT_ALL;
	cfg->log_level = VKR_LOG_WARN;
}

int vkr_config_parse(struct vkr_config *cfg, const char *(*getenv_fn)(const char *name), char *err, size_t errlen)
{
	struct report r = {.err = err, .errlen = errlen};
	int rc;

	defaults(cfg);
	rc = parse_all(cfg, getenv_fn, &r);
	if (rc < 0)
		defaults(cfg);
	else
		cfg->active = cfg->n_listen || cfg->n_connect;
	return rc;
}

static const struct vkr_rule *match(const struct vkr_rule *rules, int n, const struct sockaddr *sa)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
	struct in6_addr addr, masked;
	uint8_t family = AF_INET;
	uint16_t port;
	int i;

	if (sa->sa_family == AF_INET) {
		memcpy(addr.s6_addr, mapped_prefix, sizeof(mapped_prefix));
		memcpy(addr.s6_addr + 12, &v4->sin_addr, 4);
		port = ntohs(v4->sin_port);
	} else if (sa->sa_family == AF_INET6) {
		addr = v6->sin6_addr;
		port = ntohs(v6->sin6_port);
		if (!IN6_IS_ADDR_V4MAPPED(&addr))
			family = AF_INET6;
	} else {
		return NULL;
	}
	for (i = 0; i < n; i++) {
		if (port < rules[i].port_lo || port > rules[i].port_hi)
			continue;
		if (rules[i].family != AF_UNSPEC) {
			masked = addr;
			mask_host_bits(&masked, rules[i].bits);
			if (rules[i].family != family || memcmp(&masked, &rules[i].addr, sizeof(masked)) != 0)
				continue;
		}
		return rules[i].exclude ? NULL : &rules[i];
	}
	return NULL;
}

const struct vkr_rule *vkr_config_match_listen(const struct sockaddr *sa)
{
	return match(vkr_config.listen, vkr_config.n_listen, sa);
}

const struct vkr_rule *vkr_config_match_connect(const struct sockaddr *sa)
{
	return match(vkr_config.connect, vkr_config.n_connect, sa);
}

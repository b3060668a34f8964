/* SPDX-License-Identifier: BSD-2-Clause */
/* Sequences as text: one operation a line, `[tN ]NAME ARGUMENT...`. */
#include "diff.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>

const struct diff_call diff_calls[DIFF_KINDS] = {
    [DIFF_PAIR] = {"pair", "ab", false},
    [DIFF_LISTEN] = {"listen", "an", false},
    [DIFF_CONNECT] = {"connect", "abn", false},
    [DIFF_DIAL] = {"dial", "ab", true},
    [DIFF_ACCEPT] = {"accept", "abl", true},
    [DIFF_CLOSE] = {"close", "a", false},
    [DIFF_DUP] = {"dup", "ab", false},
    [DIFF_DUP2] = {"dup2", "ab", false},
    [DIFF_NONBLOCK] = {"nonblock", "an", false},
    [DIFF_SEND] = {"send", "anm", false},
    [DIFF_WRITE] = {"write", "an", false},
    [DIFF_WRITEV] = {"writev", "an", false},
    [DIFF_SENDMSG] = {"sendmsg", "anm", false},
    [DIFF_SENDMMSG] = {"sendmmsg", "anm", false},
    [DIFF_RECV] = {"recv", "anm", true},
    [DIFF_READ] = {"read", "an", true},
    [DIFF_READV] = {"readv", "an", true},
    [DIFF_RECVMSG] = {"recvmsg", "anm", true},
    [DIFF_RECVMMSG] = {"recvmmsg", "anm", true},
    [DIFF_FILL] = {"fill", "a", false},
    [DIFF_BIGSEND] = {"bigsend", "a", true},
    [DIFF_DRAIN] = {"drain", "a", false},
    [DIFF_SHUTDOWN] = {"shutdown", "ah", false},
    [DIFF_ERROR] = {"error", "a", false},
    [DIFF_LINGER] = {"linger", "an", false},
    [DIFF_SETOPT] = {"setopt", "ao", false},
    [DIFF_GETOPT] = {"getopt", "ao", false},
    [DIFF_SOCKNAME] = {"sockname", "a", false},
    [DIFF_PEERNAME] = {"peername", "a", false},
    [DIFF_RELISTEN] = {"relisten", "an", false},
    [DIFF_REBIND] = {"rebind", "a", false},
    [DIFF_RECONNECT] = {"reconnect", "ab", false},
    [DIFF_POLL] = {"poll", "av", false},
    [DIFF_SELECT] = {"select", "a", false},
    [DIFF_WAITPOLL] = {"waitpoll", "abv", true},
    [DIFF_WAITSELECT] = {"waitselect", "ab", true},
    [DIFF_SET] = {"set", "a", false},
    [DIFF_ADD] = {"add", "abv", false},
    [DIFF_MOD] = {"mod", "abv", false},
    [DIFF_DEL] = {"del", "ab", false},
    [DIFF_EPWAIT] = {"epwait", "a", false},
    [DIFF_EPSLEEP] = {"epsleep", "a", true},
};

/* Buffer sizes and what follows from them are left out: docs/semantics.md, "Asking and setting". */
const struct diff_option diff_options[] = {
    {"nodelay", IPPROTO_TCP, TCP_NODELAY, 1},
    {"keepalive", SOL_SOCKET, SO_KEEPALIVE, 1},
    {"keepidle", IPPROTO_TCP, TCP_KEEPIDLE, 77},
    {"reuseaddr", SOL_SOCKET, SO_REUSEADDR, 1},
    {"oobinline", SOL_SOCKET, SO_OOBINLINE, 1},
    {"type", SOL_SOCKET, SO_TYPE, 1},
    {"domain", SOL_SOCKET, SO_DOMAIN, 1},
    {"protocol", SOL_SOCKET, SO_PROTOCOL, 1},
    {"accepting", SOL_SOCKET, SO_ACCEPTCONN, 1},
    {"broadcast", SOL_SOCKET, SO_BROADCAST, 1},
    {"priority", SOL_SOCKET, SO_PRIORITY, 5},
    {"usertimeout", IPPROTO_TCP, TCP_USER_TIMEOUT, 12345},
    {"syncnt", IPPROTO_TCP, TCP_SYNCNT, 4},
    {"tos", IPPROTO_IP, IP_TOS, 8},
    {"unknown", SOL_SOCKET, 9999, 1},
    {"tcp-unknown", IPPROTO_TCP, 9999, 1},
};
const int diff_option_count = DIFF_ARRAY_SIZE(diff_options);

struct flag {
	const char *name;
	uint32_t bit;
};

static const struct flag msg_flags[] = {
    {"dontwait", MSG_DONTWAIT}, {"peek", MSG_PEEK}, {"waitall", MSG_WAITALL},       {"trunc", MSG_TRUNC},
    {"nosignal", MSG_NOSIGNAL}, {"more", MSG_MORE}, {"waitforone", MSG_WAITFORONE},
};
static const struct flag event_flags[] = {
    {"IN", EPOLLIN},           {"PRI", EPOLLPRI},       {"OUT", EPOLLOUT},
    {"ERR", EPOLLERR},         {"HUP", EPOLLHUP},       {"RDHUP", EPOLLRDHUP},
    {"RDNORM", EPOLLRDNORM},   {"WRNORM", EPOLLWRNORM}, {"EXCLUSIVE", EPOLLEXCLUSIVE},
    {"ONESHOT", EPOLLONESHOT}, {"ET", EPOLLET},         {"NVAL", 0x20},
};
static const struct flag accept_flags[] = {{"nonblock", SOCK_NONBLOCK}, {"cloexec", SOCK_CLOEXEC}};

static int flags_print(const struct flag *table, size_t entries, uint32_t value, char *buf, size_t size)
{
	int n = 0;

	for (size_t i = 0; i < entries; i++) {
		if (!(value & table[i].bit))
			continue;
		n += snprintf(buf + n, size - (size_t)n, "%s%s", n ? "," : "", table[i].name);
		value &= ~table[i].bit;
	}
	if (value || !n)
		n += snprintf(buf + n, size - (size_t)n, n ? ",%#x" : value ? "%#x" : "-", value);
	return n;
}

static bool flags_parse(const struct flag *table, size_t entries, char *text, uint32_t *value)
{
	char *save = NULL;
	size_t i;

	*value = 0;
	if (!strcmp(text, "-"))
		return true;
	for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
		for (i = 0; i < entries && strcmp(word, table[i].name); i++)
			;
		if (i == entries)
			return false;
		*value |= table[i].bit;
	}
	return true;
}

int diff_events_print(uint32_t events, char *buf, size_t size)
{
	return flags_print(event_flags, DIFF_ARRAY_SIZE(event_flags), events, buf, size);
}

void diff_slot_name(unsigned slot, char name[4])
{
	snprintf(name, 4, "%c%u", slot < DIFF_SOCKETS ? 's' : 'e',
		 (slot < DIFF_SOCKETS ? slot : slot - DIFF_SOCKETS) % 10);
}

static bool slot_parse(const char *text, uint8_t *slot)
{
	unsigned n;

	if ((text[0] != 's' && text[0] != 'e') || sscanf(text + 1, "%u", &n) != 1)
		return false;
	if (text[0] == 'e')
		n += DIFF_SOCKETS;
	*slot = (uint8_t)n;
	return n < (text[0] == 's' ? DIFF_SOCKETS : DIFF_SLOTS);
}

int diff_op_print(const struct diff_op *op, char *buf, size_t size)
{
	const struct diff_call *c = &diff_calls[op->kind];
	char text[160], slot[4];
	int n;

	n = op->thread ? snprintf(buf, size, "t%u %s", op->thread, c->name) : snprintf(buf, size, "%s", c->name);
	for (const char *p = c->args; *p; p++) {
		switch (*p) {
		case 'a':
		case 'b':
			diff_slot_name(*p == 'a' ? op->a : op->b, slot);
			strcpy(text, slot);
			break;
		case 'n':
		case 'h':
			snprintf(text, sizeof(text), "%d", op->n);
			break;
		case 'o':
			snprintf(text, sizeof(text), "%s", diff_options[op->n].name);
			break;
		case 'm':
			flags_print(msg_flags, DIFF_ARRAY_SIZE(msg_flags), op->flags, text, sizeof(text));
			break;
		case 'v':
			diff_events_print(op->flags, text, sizeof(text));
			break;
		default:
			flags_print(accept_flags, DIFF_ARRAY_SIZE(accept_flags), op->flags, text, sizeof(text));
		}
		n += snprintf(buf + n, size - (size_t)n, " %s", text);
	}
	return n;
}

static bool option_parse(const char *text, int32_t *n)
{
	for (int i = 0; i < diff_option_count; i++) {
		if (!strcmp(text, diff_options[i].name)) {
			*n = i;
			return true;
		}
	}
	return false;
}

static bool argument_parse(char kind, char *word, struct diff_op *op)
{
	char *end;

	switch (kind) {
	case 'a':
		return slot_parse(word, &op->a);
	case 'b':
		return slot_parse(word, &op->b);
	case 'n':
	case 'h':
		op->n = (int32_t)strtol(word, &end, 0);
		return end != word && !*end;
	case 'o':
		return option_parse(word, &op->n);
	case 'm':
		return flags_parse(msg_flags, DIFF_ARRAY_SIZE(msg_flags), word, &op->flags);
	case 'v':
		return flags_parse(event_flags, DIFF_ARRAY_SIZE(event_flags), word, &op->flags);
	default:
		return flags_parse(accept_flags, DIFF_ARRAY_SIZE(accept_flags), word, &op->flags);
	}
}

bool diff_op_parse(const char *line, struct diff_op *op)
{
	char copy[256], *save = NULL, *word;
	unsigned kind;

	memset(op, 0, sizeof(*op));
	snprintf(copy, sizeof(copy), "%s", line);
	word = strtok_r(copy, " \t\n", &save);
	if (word && word[0] == 't' && word[1] >= '1' && word[1] <= '0' + DIFF_THREADS && !word[2]) {
		op->thread = (uint8_t)(word[1] - '0');
		word = strtok_r(NULL, " \t\n", &save);
	}
	for (kind = 0; word && kind < DIFF_KINDS && strcmp(word, diff_calls[kind].name); kind++)
		;
	if (!word || kind == DIFF_KINDS)
		return false;
	op->kind = (uint8_t)kind;
	for (const char *p = diff_calls[kind].args; *p; p++) {
		word = strtok_r(NULL, " \t\n", &save);
		if (!word || !argument_parse(*p, word, op))
			return false;
	}
	return !strtok_r(NULL, " \t\n", &save);
}

bool diff_script_read(FILE *f, struct diff_script *s)
{
	char line[256];

	memset(s, 0, sizeof(*s));
	while (fgets(line, sizeof(line), f)) {
		if (!strcmp(line, "run\n"))
			return true;
		line[strcspn(line, "#\n")] = 0;
		if (!line[0])
			continue;
		if (s->n == DIFF_MAX_OPS || !diff_op_parse(line, &s->op[s->n])) {
			fprintf(stderr, "not an operation: %s\n", line);
			return false;
		}
		s->n++;
	}
	return s->n > 0;
}

void diff_script_print(FILE *f, const struct diff_script *s)
{
	char text[256];

	for (int i = 0; i < s->n; i++) {
		diff_op_print(&s->op[i], text, sizeof(text));
		fprintf(f, "%s\n", text);
	}
}

/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A hostile peer on raw verbs, against a shimmed program at the other end.
 *
 *   hostile client HOST PORT CASE[:ARG[:ARG]]     connects to a shimmed server
 *   hostile server HOST PORT CASE[:ARG[:ARG]]     serves one connection of a shimmed client
 *   hostile list                                  names of the cases
 *
 * Prints "listening" (server), "begins" and "ends" around the attack, then one line "outcome: dead STATUS | alive |
 * refused STATUS | silent": what became of the connection within a few seconds of the attack; then leaves without a
 * word of goodbye. Exit 0; 2 where the attack could not be set up. What is right is decided by the driver,
 * test_hostile.py.
 */
#include "rawpeer.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SETTLE_MS 1500

static struct rawpeer p = {.polite = true};
static bool is_server;
static const char *arg[2];
static uint8_t private_data[196];
static uint8_t private_len;

static uint64_t num(int i, uint64_t none)
{
	return arg[i] ? strtoull(arg[i], NULL, 0) : none;
}

/* One request that both ends' programs understand: the server's side sends a reply. */
static bool chat(unsigned n)
{
	static const char ask[] = "*1\r\n$4\r\nPING\r\n", reply[] = "+PONG\r\n";
	const char *text = is_server ? reply : ask;
	uint64_t before = p.bytes_in;
	unsigned i;

	for (i = 0; i < n; i++)
		if (!rp_data(&p, text, (uint32_t)strlen(text)))
			return false;
	return is_server || rp_wait_bytes(&p, before + 7ull * n, 5000);
}

/* Makes the shimmed server write `len` bytes to us; a server of ours waits for what the client says by itself. */
static void provoke(const char *len)
{
	char cmd[160];
	int n;

	if (is_server)
		return;
	n = snprintf(cmd, sizeof(cmd), "SETRANGE hostile:%s %s x\r\nGET hostile:%s\r\n", len, len, len);
	rp_data(&p, cmd, (uint32_t)n);
}

/* ------------------------------------------------------------------ private data */

static void put32(unsigned at, uint32_t v)
{
	v = htonl(v);
	memcpy(private_data + at, &v, 4);
}

/* A header as shim/wire.h describes it, with a ring that is not ours unless the case puts it right. */
static void hello(uint32_t features, uint32_t length, uint64_t addr, uint32_t rkey)
{
	private_len = 40;
	put32(0, 0x564b5231);
	private_data[4] = 1;
	private_data[5] = 40;
	private_data[6] = 0;
	private_data[7] = 128;
	put32(8, features);
	put32(12, length);
	put32(16, (uint32_t)(addr >> 32));
	put32(20, (uint32_t)addr);
	put32(24, rkey);
	put32(28, 1 << 20);
}

/* The other way to be a shim: a real ring and a credit word, which are known once the memory is registered. */
static bool with_credits;
static uint32_t shim_features = 7;
static uint64_t word_addr;
static uint32_t word_rkey;

static void pd_credits(void)
{
	with_credits = true;
	p.polite = false; /* rings are not registered anew */
	private_len = 56;
}

/* And to be one whose queue pairs outlive their connections. */
static void pd_keep(void)
{
	pd_credits();
	shim_features = 15;
}

/* And to be one that has rings on loan. */
static void pd_lend(void)
{
	pd_credits();
	shim_features = 7 | 16;
}

static void pd_credits_fill(void)
{
	uint64_t word = (uintptr_t)p.ring + RP_RING - 8;

	hello(shim_features, 32768, (uintptr_t)p.ring, p.ring_mr->rkey);
	private_len = 56;
	private_data[4] = 2;
	private_data[5] = 56;
	put32(40, (uint32_t)(word >> 32));
	put32(44, (uint32_t)word);
	put32(48, p.ring_mr->rkey);
}

static uint32_t get32(unsigned at)
{
	uint32_t v;

	memcpy(&v, p.hello + at, 4);
	return ntohl(v);
}

/* Where we may write, from the other side's header. False: it has no credits to give. */
static bool credits_taken(void)
{
	if (get32(0) != 0x564b5231 || p.hello[5] < 56 || !(get32(8) & 4))
		return false;
	p.length = get32(12);
	p.addr = (uint64_t)get32(16) << 32 | get32(20);
	p.rkey = get32(24);
	word_addr = (uint64_t)get32(40) << 32 | get32(44);
	word_rkey = get32(48);
	return true;
}

static void pd_garbage(void)
{
	unsigned i;

	private_len = (uint8_t)num(0, 40);
	for (i = 0; i < private_len; i++)
		private_data[i] = (uint8_t)(i * 37 + 11);
}

static void pd_short_magic(void)
{
	hello(0, 0, 0, 0);
	private_len = (uint8_t)num(0, 4);
	memset(private_data + private_len, 0, sizeof(private_data) - private_len);
}

/* arg 0: which byte to spoil, arg 1: with what. */
static void pd_spoilt(void)
{
	hello(3, 32768, 0x10000, 1);
	private_data[num(0, 4)] = (uint8_t)num(1, 0xff);
}

static void pd_ring(void)
{
	hello(3, (uint32_t)num(0, 0xffffffff), num(1, 0x1000), 12345);
}

/* ------------------------------------------------------------------ attacks once connected */

static void do_chat(void)
{
	chat((unsigned)num(0, 1));
}

static void do_opcode(void)
{
	rp_message(&p, (uint16_t)num(0, 4), 0, 0, 0);
}

static void do_size(void)
{
	static uint8_t m[4096];

	m[1] = 2; /* a keepalive, but for its size */
	rp_send(&p, m, (uint32_t)num(0, 31));
}

static void do_register(void)
{
	const char *what = arg[0] ? arg[0] : "length0";
	uint64_t addr = (uintptr_t)p.ring;
	uint32_t len = RP_RING, key = p.ring_mr->rkey;
	unsigned i;

	if (!strcmp(what, "length0"))
		len = 0;
	else if (!strcmp(what, "huge"))
		len = 0xffffffff;
	else if (!strcmp(what, "long"))
		len = 16 * RP_RING;
	else if (!strcmp(what, "wrap"))
		addr = UINT64_MAX - 15;
	else if (!strcmp(what, "null"))
		addr = 0;
	else if (!strcmp(what, "elsewhere"))
		addr += 64ull << 20;
	else if (!strcmp(what, "key"))
		key ^= 0x5a5a5a;
	else if (!strcmp(what, "tiny"))
		len = 1;
	else if (!strcmp(what, "notwritable"))
		addr = (uintptr_t)p.tx, key = p.tx_mr->rkey;
	rp_message(&p, 3, addr, len, key);
	provoke("4194304");
	/* Only that answer finds out; soft-RoCE answers nothing to a write past a region's end, and the writer gives up
	 * after its retries: 10 s and more. */
	for (i = 0; i < 400 && !p.dead && strcmp(what, "tiny"); i++)
		rp_pump(&p, 100);
}

/* New places for the other side's data while it is writing; some cease to exist, unless arg 1 says otherwise. */
static void do_rekey(void)
{
	struct ibv_mr *mr[8];
	uint8_t *mem[8];
	unsigned i, k, n = (unsigned)num(0, 300);

	p.polite = false;
	for (i = 0; i < 8; i++) {
		mem[i] = aligned_alloc(4096, 65536);
		mr[i] =
		    mem[i] ? ibv_reg_mr(p.pd, mem[i], 65536, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
		if (!mr[i])
			exit(2);
	}
	for (i = 0; i < n && !p.dead; i++) {
		k = i % 8;
		provoke("65536");
		rp_message(&p, 3, (uintptr_t)mem[k], 4096u << (i % 5), mr[k]->rkey);
		if (!num(1, 0) && i % 16 == 15 && !ibv_dereg_mr(mr[k]))
			mr[k] = ibv_reg_mr(p.pd, mem[k], 65536, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		rp_pump(&p, 0);
	}
}

static void do_imm(void)
{
	const char *what = arg[0] ? arg[0] : "0";
	uint32_t imm = !strcmp(what, "end") ? p.length - p.offset + 1 : (uint32_t)strtoul(what, NULL, 0);

	rp_post(&p, IBV_WR_RDMA_WRITE_WITH_IMM, p.addr + p.offset, p.rkey, 0, (uint32_t)num(1, 0), imm);
}

/* The whole ring twice without waiting for leave. */
static void do_overrun(void)
{
	uint32_t i, piece = p.length < 65536 ? p.length : 65536;
	uint64_t addr = p.addr;
	uint32_t len = p.length, key = p.rkey;

	memset(p.tx, '\n', piece);
	for (i = 0; i < 2 * (len / piece) + 1; i++)
		rp_post(&p, IBV_WR_RDMA_WRITE_WITH_IMM, addr + (uint64_t)i % (len / piece) * piece, key, 0, piece,
			piece);
}

static void do_write(void)
{
	const char *what = arg[0] ? arg[0] : "past";
	uint64_t addr = p.addr;
	uint32_t key = p.rkey, len = 64;

	if (!strcmp(what, "past"))
		addr += p.length;
	else if (!strcmp(what, "straddle"))
		addr += p.length - 32;
	else if (!strcmp(what, "before"))
		addr -= 4096;
	else if (!strcmp(what, "null"))
		addr = 0;
	else if (!strcmp(what, "key"))
		key ^= 0x10001;
	rp_post(&p, num(1, 0) ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_WRITE_WITH_IMM, addr, key, 0, len, len);
}

static void do_read(void)
{
	rp_post(&p, IBV_WR_RDMA_READ, p.addr, p.rkey, 0, 64, 0);
}

static void do_atomic(void)
{
	rp_post(&p, IBV_WR_ATOMIC_FETCH_AND_ADD, p.addr & ~7ull, p.rkey, 0, 8, 0);
}

static void do_send_imm(void)
{
	memset(p.tx, 0, 32);
	rp_post(&p, IBV_WR_SEND_WITH_IMM, 0, 0, 0, (uint32_t)num(0, 32), 0xffffffff);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* arg 0: what, arg 1: for how many milliseconds. */
static void do_flood(void)
{
	const char *what = arg[0] ? arg[0] : "keepalive";
	int64_t until = now_ms() + (int64_t)num(1, 2000);
	uint64_t n = 0;
	bool ok = true;

	for (; ok && now_ms() < until; n++) {
		if (!strcmp(what, "keepalive"))
			ok = rp_message(&p, 2, 0, 0, 0);
		else if (!strcmp(what, "get"))
			ok = rp_message(&p, 0, 0, 0, 0);
		else if (!strcmp(what, "set"))
			ok = rp_message(&p, 1, 0, 0, 0);
		else if (!strcmp(what, "register"))
			ok = rp_register(&p);
		else if (!strcmp(what, "zero"))
			ok = rp_post(&p, IBV_WR_RDMA_WRITE, p.addr, p.rkey, 0, 0, 0);
		else if (!strcmp(what, "zeroimm"))
			ok = rp_post(&p, IBV_WR_RDMA_WRITE_WITH_IMM, p.addr, p.rkey, 0, 0, 0);
		else if (!strcmp(what, "byte"))
			ok = rp_data(&p, "\n", 1);
		else
			exit(2);
	}
	printf("flood: %llu\n", (unsigned long long)n);
}

static void do_fin(void)
{
	unsigned i;

	for (i = 0; i < num(0, 1); i++)
		rp_message(&p, 0x5600, 0, 0, 0);
	chat(num(1, 0) ? 1 : 0);
}

static void do_reset(void)
{
	rp_message(&p, 0x5601, 0, 0, 0);
	chat(1);
}

static void typed(uint32_t imm)
{
	rp_post(&p, IBV_WR_RDMA_WRITE_WITH_IMM, p.addr, p.rkey, 0, 0, imm);
}

/* An immediate of a type between shims; arg 0: the immediate, arg 1: how often. */
static void do_typed(void)
{
	unsigned i, n = (unsigned)num(1, 1);

	for (i = 0; i < n && !p.dead; i++)
		typed((uint32_t)num(0, 0));
}

/* The end of a connection, and what a connector may and may not do then. arg 0: open it again, twice, wrong (it counts
 * otherwise), data (without opening it), early (before the end). */
static void do_keep(void)
{
	const char *what = arg[0] ? arg[0] : "open";
	uint32_t sent = p.offset;

	if (strcmp(what, "early")) {
		typed(0x50000000 | sent);
		rp_pump(&p, 300); /* the acceptor has told its end, and keeps */
	}
	if (!strcmp(what, "data")) {
		chat(1);
		return;
	}
	typed(0x80000000 | (sent + (strcmp(what, "wrong") ? 0 : 1)));
	if (!strcmp(what, "twice"))
		typed(0x80000000 | sent);
	sent = (uint32_t)p.bytes_in;
	chat(1);
	rp_pump(&p, 300);
	if (!p.dead && (uint32_t)p.bytes_in == sent)
		exit(2); /* it is a connection if somebody answers */
}

/* Rings on loan. arg 0: unasked (lends one; arg 1: how often), return (of what was not borrowed), much (asks; arg 1:
 * how often), wrong (asks at another place), declined (asks, and returns it unused), twice (returns it twice). */
static void do_lend(void)
{
	const char *what = arg[0] ? arg[0] : "unasked";
	uint32_t sent = p.offset;
	unsigned i, n = (unsigned)num(1, 1);

	if (!strcmp(what, "unasked")) {
		for (i = 0; i < n && !p.dead; i++)
			rp_message(&p, 0x5603, (uintptr_t)p.ring, 65536, p.ring_mr->rkey);
	} else if (strcmp(what, "return")) {
		for (i = 0; i < n && !p.dead; i++)
			typed(0x90000000 | (sent + !strcmp(what, "wrong")));
		rp_pump(&p, 300);
	}
	if (strcmp(what, "much") && strcmp(what, "wrong") && strcmp(what, "unasked"))
		typed(0xa0000000 | sent);
	if (!strcmp(what, "twice"))
		typed(0xa0000000 | sent);
	chat(1);
}

/* Credit that was not earned. arg 0: bytes, arg 1: messages. The word is looked at when there is no room left. */
static void do_credit(void)
{
	uint32_t word[2] = {htonl((uint32_t)num(0, 0)), htonl((uint32_t)num(1, 0))};

	memcpy(p.tx, word, sizeof(word));
	rp_post(&p, IBV_WR_RDMA_WRITE, word_addr, word_rkey, 0, sizeof(word), 0);
	rp_post(&p, IBV_WR_RDMA_WRITE_WITH_IMM, word_addr, word_rkey, 0, sizeof(word), 0x10000000);
}

/* More than the word, or beside it. */
static void do_credit_write(void)
{
	rp_post(&p, IBV_WR_RDMA_WRITE, word_addr + num(0, 0), word_rkey, 0, (uint32_t)num(1, 8), 0);
}

/* New rings. arg 0: length, arg 1: how many. */
static void do_offer(void)
{
	unsigned i, n = (unsigned)num(1, 1);

	for (i = 0; i < n && !p.dead; i++)
		rp_message(&p, 0x5602, (uintptr_t)p.ring, (uint32_t)num(0, 65536), p.ring_mr->rkey);
}

static void do_disconnect(void)
{
	rdma_disconnect(p.id);
}

/* Half a request, half a reply, and never another word. */
static void do_half(void)
{
	static const char half[] = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$100000\r\nabc", reply[] = "$100000\r\nabc";

	rp_data(&p, is_server ? reply : half, (uint32_t)strlen(is_server ? reply : half));
}

static void do_nothing(void)
{
}

/* Asks for far more than it takes. */
static void do_greedy(void)
{
	unsigned i;

	p.polite = false;
	for (i = 0; i < 16 && !p.dead; i++)
		provoke("1048576"); /* more of it would keep the server busy over TCP too */
}

/* SIGKILL in mid flight. */
static void do_die(void)
{
	unsigned i;

	provoke("8388608");
	for (i = 0; i < 100 && !p.dead; i++)
		chat(i % 10);
	raise(SIGKILL);
}

/* ------------------------------------------------------------------ the table */

struct attack {
	const char *name;
	void (*before)(void); /* fills private data */
	void (*run)(void);    /* NULL: silence, not even a RegisterXferMemory */
	bool no_receives;
	bool raw; /* run at ESTABLISHED, before anything was exchanged */
};

static const struct attack attacks[] = {
    {.name = "chat", .run = do_chat},
    {.name = "pd-garbage", .before = pd_garbage, .run = do_chat},
    {.name = "pd-short-magic", .before = pd_short_magic, .run = do_chat},
    {.name = "pd-spoilt", .before = pd_spoilt, .run = do_nothing},
    {.name = "pd-ring", .before = pd_ring, .run = do_nothing},
    {.name = "credit-chat", .before = pd_credits, .run = do_chat},
    {.name = "credit-register", .before = pd_credits, .run = do_register},
    {.name = "credit-fin", .before = pd_credits, .run = do_fin},
    {.name = "credit-overrun", .before = pd_credits, .run = do_overrun},
    {.name = "typed", .before = pd_credits, .run = do_typed},
    {.name = "keep", .before = pd_keep, .run = do_keep},
    {.name = "keep-typed", .before = pd_keep, .run = do_typed},
    {.name = "lend", .before = pd_lend, .run = do_lend},
    {.name = "credit", .before = pd_credits, .run = do_credit},
    {.name = "credit-write", .before = pd_credits, .run = do_credit_write},
    {.name = "offer", .before = pd_credits, .run = do_offer},
    {.name = "opcode", .run = do_opcode},
    {.name = "size", .run = do_size},
    {.name = "early-opcode", .run = do_opcode, .raw = true},
    {.name = "early-size", .run = do_size, .raw = true},
    {.name = "register", .run = do_register},
    {.name = "rekey", .run = do_rekey},
    {.name = "imm", .run = do_imm},
    {.name = "overrun", .run = do_overrun},
    {.name = "write", .run = do_write},
    {.name = "read", .run = do_read},
    {.name = "atomic", .run = do_atomic},
    {.name = "send-imm", .run = do_send_imm},
    {.name = "flood", .run = do_flood},
    {.name = "early-flood", .run = do_flood, .raw = true},
    {.name = "fin", .run = do_fin},
    {.name = "reset", .run = do_reset},
    {.name = "disconnect", .run = do_disconnect},
    {.name = "early-disconnect", .run = do_disconnect, .raw = true},
    {.name = "half", .run = do_half},
    {.name = "silence"},
    {.name = "no-receives", .run = do_nothing, .no_receives = true, .raw = true},
    {.name = "greedy", .run = do_greedy},
    {.name = "die-busy", .run = do_die},
    {.name = "die", .run = do_chat},
    {.name = "reject", .run = do_nothing},
    {.name = "ignore", .run = do_nothing},
};

static const char *die_at;

static void step(const char *name)
{
	if (die_at && !strcmp(name, die_at))
		raise(SIGKILL);
	if (with_credits && !strcmp(name, "qp"))
		pd_credits_fill();
}

static void outcome(void)
{
	if (p.refused)
		printf("outcome: refused %d\n", p.refused_status);
	else if (p.dead)
		printf("outcome: dead %d\n", (int)p.why);
	else
		printf("outcome: %s\n", p.established ? "alive" : "silent");
	fflush(stdout);
}

/* The driver measures between the two. */
static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

static void attack_run(const struct attack *a)
{
	if (!p.established || p.dead || !a->run)
		return;
	if (a->raw) {
		say("begins");
		a->run();
		say("ends");
		return;
	}
	if (with_credits) {
		if (!credits_taken())
			exit(2);
	} else {
		rp_register(&p);
		rp_step("registered");
		if (!rp_wait(&p, &p.registers, 1, 5000))
			return;
	}
	rp_step("exchanged");
	say("begins");
	a->run();
	say("ends");
}

static void serve(const struct attack *a, const char *host, const char *port)
{
	rp_listen(&p, host, port);
	printf("listening\n");
	fflush(stdout);
	rp_request_wait(&p);
	if (!strcmp(a->name, "reject")) {
		rdma_reject(p.id, NULL, 0);
		return;
	}
	if (strcmp(a->name, "ignore"))
		rp_accept(&p, private_len ? private_data : NULL, private_len, 5000);
}

int main(int argc, char **argv)
{
	const struct attack *a = NULL;
	char *name, *save = NULL;
	unsigned i;

	for (i = 0; argc == 2 && i < sizeof(attacks) / sizeof(attacks[0]); i++)
		puts(attacks[i].name);
	if (argc != 5)
		return argc == 2 ? 0 : 2;
	is_server = !strcmp(argv[1], "server");
	name = strtok_r(argv[4], ":", &save);
	arg[0] = strtok_r(NULL, ":", &save);
	arg[1] = strtok_r(NULL, ":", &save);
	for (i = 0; name && i < sizeof(attacks) / sizeof(attacks[0]); i++)
		if (!strcmp(attacks[i].name, name))
			a = &attacks[i];
	if (!a)
		return 2;
	if (!strcmp(a->name, "die"))
		die_at = arg[0];
	rp_step = step;
	p.no_receives = a->no_receives;
	if (a->before)
		a->before();
	if (is_server)
		serve(a, argv[2], argv[3]);
	else
		rp_connect(&p, argv[2], argv[3], private_len ? private_data : NULL, private_len, 5000);
	attack_run(a);
	if (is_server && !strcmp(a->name, "chat")) {
		say("outcome: alive");
	}
	rp_pump(&p, SETTLE_MS);
	outcome();
	_exit(0);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Golden bytes of every message and of the hello, and everything that a peer may get wrong. */
#include "unit.h"

#include "wire.h"

#include <arpa/inet.h>
#include <string.h>

#define MIB (1u << 20)

static void golden(const struct vkr_message *m, const uint8_t want[VKR_WIRE_SIZE])
{
	uint8_t got[VKR_WIRE_SIZE];
	struct vkr_message back;

	memset(got, 0xa5, sizeof(got));
	vkr_wire_encode(m, got);
	assert_memory_equal(got, want, sizeof(got));
	assert_int_equal(vkr_wire_decode(want, VKR_WIRE_SIZE, UINT32_MAX, &back), 0);
	assert_memory_equal(&back, m, sizeof(back));
}

static void get_server_feature(void **state)
{
	static const uint8_t want[32] = {[2] = 0x12, [3] = 0x34, [24] = 1, 2, 3, 4, 5, 6, 7, 8};
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_GET_SERVER_FEATURE;
	m.select = 0x1234;
	m.features = 0x0102030405060708;
	golden(&m, want);
}

static void set_client_feature(void **state)
{
	static const uint8_t want[32] = {0, 1, 0, 7, [24] = 0x80, [31] = 0x01};
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_SET_CLIENT_FEATURE;
	m.select = 7;
	m.features = 0x8000000000000001;
	golden(&m, want);
}

static void keepalive_fin_reset(void **state)
{
	static const struct {
		uint16_t opcode;
		uint8_t bytes[32];
	} t[] = {
	    {VKR_OP_KEEPALIVE, {0x00, 0x02}},
	    {VKR_OP_FIN, {0x56, 0x00}},
	    {VKR_OP_RESET, {0x56, 0x01}},
	};
	struct vkr_message m;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(t); i++) {
		memset(&m, 0, sizeof(m));
		m.opcode = t[i].opcode;
		golden(&m, t[i].bytes);
	}
}

static void register_xfer_memory(void **state)
{
	static const uint8_t want[32] = {0,    3,    [16] = 0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70,
					 0x00, 0x00, 0x10,        0x00, 0x00, 0xde, 0xad, 0xbe, 0xef};
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_REGISTER_XFER_MEMORY;
	m.address = 0x00007f1234567000;
	m.length = MIB;
	m.rkey = 0xdeadbeef;
	golden(&m, want);
}

static void offer(void **state)
{
	static const uint8_t want[32] = {0x56, 0x02, [16] = 0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70,
					 0x00, 0x00, 0x02,        0x00, 0x00, 0x01, 0x02, 0x03, 0x04};
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_OFFER;
	m.address = 0x00007f1234567000;
	m.length = 128 << 10;
	m.rkey = 0x01020304;
	golden(&m, want);
}

static void lend(void **state)
{
	static const uint8_t want[32] = {0x56, 0x03, [16] = 0x00, 0x00, 0x7f, 0x12, 0x34, 0x56, 0x70,
					 0x00, 0x00, 0x80,        0x00, 0x00, 0x01, 0x02, 0x03, 0x04};
	struct vkr_message m;

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_LEND;
	m.address = 0x00007f1234567000;
	m.length = 8 << 20;
	m.rkey = 0x01020304;
	golden(&m, want);
}

static void unused_fields_stay_zero(void **state)
{
	static const uint8_t keepalive[32] = {0, 2};
	struct vkr_message m;
	uint8_t got[VKR_WIRE_SIZE];

	memset(&m, 0xff, sizeof(m));
	m.opcode = VKR_OP_KEEPALIVE;
	vkr_wire_encode(&m, got);
	assert_memory_equal(got, keepalive, sizeof(got));
}

static void wrong_sizes(void **state)
{
	uint8_t in[64] = {0, 2};
	struct vkr_message m;
	size_t size;

	for (size = 0; size < sizeof(in); size++)
		assert_int_equal(vkr_wire_decode(in, size, MIB, &m), size == VKR_WIRE_SIZE ? 0 : -EBADMSG);
}

static void every_opcode(void **state)
{
	uint8_t in[VKR_WIRE_SIZE];
	struct vkr_message m;
	unsigned op;

	for (op = 0; op <= UINT16_MAX; op++) {
		bool known = op <= VKR_OP_REGISTER_XFER_MEMORY || (op >= VKR_OP_FIN && op <= VKR_OP_LEND);

		memset(in, 0, sizeof(in));
		in[0] = (uint8_t)(op >> 8);
		in[1] = (uint8_t)op;
		in[27] = 1; /* a length, for the one that needs it */
		assert_int_equal(vkr_wire_decode(in, sizeof(in), MIB, &m), known ? 0 : -EPROTO);
	}
}

static int ring(uint16_t opcode, uint64_t address, uint32_t length)
{
	struct vkr_message m, back;
	uint8_t in[VKR_WIRE_SIZE];

	memset(&m, 0, sizeof(m));
	m.opcode = opcode;
	m.address = address;
	m.length = length;
	vkr_wire_encode(&m, in);
	return vkr_wire_decode(in, sizeof(in), MIB, &back);
}

static int memory(uint64_t address, uint32_t length)
{
	int ret = ring(VKR_OP_REGISTER_XFER_MEMORY, address, length);

	assert_int_equal(ring(VKR_OP_OFFER, address, length), ret);
	assert_int_equal(ring(VKR_OP_LEND, address, length), ret);
	return ret;
}

static void memory_ranges(void **state)
{
	assert_int_equal(memory(4096, 0), -ERANGE);
	assert_int_equal(memory(4096, 1), 0);
	assert_int_equal(memory(4096, MIB), 0);
	assert_int_equal(memory(4096, MIB + 1), -ERANGE);
	assert_int_equal(memory(4096, UINT32_MAX), -ERANGE);
	assert_int_equal(memory(UINT64_MAX - 4095, 4096), 0);
	assert_int_equal(memory(UINT64_MAX - 4095, 4097), -ERANGE);
	assert_int_equal(memory(UINT64_MAX, 1), 0);
	assert_int_equal(memory(UINT64_MAX, 2), -ERANGE);
}

static void immediates(void **state)
{
	uint32_t n = 77;

	assert_int_equal(vkr_wire_immediate(htonl(0), 100, &n), -ERANGE);
	assert_int_equal(vkr_wire_immediate(htonl(101), 100, &n), -ERANGE);
	assert_int_equal(vkr_wire_immediate(htonl(UINT32_MAX), UINT32_MAX - 1, &n), -ERANGE);
	assert_int_equal(vkr_wire_immediate(htonl(1), 0, &n), -ERANGE);
	assert_int_equal(n, 77);
	assert_int_equal(vkr_wire_immediate(htonl(1), 100, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(vkr_wire_immediate(htonl(100), 100, &n), 0);
	assert_int_equal(n, 100);
}

/* Each kind with its bytes on the wire. */
static void typed_immediates(void **state)
{
	static const struct {
		enum vkr_imm type;
		uint32_t value;
		uint8_t bytes[4];
	} t[] = {
	    {VKR_IMM_DATA, 4096, {0x00, 0x00, 0x10, 0x00}},
	    {VKR_IMM_DATA, VKR_IMM_VALUE, {0x0f, 0xff, 0xff, 0xff}},
	    {VKR_IMM_CREDIT, 0, {0x10, 0x00, 0x00, 0x00}},
	    {VKR_IMM_WAKE_BYTES, 0x01234567, {0x21, 0x23, 0x45, 0x67}},
	    {VKR_IMM_WAKE_MESSAGES, 1, {0x30, 0x00, 0x00, 0x01}},
	    {VKR_IMM_SWITCH, 0x0abcdef0, {0x4a, 0xbc, 0xde, 0xf0}},
	    {VKR_IMM_FIN, 0, {0x50, 0x00, 0x00, 0x00}},
	    {VKR_IMM_RESET, 0, {0x60, 0x00, 0x00, 0x00}},
	    {VKR_IMM_KEEP, 0x00345678, {0x70, 0x34, 0x56, 0x78}},
	    {VKR_IMM_OPEN, 0x0fffffff, {0x8f, 0xff, 0xff, 0xff}},
	    {VKR_IMM_MUCH, 0x0800000, {0x90, 0x80, 0x00, 0x00}},
	    {VKR_IMM_RETURN, 0x0fffffff, {0xaf, 0xff, 0xff, 0xff}},
	};
	enum vkr_imm type;
	uint32_t imm, value;
	size_t i;

	for (i = 0; i < VKR_ARRAY_SIZE(t); i++) {
		imm = vkr_wire_imm_encode(t[i].type, t[i].value);
		assert_memory_equal(&imm, t[i].bytes, 4);
		assert_int_equal(vkr_wire_imm_decode(imm, &type, &value), 0);
		assert_int_equal(type, t[i].type);
		assert_int_equal(value, t[i].value);
	}
	/* A count is told modulo 2^28. */
	imm = vkr_wire_imm_encode(VKR_IMM_SWITCH, 0xfabcdef0);
	assert_memory_equal(&imm, t[5].bytes, 4);
}

static void typed_immediates_that_are_wrong(void **state)
{
	enum vkr_imm type = VKR_IMM_FIN;
	uint32_t i, value = 77;

	for (i = VKR_IMM_RETURN + 1; i < 16; i++)
		assert_int_equal(vkr_wire_imm_decode(htonl(i << 28), &type, &value), -EPROTO);
	assert_int_equal(vkr_wire_imm_decode(htonl(0), &type, &value), -ERANGE);
	assert_int_equal(vkr_wire_imm_decode(htonl(0x10000001), &type, &value), -ERANGE);
	assert_int_equal(vkr_wire_imm_decode(htonl(0x60000001), &type, &value), -ERANGE);
	assert_int_equal(type, VKR_IMM_FIN);
	assert_int_equal(value, 77);
}

static void distances(void **state)
{
	assert_int_equal(vkr_wire_imm_distance(5, 5), 0);
	assert_int_equal(vkr_wire_imm_distance(6, 5), 1);
	assert_int_equal(vkr_wire_imm_distance(5, 6), -1);
	assert_int_equal(vkr_wire_imm_distance(0xf0000003, 0x0ffffffe), 5);
	assert_int_equal(vkr_wire_imm_distance(0xfffffffe, 3), -5);
	assert_int_equal(vkr_wire_imm_distance(0x07ffffff, 0), 0x07ffffff);
	assert_int_equal(vkr_wire_imm_distance(0x08000000, 0), -0x08000000);
}

static void credit_word(void **state)
{
	static const uint8_t want[8] = {0x01, 0x02, 0x03, 0x04, 0xa0, 0xb0, 0xc0, 0xd0};
	const struct vkr_credit c = {.bytes = 0x01020304, .messages = 0xa0b0c0d0};
	uint64_t word = vkr_wire_credit_encode(&c);
	struct vkr_credit got = {.bytes = 0x01020000, .messages = 0xa0b00000};

	assert_memory_equal(&word, want, sizeof(want));
	assert_int_equal(vkr_wire_credit_accept(word, &c, &got), 0);
	assert_memory_equal(&got, &c, sizeof(c));
}

/* Accepted between what was credited before and what was sent, across the wrap as well. */
static int credit(uint32_t had, uint32_t sent, uint32_t now, bool messages)
{
	struct vkr_credit before = {.bytes = messages ? 7 : had, .messages = messages ? had : 7}, keep = before;
	struct vkr_credit upto = {.bytes = messages ? 7 : sent, .messages = messages ? sent : 7};
	struct vkr_credit says = {.bytes = messages ? 7 : now, .messages = messages ? now : 7};
	int ret = vkr_wire_credit_accept(vkr_wire_credit_encode(&says), &upto, &before);

	assert_memory_equal(&before, ret ? &keep : &says, sizeof(before));
	return ret;
}

static void credit_is_never_more_than_was_sent(void **state)
{
	int m;

	for (m = 0; m < 2; m++) {
		assert_int_equal(credit(100, 300, 100, m), 0);
		assert_int_equal(credit(100, 300, 200, m), 0);
		assert_int_equal(credit(100, 300, 300, m), 0);
		assert_int_equal(credit(100, 300, 301, m), -ERANGE);
		assert_int_equal(credit(100, 300, 99, m), -ERANGE);
		assert_int_equal(credit(100, 300, 0, m), -ERANGE);
		assert_int_equal(credit(100, 300, UINT32_MAX, m), -ERANGE);
		assert_int_equal(credit(100, 100, 100, m), 0);
		assert_int_equal(credit(100, 100, 101, m), -ERANGE);
		assert_int_equal(credit(UINT32_MAX - 5, 10, UINT32_MAX, m), 0);
		assert_int_equal(credit(UINT32_MAX - 5, 10, 10, m), 0);
		assert_int_equal(credit(UINT32_MAX - 5, 10, 11, m), -ERANGE);
		assert_int_equal(credit(UINT32_MAX - 5, 10, UINT32_MAX - 6, m), -ERANGE);
	}
}

static const struct vkr_hello hello = {
    .version = 1,
    .receives = 0x0102,
    .features = VKR_FEAT_FIN | VKR_FEAT_RESIZE,
    .ring_length = 0x8000,
    .ring_rkey = 0xcafef00d,
    .ring_max = MIB,
    .ring_address = 0x00007fabcdef0000,
};

static const uint8_t hello_bytes[VKR_HELLO_V1_SIZE] = {
    'V',  'K',  'R',  '1',  1,    40,   0x01, 0x02, /* magic, version, header, receives */
    0,    0,    0,    3,    0,    0,    0x80, 0x00, /* features, ring length */
    0x00, 0x00, 0x7f, 0xab, 0xcd, 0xef, 0x00, 0x00, /* ring address */
    0xca, 0xfe, 0xf0, 0x0d, 0x00, 0x10, 0x00, 0x00, /* rkey, largest ring */
};

static void hello_golden(void **state)
{
	uint8_t got[VKR_HELLO_SIZE], padded[196] = {0};
	struct vkr_hello back;
	size_t size;

	memset(got, 0xa5, sizeof(got));
	assert_int_equal(vkr_wire_hello_encode(&hello, got), VKR_HELLO_V1_SIZE);
	assert_memory_equal(got, hello_bytes, VKR_HELLO_V1_SIZE);
	memcpy(padded, hello_bytes, sizeof(hello_bytes));
	for (size = VKR_HELLO_V1_SIZE; size <= sizeof(padded); size++) {
		memset(&back, 0, sizeof(back));
		assert_int_equal(vkr_wire_hello_decode(padded, size, &back), 0);
		assert_int_equal(back.version, hello.version);
		assert_int_equal(back.receives, hello.receives);
		assert_int_equal(back.features, hello.features);
		assert_int_equal(back.ring_length, hello.ring_length);
		assert_int_equal(back.ring_rkey, hello.ring_rkey);
		assert_int_equal(back.ring_max, hello.ring_max);
		assert_true(back.ring_address == hello.ring_address);
	}
}

static const uint8_t hello2_bytes[VKR_HELLO_SIZE] = {
    'V',  'K',  'R',  '1',  2,    56,   0x01, 0x02, /* magic, version, header, receives */
    0,    0,    0,    31,   0,    0,    0x80, 0x00, /* features, ring length */
    0x00, 0x00, 0x7f, 0xab, 0xcd, 0xef, 0x00, 0x00, /* ring address */
    0xca, 0xfe, 0xf0, 0x0d, 0x00, 0x10, 0x00, 0x00, /* rkey, largest ring */
    0,    0,    0,    0,    0,    0,    0,    0,    /* reserved */
    0x00, 0x00, 0x7f, 0x11, 0x22, 0x33, 0x44, 0x58, /* credit word */
    0x12, 0x34, 0x56, 0x78, 0,    0,    0,    0,    /* its rkey, reserved */
};

static void hello_with_credits(void **state)
{
	uint8_t got[VKR_HELLO_SIZE], bad[196] = {0};
	struct vkr_hello h = hello, back;

	h.version = 2;
	h.features = VKR_FEAT_ALL;
	h.credit_address = 0x00007f1122334458;
	h.credit_rkey = 0x12345678;
	memset(got, 0xa5, sizeof(got));
	assert_int_equal(vkr_wire_hello_encode(&h, got), VKR_HELLO_SIZE);
	assert_memory_equal(got, hello2_bytes, sizeof(got));
	assert_int_equal(vkr_wire_hello_decode(hello2_bytes, VKR_HELLO_SIZE, &back), 0);
	assert_int_equal(back.features, VKR_FEAT_ALL);
	assert_true(back.credit_address == h.credit_address);
	assert_int_equal(back.credit_rkey, h.credit_rkey);
	/* The feature without its word: too short a header, no address, not aligned. */
	memcpy(bad, hello2_bytes, sizeof(hello2_bytes));
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), 0);
	bad[5] = 55;
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), -EPROTO);
	bad[5] = 40;
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), -EPROTO);
	bad[5] = 56;
	assert_int_equal(vkr_wire_hello_decode(bad, 55, &back), -EPROTO);
	bad[47] = 0x59;
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), -EPROTO);
	memset(bad + 40, 0, 8);
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), -EPROTO);
	/* Without the feature nobody looks there. */
	bad[11] = 3;
	assert_int_equal(vkr_wire_hello_decode(bad, sizeof(bad), &back), 0);
	assert_true(back.credit_address == 0);
}

static void features_in_common(void **state)
{
	uint32_t a, b;

	for (a = 0; a < 64; a++) {
		for (b = 0; b < 64; b++) {
			uint32_t f = vkr_wire_features(a, b);

			assert_int_equal(f, vkr_wire_features(b, a));
			assert_int_equal(f & ~(a & b & VKR_FEAT_ALL), 0);
			assert_int_equal(f & 3, a & b & 3);
			assert_int_equal((f & VKR_FEAT_CREDIT) != 0, (a & b & 7) == 7);
			assert_int_equal((f & VKR_FEAT_KEEP) != 0, (a & b & 15) == 15);
			assert_int_equal((f & VKR_FEAT_LEND) != 0, (a & b & 23) == 23);
		}
	}
}

static void hello_natives(void **state)
{
	uint8_t zeros[196] = {0}, other[56] = {'R', 'K', 'E', 'Y'};
	struct vkr_hello h;

	assert_int_equal(vkr_wire_hello_decode(NULL, 0, &h), -ENOMSG);
	assert_int_equal(vkr_wire_hello_decode(zeros, 0, &h), -ENOMSG);
	assert_int_equal(vkr_wire_hello_decode(zeros, 56, &h), -ENOMSG);
	assert_int_equal(vkr_wire_hello_decode(zeros, 196, &h), -ENOMSG);
	assert_int_equal(vkr_wire_hello_decode(other, 56, &h), -ENOMSG);
	assert_int_equal(vkr_wire_hello_decode(hello_bytes, 3, &h), -ENOMSG);
}

/* One field of a good hello changed. */
static int hello_with(size_t at, const void *bytes, size_t n, size_t size)
{
	uint8_t in[56] = {0};
	struct vkr_hello h;

	memcpy(in, hello_bytes, sizeof(hello_bytes));
	memcpy(in + at, bytes, n);
	return vkr_wire_hello_decode(in, size, &h);
}

static void hello_errors(void **state)
{
	static const uint8_t later[] = {2}, v0[] = {0}, h39[] = {39}, h41[] = {41}, h57[] = {57}, zero[8] = {0};
	static const uint8_t beyond[] = {0x00, 0x10, 0x00, 0x01}, top[8] = {255, 255, 255, 255, 255, 255, 128, 0};
	static const uint8_t top1[8] = {255, 255, 255, 255, 255, 255, 128, 1};

	assert_int_equal(hello_with(0, "VKR2", 4, 56), -ENOMSG);
	assert_int_equal(hello_with(4, later, 1, 56), 0);
	assert_int_equal(hello_with(4, v0, 1, 56), -EPROTO);
	assert_int_equal(hello_with(5, h39, 1, 56), -EPROTO);
	assert_int_equal(hello_with(5, h41, 1, 56), 0);
	assert_int_equal(hello_with(5, h41, 1, 40), -EPROTO);
	assert_int_equal(hello_with(5, h57, 1, 56), -EPROTO);
	assert_int_equal(hello_with(6, zero, 2, 56), -EPROTO);
	assert_int_equal(hello_with(12, zero, 4, 56), -EPROTO);
	assert_int_equal(hello_with(12, beyond, 4, 56), -EPROTO);
	assert_int_equal(hello_with(16, top, 8, 56), 0);
	assert_int_equal(hello_with(16, top1, 8, 56), -EPROTO);
	assert_int_equal(hello_with(4, later, 0, 39), -EPROTO);
}

static void refusals(void **state)
{
	static const uint8_t golden_bytes[VKR_REFUSAL_SIZE] = {0x56, 0x4b, 0x52, 0x30, 'n', 'o'};
	uint8_t data[148]; /* as a reject is padded */
	char why[VKR_REFUSAL_SIZE], longest[200];

	memset(data, 0, sizeof(data));
	vkr_wire_refusal_encode("no", data);
	assert_memory_equal(data, golden_bytes, sizeof(golden_bytes));
	assert_true(vkr_wire_refusal_decode(data, sizeof(data), why, sizeof(why)));
	assert_string_equal(why, "no");
	assert_true(vkr_wire_refusal_decode(data, sizeof(data), why, 2));
	assert_string_equal(why, "n");
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	memset(data, 0xee, sizeof(data));
	vkr_wire_refusal_encode(longest, data);
	assert_true(vkr_wire_refusal_decode(data, sizeof(data), why, sizeof(why)));
	assert_int_equal(strlen(why), VKR_REFUSAL_SIZE - 4);
	data[5] = 27;
	assert_true(vkr_wire_refusal_decode(data, 7, why, sizeof(why)));
	assert_string_equal(why, "x?x");
	/* Natives, who send none, or anything. */
	assert_false(vkr_wire_refusal_decode(data, 3, why, sizeof(why)));
	assert_false(vkr_wire_refusal_decode(data, 4, why, sizeof(why)));
	assert_false(vkr_wire_refusal_decode(NULL, 0, why, sizeof(why)));
	assert_false(vkr_wire_refusal_decode(data, sizeof(data), why, 0));
	data[0] = 0;
	assert_false(vkr_wire_refusal_decode(data, sizeof(data), why, sizeof(why)));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
	    cmocka_unit_test(get_server_feature),
	    cmocka_unit_test(set_client_feature),
	    cmocka_unit_test(keepalive_fin_reset),
	    cmocka_unit_test(register_xfer_memory),
	    cmocka_unit_test(offer),
	    cmocka_unit_test(lend),
	    cmocka_unit_test(unused_fields_stay_zero),
	    cmocka_unit_test(wrong_sizes),
	    cmocka_unit_test(every_opcode),
	    cmocka_unit_test(memory_ranges),
	    cmocka_unit_test(immediates),
	    cmocka_unit_test(refusals),
	    cmocka_unit_test(typed_immediates),
	    cmocka_unit_test(typed_immediates_that_are_wrong),
	    cmocka_unit_test(distances),
	    cmocka_unit_test(credit_word),
	    cmocka_unit_test(credit_is_never_more_than_was_sent),
	    cmocka_unit_test(hello_golden),
	    cmocka_unit_test(hello_with_credits),
	    cmocka_unit_test(features_in_common),
	    cmocka_unit_test(hello_natives),
	    cmocka_unit_test(hello_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

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
		bool known = op <= VKR_OP_REGISTER_XFER_MEMORY || op == VKR_OP_FIN || op == VKR_OP_RESET;

		memset(in, 0, sizeof(in));
		in[0] = (uint8_t)(op >> 8);
		in[1] = (uint8_t)op;
		in[27] = 1; /* a length, for the one that needs it */
		assert_int_equal(vkr_wire_decode(in, sizeof(in), MIB, &m), known ? 0 : -EPROTO);
	}
}

static int memory(uint64_t address, uint32_t length)
{
	struct vkr_message m, back;
	uint8_t in[VKR_WIRE_SIZE];

	memset(&m, 0, sizeof(m));
	m.opcode = VKR_OP_REGISTER_XFER_MEMORY;
	m.address = address;
	m.length = length;
	vkr_wire_encode(&m, in);
	return vkr_wire_decode(in, sizeof(in), MIB, &back);
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

static const struct vkr_hello hello = {
    .version = 1,
    .receives = 0x0102,
    .features = VKR_FEAT_FIN | VKR_FEAT_RESIZE,
    .ring_length = 0x8000,
    .ring_rkey = 0xcafef00d,
    .ring_max = MIB,
    .ring_address = 0x00007fabcdef0000,
};

static const uint8_t hello_bytes[VKR_HELLO_SIZE] = {
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
	vkr_wire_hello_encode(&hello, got);
	assert_memory_equal(got, hello_bytes, sizeof(got));
	memcpy(padded, hello_bytes, sizeof(hello_bytes));
	for (size = VKR_HELLO_SIZE; size <= sizeof(padded); size++) {
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
	    cmocka_unit_test(unused_fields_stay_zero),
	    cmocka_unit_test(wrong_sizes),
	    cmocka_unit_test(every_opcode),
	    cmocka_unit_test(memory_ranges),
	    cmocka_unit_test(immediates),
	    cmocka_unit_test(refusals),
	    cmocka_unit_test(hello_golden),
	    cmocka_unit_test(hello_natives),
	    cmocka_unit_test(hello_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

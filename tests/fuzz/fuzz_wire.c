/* SPDX-License-Identifier: BSD-2-Clause */
/* Messages, immediates and the private data of a connection: the first byte chooses, the next four are a bound. */
#include "fuzz.h"

#include "wire.h"

#include <arpa/inet.h>
#include <string.h>

static void check_message(const uint8_t *data, size_t size, uint32_t max)
{
	struct vkr_message m, again;
	uint8_t bytes[VKR_WIRE_SIZE];
	int rc;

	memset(&m, 0, sizeof(m));
	rc = vkr_wire_decode(data, size, max, &m);
	FUZZ_CHECK(rc == 0 || rc == -EBADMSG || rc == -EPROTO || rc == -ERANGE);
	FUZZ_CHECK((rc == -EBADMSG) == (size != VKR_WIRE_SIZE));
	if (rc)
		return;
	if (m.opcode == VKR_OP_REGISTER_XFER_MEMORY || m.opcode == VKR_OP_OFFER || m.opcode == VKR_OP_LEND) {
		FUZZ_CHECK(m.length > 0 && m.length <= max);
		FUZZ_CHECK(m.address <= UINT64_MAX - m.length + 1 || m.address + (m.length - 1) >= m.address);
	}
	vkr_wire_encode(&m, bytes);
	memset(&again, 0, sizeof(again));
	FUZZ_CHECK(vkr_wire_decode(bytes, sizeof(bytes), max, &again) == 0);
	FUZZ_CHECK(again.opcode == m.opcode && again.select == m.select && again.features == m.features);
	FUZZ_CHECK(again.address == m.address && again.length == m.length && again.rkey == m.rkey);
}

static void check_hello(const uint8_t *data, size_t size)
{
	struct vkr_hello h, again;
	uint8_t bytes[VKR_HELLO_SIZE];
	int rc;

	memset(&h, 0, sizeof(h));
	rc = vkr_wire_hello_decode(data, size, &h);
	FUZZ_CHECK(rc == 0 || rc == -ENOMSG || rc == -EPROTO);
	FUZZ_CHECK(rc != 0 || size >= VKR_HELLO_V1_SIZE);
	if (rc)
		return;
	FUZZ_CHECK(!(h.features & VKR_FEAT_CREDIT) == !h.credit_address && h.credit_address % VKR_CREDIT_SIZE == 0);
	memset(&again, 0, sizeof(again));
	size = vkr_wire_hello_encode(&h, bytes);
	FUZZ_CHECK(size == VKR_HELLO_V1_SIZE || size == VKR_HELLO_SIZE);
	FUZZ_CHECK(vkr_wire_hello_decode(bytes, size, &again) == 0);
	FUZZ_CHECK(again.credit_address == h.credit_address && again.credit_rkey == h.credit_rkey);
	FUZZ_CHECK(again.receives == h.receives && again.features == h.features);
	FUZZ_CHECK(again.ring_length == h.ring_length && again.ring_rkey == h.ring_rkey);
	FUZZ_CHECK(again.ring_max == h.ring_max && again.ring_address == h.ring_address);
}

static void check_immediate(const uint8_t *data, size_t size, uint32_t room)
{
	uint32_t imm, bytes = 0;
	int rc;

	if (size < 4)
		return;
	memcpy(&imm, data, 4);
	rc = vkr_wire_immediate(imm, room, &bytes);
	if (rc == 0)
		FUZZ_CHECK(bytes == ntohl(imm) && bytes > 0 && bytes <= room);
	else
		FUZZ_CHECK(rc == -ERANGE && (ntohl(imm) == 0 || ntohl(imm) > room));
}

static void check_refusal(const uint8_t *data, size_t size, uint32_t bound)
{
	char why[VKR_REFUSAL_SIZE + 1];
	size_t room = bound % sizeof(why), i;

	memset(why, '#', sizeof(why));
	if (!vkr_wire_refusal_decode(data, size, why, room))
		return;
	FUZZ_CHECK(memchr(why, 0, room) && why[0] && why[room] == '#');
	for (i = 0; why[i]; i++)
		FUZZ_CHECK(why[i] >= ' ' && why[i] < 0x7f);
}

static void check_typed(const uint8_t *data, size_t size)
{
	enum vkr_imm type = VKR_IMM_DATA;
	uint32_t imm, value = 0;
	int rc;

	if (size < 4)
		return;
	memcpy(&imm, data, 4);
	rc = vkr_wire_imm_decode(imm, &type, &value);
	FUZZ_CHECK(rc == 0 || rc == -EPROTO || rc == -ERANGE);
	FUZZ_CHECK((rc == -EPROTO) == (ntohl(imm) >> 28 > VKR_IMM_RETURN));
	if (rc)
		return;
	FUZZ_CHECK(value <= VKR_IMM_VALUE && (type != VKR_IMM_DATA || value));
	FUZZ_CHECK(vkr_wire_imm_encode(type, value) == imm);
}

/* Whatever the word says, the writer never has more room than a ring, nor takes any back. */
static void check_credit(const uint8_t *data, size_t size)
{
	struct vkr_credit c, sent, before;
	uint64_t word;

	if (size < 24)
		return;
	memcpy(&word, data, 8);
	memcpy(&sent, data + 8, 8);
	memcpy(&c, data + 16, 8);
	before = c;
	if (vkr_wire_credit_accept(word, &sent, &c)) {
		FUZZ_CHECK(c.bytes == before.bytes && c.messages == before.messages);
		return;
	}
	FUZZ_CHECK(sent.bytes - c.bytes <= sent.bytes - before.bytes);
	FUZZ_CHECK(sent.messages - c.messages <= sent.messages - before.messages);
	FUZZ_CHECK(vkr_wire_credit_encode(&c) == word);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint32_t bound;

	if (size < 5)
		return 0;
	memcpy(&bound, data + 1, 4);
	switch (data[0] % 6) {
	case 0:
		check_message(data + 5, size - 5, bound);
		break;
	case 1:
		check_hello(data + 5, size - 5);
		break;
	case 2:
		check_immediate(data + 5, size - 5, bound);
		break;
	case 3:
		check_refusal(data + 5, size - 5, bound);
		break;
	case 4:
		check_typed(data + 5, size - 5);
		break;
	default:
		check_credit(data + 5, size - 5);
	}
	return 0;
}

static size_t seed_head(uint8_t *out, uint8_t what, uint32_t bound)
{
	out[0] = what;
	memcpy(out + 1, &bound, 4);
	return 5;
}

static size_t seed_hello(uint8_t *out, uint32_t features, unsigned total)
{
	const struct vkr_hello h = {.version = VKR_HELLO_VERSION,
				    .receives = 128,
				    .features = features,
				    .credit_address = 0x7f0000001ff8,
				    .credit_rkey = 0x4321,
				    .ring_length = 32768,
				    .ring_rkey = 0x1234,
				    .ring_max = 1 << 20,
				    .ring_address = 0x7f0000000000};
	size_t n = seed_head(out, 1, 0);

	memset(out + n, 0, total);
	vkr_wire_hello_encode(&h, out + n);
	return n + total;
}

/* A word within what was sent, and what had been credited before. */
static size_t seed_credit(uint8_t *out)
{
	const struct vkr_credit c = {.bytes = 5000, .messages = 60}, sent = {.bytes = 32768, .messages = 90};
	uint64_t word = vkr_wire_credit_encode(&c);
	size_t n = seed_head(out, 5, 0);

	memcpy(out + n, &word, 8);
	memcpy(out + n + 8, &sent, 8);
	memset(out + n + 16, 0, 8);
	return n + 24;
}

size_t fuzz_seed(unsigned n, uint8_t *out)
{
	static const struct vkr_message messages[] = {
	    {.opcode = VKR_OP_GET_SERVER_FEATURE, .select = 7},
	    {.opcode = VKR_OP_SET_CLIENT_FEATURE, .features = UINT64_MAX},
	    {.opcode = VKR_OP_KEEPALIVE},
	    {.opcode = VKR_OP_REGISTER_XFER_MEMORY, .address = 0x7f1234567000, .length = 1 << 20, .rkey = 0x99},
	    {.opcode = VKR_OP_REGISTER_XFER_MEMORY, .address = UINT64_MAX - 4095, .length = 4096, .rkey = 1},
	    {.opcode = VKR_OP_FIN},
	    {.opcode = VKR_OP_RESET},
	    {.opcode = VKR_OP_LEND, .address = 0x7f1234567000, .length = 8 << 20, .rkey = 0x78},
	    {.opcode = VKR_OP_OFFER, .address = 0x7f1234567000, .length = 128 << 10, .rkey = 0x77},
	};
	const uint32_t imm = htonl(4096), fin = vkr_wire_imm_encode(VKR_IMM_FIN, 12345);
	size_t head;

	if (n < VKR_ARRAY_SIZE(messages)) {
		head = seed_head(out, 0, 1 << 20);
		vkr_wire_encode(&messages[n], out + head);
		return head + VKR_WIRE_SIZE;
	}
	switch (n - VKR_ARRAY_SIZE(messages)) {
	case 0:
		return seed_hello(out, VKR_FEAT_ALL, 56); /* as in a CONNECT request */
	case 1:
		return seed_hello(out, VKR_FEAT_FIN | VKR_FEAT_RESIZE, 196); /* as the reply pads it */
	case 2:
		head = seed_head(out, 2, 4096);
		memcpy(out + head, &imm, sizeof(imm));
		return head + sizeof(imm);
	case 3:
		head = seed_head(out, 3, 60);
		vkr_wire_refusal_encode("no queue pair is left", out + head);
		return head + VKR_REFUSAL_SIZE;
	case 4:
		head = seed_head(out, 4, 0);
		memcpy(out + head, &fin, sizeof(fin));
		return head + sizeof(fin);
	case 5:
		return seed_credit(out);
	default:
		return 0;
	}
}

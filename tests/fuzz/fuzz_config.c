/* SPDX-License-Identifier: BSD-2-Clause */
/* The first byte chooses the variable, the rest is its value. */
#include "fuzz.h"

#include "config.h"
#include "wire.h"

#include <arpa/inet.h>
#include <string.h>

static const char *const variables[] = {
    "VKRDMA_LISTEN",          "VKRDMA_CONNECT", "VKRDMA_FALLBACK",  "VKRDMA_LOG",           "VKRDMA_PROVIDER",
    "VKRDMA_CONNECT_TIMEOUT", "VKRDMA_RING",    "VKRDMA_KEEPALIVE", "VKRDMA_EARLY_REFRESH", "VKRDMA_FEATURES"};

static const char *set_name, *set_value;

static const char *one_variable(const char *name)
{
	return strcmp(name, set_name) == 0 ? set_value : NULL;
}

/* A rule's own text, parsed alone, is the same rule; and it matches a listener at its own address. */
static void check_rule(const struct vkr_rule *rule)
{
	static struct vkr_config again;
	struct sockaddr_in6 sa = {.sin6_family = AF_INET6, .sin6_port = htons(rule->port_hi), .sin6_addr = rule->addr};
	const struct vkr_rule *match;
	char err[256];

	FUZZ_CHECK(memchr(rule->text, '\0', sizeof(rule->text)));
	FUZZ_CHECK(rule->port_lo <= rule->port_hi && rule->bits <= 128);
	FUZZ_CHECK(rule->port_lo > 0 || rule->port_hi == 65535);
	set_name = "VKRDMA_LISTEN";
	set_value = rule->text;
	FUZZ_CHECK(vkr_config_parse(&again, one_variable, err, sizeof(err)) == 0);
	FUZZ_CHECK(again.n_listen == 1 && memcmp(&again.listen[0], rule, sizeof(*rule)) == 0);

	vkr_config = again;
	match = vkr_config_match_listen((const struct sockaddr *)&sa);
	FUZZ_CHECK(rule->exclude ? match == NULL : match == &vkr_config.listen[0]);
	FUZZ_CHECK(vkr_config_match_connect((const struct sockaddr *)&sa) == NULL);
}

static void check_error(const char *err, const char *variable)
{
	FUZZ_CHECK(strncmp(err, variable, strlen(variable)) == 0);
	for (; *err; err++)
		FUZZ_CHECK((unsigned char)*err >= ' ' && *err != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct vkr_config cfg;
	char *value, err[256] = "";
	int rc, i;

	if (size == 0)
		return 0;
	value = malloc(size);
	FUZZ_CHECK(value);
	memcpy(value, data + 1, size - 1);
	value[size - 1] = '\0';
	set_name = variables[data[0] % VKR_ARRAY_SIZE(variables)];
	set_value = value;
	rc = vkr_config_parse(&cfg, one_variable, err, sizeof(err));
	FUZZ_CHECK(rc == 0 || rc == -EINVAL);
	FUZZ_CHECK(cfg.n_listen >= 0 && cfg.n_listen <= VKR_MAX_RULES);
	FUZZ_CHECK(cfg.n_connect >= 0 && cfg.n_connect <= VKR_MAX_RULES);
	FUZZ_CHECK(cfg.active == (cfg.n_listen + cfg.n_connect > 0));
	FUZZ_CHECK(cfg.connect_timeout_ms >= 1 && cfg.connect_timeout_ms <= 60000);
	FUZZ_CHECK(cfg.native_ring >= 4096 && cfg.native_ring <= 64 << 20);
	FUZZ_CHECK(cfg.features <= VKR_FEAT_ALL);
	if (rc < 0) {
		check_error(err, set_name);
		FUZZ_CHECK(!cfg.active);
	}
	for (i = 0; i < cfg.n_listen; i++)
		check_rule(&cfg.listen[i]);
	for (i = 0; i < cfg.n_connect; i++)
		check_rule(&cfg.connect[i]);
	free(value);
	return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *out)
{
	static const char *const seeds[] = {
	    "\0006379",
	    "\0016379,16379,7000-7005,*",
	    "\001!10.0.0.0/8:6379, 10.0.0.0/8:*",
	    "\000[fd00::]/8:6379,![::1]:1-65535,*:5",
	    "\001[::ffff:10.0.0.0]/104:5,0.0.0.0/0:1,[::]/0:*",
	    "\000[::ffff:0.0.0.0]/95:5,[::ffff:1.2.3.4]:5",
	    "\002none",
	    "\002tcp",
	    "\003debug:/tmp/x",
	    "\003none",
	    "\011fin, resize,credit",
	    "\004soft",
	    "\0052000",
	    "\006256k",
	    "\00664m",
	    "\00018446744073709551617",
	    "\000\"quoted\" \033[2J",
	};
	size_t size;

	if (n == VKR_ARRAY_SIZE(seeds)) { /* as many rules as fit, and one more */
		for (size = 1, out[0] = 0; size < 2 * VKR_MAX_RULES + 3; size += 2)
			memcpy(out + size, "1,", 2);
		return size - 1;
	}
	if (n > VKR_ARRAY_SIZE(seeds))
		return 0;
	size = 1 + strlen(seeds[n] + 1);
	memcpy(out, seeds[n], size);
	return size;
}

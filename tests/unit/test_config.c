/* SPDX-License-Identifier: BSD-2-Clause */
/* The grammar of the environment: what is accepted, what is refused and with which words, and what matches. */
#include "unit.h"

#include "config.h"
#include "wire.h"
#include "log.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *env_name[16], *env_value[16];
static int env_n;

static const char *fake_env(const char *name)
{
	int i;

	for (i = 0; i < env_n; i++)
		if (strcmp(env_name[i], name) == 0)
			return env_value[i];
	return NULL;
}

static void env_clear(void)
{
	env_n = 0;
}

static void env_set(const char *name, const char *value)
{
	env_name[env_n] = name;
	env_value[env_n++] = value;
}

static int parse_one(const char *name, const char *value, struct vkr_config *cfg, char err[256])
{
	env_clear();
	env_set(name, value);
	memset(cfg, 0x5a, sizeof(*cfg));
	strcpy(err, "");
	return vkr_config_parse(cfg, fake_env, err, 256);
}

static const struct vkr_rule *matching(bool listener, const char *ip, int port)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
	const struct sockaddr *sa = (const struct sockaddr *)&v4;

	if (inet_pton(AF_INET, ip, &v4.sin_addr) != 1) {
		assert_int_equal(inet_pton(AF_INET6, ip, &v6.sin6_addr), 1);
		sa = (const struct sockaddr *)&v6;
	}
	return listener ? vkr_config_match_listen(sa) : vkr_config_match_connect(sa);
}

static void test_defaults(void **state)
{
	struct vkr_config cfg;
	char err[256] = "";

	env_clear();
	assert_int_equal(vkr_config_parse(&cfg, fake_env, err, sizeof(err)), 0);
	assert_false(cfg.active);
	assert_false(cfg.fallback_none);
	assert_false(cfg.provider_soft);
	assert_int_equal(cfg.connect_timeout_ms, 2000);
	assert_int_equal(cfg.keepalive_s, 3);
	assert_int_equal(cfg.native_ring, 262144);
	assert_int_equal(cfg.features, VKR_FEAT_ALL);
	assert_int_equal(cfg.n_listen, 0);
	assert_int_equal(cfg.n_connect, 0);
	assert_int_equal(cfg.log_level, VKR_LOG_WARN);
	assert_null(cfg.log_file);
}

static void test_good_rules(void **state)
{
	static const struct {
		const char *value;
		int n, lo, hi, bits;
		int family;
		bool exclude;
		const char *text;
	} cases[] = {
	    {"6379", 1, 6379, 6379, 0, AF_UNSPEC, false, "6379"},
	    {"1", 1, 1, 1, 0, AF_UNSPEC, false, "1"},
	    {"65535", 1, 65535, 65535, 0, AF_UNSPEC, false, "65535"},
	    {"06379", 1, 6379, 6379, 0, AF_UNSPEC, false, "06379"},
	    {"6379,16379", 2, 6379, 6379, 0, AF_UNSPEC, false, "6379"},
	    {" 6379 ,\t16379 ", 2, 6379, 6379, 0, AF_UNSPEC, false, "6379"},
	    {"6379-6389", 1, 6379, 6389, 0, AF_UNSPEC, false, "6379-6389"},
	    {"7-7", 1, 7, 7, 0, AF_UNSPEC, false, "7-7"},
	    {"*", 1, 0, 65535, 0, AF_UNSPEC, false, "*"},
	    {"*:6379", 1, 6379, 6379, 0, AF_UNSPEC, false, "*:6379"},
	    {"*:*", 1, 0, 65535, 0, AF_UNSPEC, false, "*:*"},
	    {"!22", 1, 22, 22, 0, AF_UNSPEC, true, "!22"},
	    {"! 22", 1, 22, 22, 0, AF_UNSPEC, true, "! 22"},
	    {"10.0.0.0/8:6379", 1, 6379, 6379, 104, AF_INET, false, "10.0.0.0/8:6379"},
	    {"10.1.2.3:*", 1, 0, 65535, 128, AF_INET, false, "10.1.2.3:*"},
	    {"0.0.0.0/0:1-9", 1, 1, 9, 96, AF_INET, false, "0.0.0.0/0:1-9"},
	    {"[fd00::]/8:6379", 1, 6379, 6379, 8, AF_INET6, false, "[fd00::]/8:6379"},
	    {"[::1]:6379", 1, 6379, 6379, 128, AF_INET6, false, "[::1]:6379"},
	    {"[::]/0:*", 1, 0, 65535, 0, AF_INET6, false, "[::]/0:*"},
	    {"[::ffff:10.0.0.0]/104:5", 1, 5, 5, 104, AF_INET, false, "[::ffff:10.0.0.0]/104:5"},
	    {"![ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]/128:65534-65535", 1, 65534, 65535, 128, AF_INET6, true,
	     "![ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255]/128:65534-65535"},
	};
	static const char *const variables[] = {"VKRDMA_LISTEN", "VKRDMA_CONNECT"};
	struct vkr_config cfg;
	char err[256];
	size_t i, v;

	for (v = 0; v < VKR_ARRAY_SIZE(variables); v++) {
		for (i = 0; i < VKR_ARRAY_SIZE(cases); i++) {
			const struct vkr_rule *rule = v ? cfg.connect : cfg.listen;
			int rc = parse_one(variables[v], cases[i].value, &cfg, err);

			if (rc)
				fail_msg("\"%s\" was refused: %s", cases[i].value, err);
			assert_true(cfg.active);
			assert_int_equal(v ? cfg.n_connect : cfg.n_listen, cases[i].n);
			assert_int_equal(v ? cfg.n_listen : cfg.n_connect, 0);
			assert_int_equal(rule->port_lo, cases[i].lo);
			assert_int_equal(rule->port_hi, cases[i].hi);
			assert_int_equal(rule->bits, cases[i].bits);
			assert_int_equal(rule->family, cases[i].family);
			assert_int_equal(rule->exclude, cases[i].exclude);
			assert_string_equal(rule->text, cases[i].text);
		}
	}
}

static void test_bad_values(void **state)
{
	static const struct {
		const char *variable, *value;
		const char *expect[3]; /* parts of the message */
	} cases[] = {
	    {"VKRDMA_LISTEN", "abc", {"VKRDMA_LISTEN", "\"abc\" at character 1"}},
	    {"VKRDMA_LISTEN", "6379,70000,7", {"\"70000\" at character 6", "1 to 65535"}},
	    {"VKRDMA_LISTEN", "0", {"\"0\" at character 1"}},
	    {"VKRDMA_LISTEN", "65536", {"\"65536\""}},
	    {"VKRDMA_LISTEN", "18446744073709557995", {"\"18446744073709557995\""}},
	    {"VKRDMA_LISTEN", "-1", {"\"-1\""}},
	    {"VKRDMA_LISTEN", "+1", {"\"+1\""}},
	    {"VKRDMA_LISTEN", "6379-", {"\"6379-\"", "range"}},
	    {"VKRDMA_LISTEN", "6379-6370", {"ends before it begins"}},
	    {"VKRDMA_LISTEN", "1-2-3", {"\"1-2-3\""}},
	    {"VKRDMA_LISTEN", "6379,", {"\"\" at character 6", "empty"}},
	    {"VKRDMA_LISTEN", ",6379", {"at character 1", "empty"}},
	    {"VKRDMA_LISTEN", "1,,2", {"at character 3", "empty"}},
	    {"VKRDMA_LISTEN", "!", {"\"!\"", "empty"}},
	    {"VKRDMA_LISTEN", "!!5", {"\"!5\""}},
	    {"VKRDMA_LISTEN", "63 79", {"\"63 79\""}},
	    {"VKRDMA_LISTEN", "**", {"\"**\""}},
	    {"VKRDMA_CONNECT", "10.0.0.1", {"VKRDMA_CONNECT", "port is missing", "ADDRESS:PORT"}},
	    {"VKRDMA_CONNECT", "10.0.0.0/8", {"port is missing"}},
	    {"VKRDMA_CONNECT", "10.0.0.1:", {"\"\" at character 10"}},
	    {"VKRDMA_CONNECT", "10.0.0.256:5", {"\"10.0.0.256\"", "not an IPv4 address"}},
	    {"VKRDMA_CONNECT", "10.0.0.0/33:5", {"prefix length is not 0 to 32"}},
	    {"VKRDMA_CONNECT", "10.0.0.0/:5", {"prefix length"}},
	    {"VKRDMA_CONNECT", "10.0.0.0/-1:5", {"prefix length"}},
	    {"VKRDMA_CONNECT", "[fd00::]/129:5", {"prefix length is not 0 to 128"}},
	    {"VKRDMA_CONNECT", "[fd00::]8:5", {"prefix length"}},
	    {"VKRDMA_CONNECT", "[fd00::1:5", {"bracket is not closed"}},
	    {"VKRDMA_CONNECT", "[fd00::1]", {"port is missing"}},
	    {"VKRDMA_CONNECT", "[fd00::1]/64", {"port"}},
	    {"VKRDMA_CONNECT", "fd00::1:5", {"\"fd00::1\"", "brackets"}},
	    {"VKRDMA_CONNECT", "[fe80::1%eth0]:5", {"not an IPv6 address"}},
	    {"VKRDMA_CONNECT", "localhost:6379", {"\"localhost\"", "not an IPv4 address"}},
	    {"VKRDMA_CONNECT", ":6379", {"\"\" at character 1"}},
	    {"VKRDMA_CONNECT", "5\033[2J", {"\"5?[2J\""}},
	    {"VKRDMA_CONNECT",
	     "0000000000000000000000000000000000000000000000000000000000000000000000000000005",
	     {"too long", "\"..."}},
	    {"VKRDMA_FALLBACK", "no", {"VKRDMA_FALLBACK", "tcp or none"}},
	    {"VKRDMA_PROVIDER", "Soft", {"VKRDMA_PROVIDER", "verbs or soft"}},
	    {"VKRDMA_CONNECT_TIMEOUT", "0", {"VKRDMA_CONNECT_TIMEOUT", "1 to 60000"}},
	    {"VKRDMA_CONNECT_TIMEOUT", "60001", {"1 to 60000"}},
	    {"VKRDMA_CONNECT_TIMEOUT", "2s", {"\"2s\""}},
	    {"VKRDMA_KEEPALIVE", "3601", {"VKRDMA_KEEPALIVE", "0 to 3600"}},
	    {"VKRDMA_KEEPALIVE", "-1", {"\"-1\""}},
	    {"VKRDMA_KEEPALIVE", "3s", {"0 to 3600"}},
	    {"VKRDMA_RING", "4095", {"VKRDMA_RING", "4k to 64m"}},
	    {"VKRDMA_RING", "65m", {"4k to 64m"}},
	    {"VKRDMA_RING", "67108865", {"4k to 64m"}},
	    {"VKRDMA_RING", "k", {"\"k\""}},
	    {"VKRDMA_RING", "4g", {"\"4g\""}},
	    {"VKRDMA_RING", "9223372036854775808m", {"4k to 64m"}},
	    {"VKRDMA_EARLY_REFRESH", "on", {"VKRDMA_EARLY_REFRESH", "yes or no"}},
	    {"VKRDMA_POLL", "1001", {"VKRDMA_POLL", "0 to 1000"}},
	    {"VKRDMA_POLL", "on", {"\"on\""}},
	    {"VKRDMA_FEATURES", "credits", {"VKRDMA_FEATURES", "\"credits\"", "fin, resize, credit, keep and lend"}},
	    {"VKRDMA_FEATURES", "fin,,resize", {"VKRDMA_FEATURES"}},
	    {"VKRDMA_FEATURES", "-credit", {"\"-credit\""}},
	    {"VKRDMA_LOG", "loud", {"VKRDMA_LOG", "\"loud\""}},
	    {"VKRDMA_LOG", "info:", {"VKRDMA_LOG", "no file name"}},
	    {"VKRDMA_LOG", ":x", {"VKRDMA_LOG"}},
	};
	struct vkr_config cfg;
	char err[256];
	size_t i, k;

	for (i = 0; i < VKR_ARRAY_SIZE(cases); i++) {
		int rc = parse_one(cases[i].variable, cases[i].value, &cfg, err);

		if (rc != -EINVAL)
			fail_msg("%s=\"%s\" gave %d", cases[i].variable, cases[i].value, rc);
		for (k = 0; k < 3 && cases[i].expect[k]; k++)
			if (!strstr(err, cases[i].expect[k]))
				fail_msg("%s=\"%s\": \"%s\" lacks \"%s\"", cases[i].variable, cases[i].value, err,
					 cases[i].expect[k]);
		assert_null(strchr(err, '\n'));
		assert_null(strchr(err, '\033'));
		assert_false(cfg.active);
		assert_int_equal(cfg.n_listen + cfg.n_connect, 0);
		assert_int_equal(cfg.native_ring, 262144);
	}
}

static void test_one_bad_variable_ends_all_rules(void **state)
{
	struct vkr_config cfg;
	char err[256] = "";

	env_clear();
	env_set("VKRDMA_LISTEN", "6379");
	env_set("VKRDMA_CONNECT", "6379");
	env_set("VKRDMA_RING", "1");
	assert_int_equal(vkr_config_parse(&cfg, fake_env, err, sizeof(err)), -EINVAL);
	assert_false(cfg.active);
	assert_int_equal(cfg.n_listen, 0);
	assert_int_equal(cfg.n_connect, 0);
}

static void test_good_settings(void **state)
{
	struct vkr_config cfg;
	char err[256] = "";

	env_clear();
	env_set("VKRDMA_FALLBACK", "none");
	env_set("VKRDMA_PROVIDER", "soft");
	env_set("VKRDMA_CONNECT_TIMEOUT", "60000");
	env_set("VKRDMA_KEEPALIVE", "0");
	env_set("VKRDMA_RING", "64m");
	env_set("VKRDMA_EARLY_REFRESH", "no");
	env_set("VKRDMA_POLL", "20");
	env_set("VKRDMA_LOG", "debug:/dev/null");
	env_set("VKRDMA_LISTEN", "");
	env_set("VKRDMA_CONNECT", "  ");
	assert_int_equal(vkr_config_parse(&cfg, fake_env, err, sizeof(err)), 0);
	assert_false(cfg.active);
	assert_true(cfg.fallback_none);
	assert_true(cfg.provider_soft);
	assert_int_equal(cfg.connect_timeout_ms, 60000);
	assert_int_equal(cfg.keepalive_s, 0);
	assert_int_equal(cfg.native_ring, 64 << 20);
	assert_true(cfg.late_refresh);
	assert_int_equal(cfg.poll_us, 20);
	assert_int_equal(cfg.log_level, VKR_LOG_DEBUG);
	assert_string_equal(cfg.log_file, "/dev/null");

	assert_int_equal(parse_one("VKRDMA_FEATURES", "none", &cfg, err), 0);
	assert_int_equal(cfg.features, 0);
	assert_int_equal(parse_one("VKRDMA_FEATURES", "all", &cfg, err), 0);
	assert_int_equal(cfg.features, VKR_FEAT_ALL);
	assert_int_equal(parse_one("VKRDMA_FEATURES", " fin , resize", &cfg, err), 0);
	assert_int_equal(cfg.features, VKR_FEAT_FIN | VKR_FEAT_RESIZE);
	assert_int_equal(parse_one("VKRDMA_FEATURES", "credit", &cfg, err), 0);
	assert_int_equal(cfg.features, VKR_FEAT_CREDIT);
	assert_int_equal(parse_one("VKRDMA_FEATURES", "keep,fin", &cfg, err), 0);
	assert_int_equal(cfg.features, VKR_FEAT_KEEP | VKR_FEAT_FIN);
	assert_int_equal(parse_one("VKRDMA_RING", "4K", &cfg, err), 0);
	assert_int_equal(cfg.native_ring, 4096);
	assert_int_equal(parse_one("VKRDMA_RING", "65536", &cfg, err), 0);
	assert_int_equal(cfg.native_ring, 65536);
	assert_int_equal(parse_one("VKRDMA_FALLBACK", "tcp", &cfg, err), 0);
	assert_false(cfg.fallback_none);
	assert_false(cfg.late_refresh);
	env_clear();
	env_set("VKRDMA_POLL", "off");
	assert_int_equal(vkr_config_parse(&cfg, fake_env, err, sizeof(err)), 0);
	assert_int_equal(cfg.poll_us, 0);
}

static void test_64_rules_and_one_more(void **state)
{
	struct vkr_config cfg;
	char value[1024] = "", err[256];
	int i;

	for (i = 0; i < VKR_MAX_RULES; i++)
		sprintf(value + strlen(value), "%s%d", i ? "," : "", 1000 + i);
	assert_int_equal(parse_one("VKRDMA_CONNECT", value, &cfg, err), 0);
	assert_int_equal(cfg.n_connect, VKR_MAX_RULES);
	assert_int_equal(cfg.connect[63].port_lo, 1063);
	strcat(value, ",2000");
	assert_int_equal(parse_one("VKRDMA_CONNECT", value, &cfg, err), -EINVAL);
	assert_non_null(strstr(err, "\"2000\""));
	assert_non_null(strstr(err, "too many rules"));
	assert_int_equal(cfg.n_connect, 0);
}

static void test_short_error_buffer(void **state)
{
	struct vkr_config cfg;
	char err[9];

	memset(err, 'x', sizeof(err));
	env_clear();
	env_set("VKRDMA_LISTEN", "abc");
	assert_int_equal(vkr_config_parse(&cfg, fake_env, err, 8), -EINVAL);
	assert_string_equal(err, "VKRDMA_");
	assert_int_equal(err[8], 'x');
}

static void use_rules(const char *listen_rules, const char *connect_rules)
{
	char err[256] = "";

	env_clear();
	env_set("VKRDMA_LISTEN", listen_rules);
	env_set("VKRDMA_CONNECT", connect_rules);
	if (vkr_config_parse(&vkr_config, fake_env, err, sizeof(err)))
		fail_msg("%s", err);
}

static void test_first_match_wins(void **state)
{
	use_rules("!6380,6379-6389", "10.0.0.0/8:6379,!10.0.0.0/8:*,6379");
	assert_non_null(matching(true, "0.0.0.0", 6379));
	assert_null(matching(true, "0.0.0.0", 6380));
	assert_non_null(matching(true, "::", 6389));
	assert_null(matching(true, "0.0.0.0", 6390));
	assert_null(matching(true, "0.0.0.0", 6378));

	assert_string_equal(matching(false, "10.9.8.7", 6379)->text, "10.0.0.0/8:6379");
	assert_null(matching(false, "10.9.8.7", 6380));
	assert_string_equal(matching(false, "11.0.0.1", 6379)->text, "6379");
	assert_null(matching(false, "11.0.0.1", 6380));
}

static void test_addresses(void **state)
{
	use_rules("", "192.168.1.128/25:1,[fd00::]/12:2,[::1]:3,0.0.0.0/0:4,[::]/0:5,10.1.2.3/8:6,127.0.0.1:*");
	assert_non_null(matching(false, "192.168.1.128", 1));
	assert_non_null(matching(false, "192.168.1.255", 1));
	assert_null(matching(false, "192.168.1.127", 1));
	assert_non_null(matching(false, "::ffff:192.168.1.200", 1));
	assert_non_null(matching(false, "fd0f:ffff::1", 2));
	assert_null(matching(false, "fd10::1", 2));
	assert_non_null(matching(false, "::1", 3));
	assert_null(matching(false, "::2", 3));
	assert_null(matching(false, "0.0.0.1", 3));
	assert_non_null(matching(false, "8.8.8.8", 4));
	assert_non_null(matching(false, "::ffff:8.8.8.8", 4));
	assert_null(matching(false, "2001:db8::1", 4));
	assert_non_null(matching(false, "2001:db8::1", 5));
	assert_null(matching(false, "8.8.8.8", 5));
	assert_null(matching(false, "::ffff:8.8.8.8", 5));
	assert_non_null(matching(false, "10.255.0.1", 6)); /* host bits of the rule do not count */
	assert_non_null(matching(false, "127.0.0.1", 0));
	assert_non_null(matching(false, "127.0.0.1", 65535));
	assert_null(matching(true, "127.0.0.1", 1));
}

static void test_other_families_never_match(void **state)
{
	struct sockaddr sa = {.sa_family = AF_UNIX};

	use_rules("*", "*");
	assert_null(vkr_config_match_listen(&sa));
	sa.sa_family = AF_UNSPEC;
	assert_null(vkr_config_match_connect(&sa));
}

/* vkr_config_load() acts once a process, so each case is a child with its own environment and standard error. */
static size_t load_in_child(const char *listen_rules, const char *log, char *out, size_t size)
{
	size_t used = 0;
	ssize_t n;
	int p[2], status;
	pid_t pid;

	assert_int_equal(pipe(p), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(p[1], STDERR_FILENO);
		setenv("VKRDMA_LISTEN", listen_rules, 1);
		if (log)
			setenv("VKRDMA_LOG", log, 1);
		vkr_config_load();
		vkr_config_load();
		vkr_info("active=%d", vkr_config.active);
		_exit(vkr_config.active ? 10 : 11);
	}
	close(p[1]);
	while ((n = read(p[0], out + used, size - 1 - used)) > 0)
		used += (size_t)n;
	out[used] = '\0';
	close(p[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return (size_t)WEXITSTATUS(status);
}

static void test_load_from_environment(void **state)
{
	char out[1024];

	assert_int_equal(load_in_child("6379", NULL, out, sizeof(out)), 10);
	assert_string_equal(out, "");
	assert_int_equal(load_in_child("6379", "info", out, sizeof(out)), 10);
	assert_non_null(strstr(out, "active=1\n"));
}

static void test_load_of_a_bad_rule_is_one_line(void **state)
{
	char out[1024];

	assert_int_equal(load_in_child("6379,x", "none", out, sizeof(out)), 11);
	assert_non_null(strstr(out, "VKRDMA_LISTEN: \"x\" at character 6"));
	assert_non_null(strstr(out, "plain TCP"));
	assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	    cmocka_unit_test(test_defaults),
	    cmocka_unit_test(test_good_rules),
	    cmocka_unit_test(test_bad_values),
	    cmocka_unit_test(test_one_bad_variable_ends_all_rules),
	    cmocka_unit_test(test_good_settings),
	    cmocka_unit_test(test_64_rules_and_one_more),
	    cmocka_unit_test(test_short_error_buffer),
	    cmocka_unit_test(test_first_match_wins),
	    cmocka_unit_test(test_addresses),
	    cmocka_unit_test(test_other_families_never_match),
	    cmocka_unit_test(test_load_from_environment),
	    cmocka_unit_test(test_load_of_a_bad_rule_is_one_line),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* fdopen, fprintf, fgets and dprintf on a carried socket: glibc's own reads and writes reach the peer. */
#include "conf.h"

static void each(int a, int b)
{
	FILE *f = fdopen(a, "r+");
	char buf[32] = "", line[32] = "";

	CONF_TRUE(f != NULL);
	CONF_GE(fprintf(f, "hello %d\n", 42), 1);
	CONF_EQ(fflush(f), 0);
	conf_read_all(b, buf, 9);
	CONF_EQ(memcmp(buf, "hello 42\n", 9), 0);
	conf_write_all(b, "line one\nline two\n", 18);
	CONF_TRUE(fgets(line, sizeof(line), f) != NULL);
	CONF_EQ(strcmp(line, "line one\n"), 0);
	CONF_TRUE(fgets(line, sizeof(line), f) != NULL);
	CONF_EQ(strcmp(line, "line two\n"), 0);
	CONF_EQ(dprintf(a, "direct"), 6);
	conf_read_all(b, buf, 6);
	CONF_EQ(memcmp(buf, "direct", 6), 0);
	CONF_EQ(fclose(f), 0);
	conf_read_eof(b);
	CONF_OK(close(b));
}

/* dprintf alone, in order with other calls; and standard output. */
static void direct(int a, int b)
{
	int saved = (int)CONF_OK(dup(1));
	char buf[32] = "";

	CONF_EQ(dprintf(a, "%d", 1), 1);
	conf_write_all(a, "2", 1);
	CONF_EQ(dprintf(a, "%d", 3), 1);
	fflush(stdout);
	CONF_OK(dup2(a, 1));
	printf("four");
	fflush(stdout);
	CONF_OK(dup2(saved, 1));
	conf_write_all(a, "5", 1);
	conf_read_all(b, buf, 8);
	CONF_EQ(memcmp(buf, "123four5", 8), 0);
	CONF_OK(close(saved));
	conf_close2(a, b);
}

CONF_TEST(0)
{
	conf_each_role(each);
	conf_each_role(direct);
}

/* SPDX-License-Identifier: BSD-2-Clause */
/* Bytes sent, and a close made, before accept are there after it. */
#include "conf.h"

CONF_TEST(0)
{
	int l = conf_listener(AF_INET, 4), c, s;
	char out[5000], in[5000];

	c = conf_dial(l);
	conf_fill(out, sizeof(out), 1, 0);
	conf_write_all(c, out, sizeof(out));
	CONF_OK(close(c));
	c = conf_dial(l);
	CONF_OK(shutdown(c, SHUT_WR));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_read_all(s, in, sizeof(in));
	CONF_VERIFY(in, sizeof(in), 1, 0);
	conf_read_eof(s);
	CONF_OK(close(s));
	s = (int)CONF_OK(accept(l, NULL, NULL));
	conf_read_eof(s);
	conf_write_all(s, "still", 5);
	conf_read_all(c, in, 5);
	conf_close2(c, s);
}

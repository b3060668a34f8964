/* SPDX-License-Identifier: BSD-2-Clause */
#include "config.h"

#include <stdlib.h>
#include <sys/auxv.h>

static const char *environment(const char *name)
{
	return getenv(name);
}

/* A program that runs with more rights than its caller must take no file name from the caller, and makes no noise. */
void vkr_config_load(void)
{
	static bool loaded;
	char err[256];

	if (loaded)
		return;
	loaded = true;
	if (getauxval(AT_SECURE)) {
		vkr_log_level = VKR_LOG_NONE;
		return;
	}
	if (vkr_config_parse(&vkr_config, environment, err, sizeof(err)) == 0) {
		vkr_log_open(vkr_config.log_level, vkr_config.log_file);
		return;
	}
	vkr_log_open(VKR_LOG_WARN, NULL);
	vkr_error("%s; no connection is carried, everything runs on plain TCP", err);
}

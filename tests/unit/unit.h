/* SPDX-License-Identifier: BSD-2-Clause */
/* What every unit test includes: cmocka needs these four before it, in this order. */
#ifndef VKR_UNIT_H
#define VKR_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif

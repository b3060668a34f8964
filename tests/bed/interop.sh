#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# interop.sh FILE [TEST]...: one file of tests/interop or tests/fault on the test bed's device, in its quick form.
export VKR_MODE=carried VKR_PROVIDER=verbs VKR_HOST=$BED_ADDR4 VKR_BUILD=$BED_BUILD VKR_TIER=quick VKR_CONNECT_TIMEOUT=8000 PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "$BED_SRC/tests/$1" "${@:2}"

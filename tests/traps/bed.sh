#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# bed.sh FILE [CLASS.TEST]...: trap tests on the test bed's device.
export VKR_MODE=carried VKR_PROVIDER=verbs VKR_HOST=$BED_ADDR4 VKR_BUILD=$BED_BUILD VKR_CONNECT_TIMEOUT=8000 PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 "$(dirname "$0")/$1" "${@:2}"

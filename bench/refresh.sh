#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Latency across buffer refreshes: bench/refresh.sh --help, docs/refresh.md.
here=$(cd "$(dirname "$0")" && pwd)
python=/usr/bin/python3
[ -x "$python" ] || python=python3
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/refresh.py" "$@"

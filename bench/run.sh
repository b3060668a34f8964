#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Benchmarks: bench/run.sh --help, bench/README.md.
here=$(cd "$(dirname "$0")" && pwd)
python=/usr/bin/python3
[ -x "$python" ] || python=python3
PYTHONDONTWRITEBYTECODE=1 exec "$python" "$here/run.py" "$@"

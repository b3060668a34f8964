#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Runs other people's test suites natively and carried, and prints what passed both ways and every difference.
#
#   scripts/suites.sh [--no-install] [--list] [--docs] [--carried] [--work DIR] [NAME...]
#
#   NAME          one suite (--list names them); without any: all, about an hour
#   --list        the suites' names
#   --docs        run nothing; write docs/suites.md from each suite's newest result
#   --carried     only the carried run, compared with the native one of an earlier time
#   --no-install  do not install missing Debian packages first (scripts/install-deps.sh --suites), nor build
#   --work DIR    where results and outputs are kept; default: build/suites
#
# Exit code 0 only when every suite ran, its connections were really carried, and every difference is explained in
# tests/suites/README.md.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
install=yes args=()
for arg in "$@"; do
	case $arg in
	--no-install) install=no ;;
	-h | --help)
		sed -n '3,17s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	--list | --docs) install=no args+=("$arg") ;;
	*) args+=("$arg") ;;
	esac
done
if [ $install = yes ]; then
	scripts/install-deps.sh --suites
	cmake --preset release >/dev/null
	cmake --build --preset release
fi
exec /usr/bin/python3 tests/suites/run.py "${args[@]}"

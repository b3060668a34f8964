#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The differential tester (README.md), from the release build or the one that VKR_BUILD names.
#
#   tests/diff/run.sh --sequences 1000000    that many, from a random seed, which it prints first
#   tests/diff/run.sh --seconds 120          as many as fit
#   tests/diff/run.sh --seed 7 --sequences 1 the same sequence again
#   tests/diff/run.sh --replay FILE          a sequence as text: what an earlier run has saved
#   tests/diff/run.sh --found                what has been found and mended (found/*.txt), five times each
#   tests/diff/run.sh --tier                 as long as the test tier (VKR_TIER) gives: 15, 120 or 600 s
#
# Differences are shrunk, printed, and saved as diff-SEED.txt in the present folder (--out DIR: there).
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
build=${VKR_BUILD:-$root/build}
args=("$@")
if [ "${1:-}" = --tier ]; then
	case ${VKR_TIER:-default} in
	quick) args=(--seconds 15) ;;
	full) args=(--seconds 600) ;;
	*) args=(--seconds 120) ;;
	esac
fi
if [ "${1:-}" = --found ]; then
	status=0
	for f in "$root"/tests/diff/found/*.txt; do
		for _ in 1 2 3 4 5; do
			"$build/vkr-diff" --shim "$build/libvkrdma.so" --replay "$f" || status=1
		done
	done
	exit $status
fi
exec "$build/vkr-diff" --shim "$build/libvkrdma.so" "${args[@]}"

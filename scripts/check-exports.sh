#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Checks what libvkrdma.so exports and imports: check-exports.sh [BUILD_FOLDER [LIBRARY [OBJECTS...]]]
#  1. the version script and the library export exactly shim/exports.txt, without a symbol version
#  2. no object but libc_real's imports a name that we export: it would come back to us, or to another preloaded library
#  3. stock programs, with the library preloaded, take every such name from us (not from libc)
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$here/build}
lib=${2:-$build/libvkrdma.so}
[ $# -gt 2 ] && shift 2 || set -- "$build"/shim/CMakeFiles/vkrdma.dir/*.o
export LC_ALL=C
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
bad=0

fail()
{
	echo "check-exports: $*" >&2
	bad=1
}

same()
{
	diff "$1" "$2" >"$tmp/diff" && return
	fail "$3"
	cat "$tmp/diff" >&2
}

[ -e "$lib" ] || { echo "check-exports: $lib is missing: build first" >&2; exit 2; }

want=$here/shim/exports.txt
sort -c "$want" || fail "exports.txt is not sorted"
sed -n '/global:/,/local:/s/^[[:space:]]*\([A-Za-z_0-9]*\);.*/\1/p' "$here/shim/libvkrdma.map" | sort >"$tmp/map"
same "$want" "$tmp/map" "libvkrdma.map does not name what exports.txt names (< exports.txt, > libvkrdma.map)"
nm -D --defined-only "$lib" | awk '{print $NF}' | sort >"$tmp/lib"
same "$want" "$tmp/lib" "$lib does not export what exports.txt names (< exports.txt, > library)"

for object; do
	case $object in
	*libc_real.c.o | */libc_real.o) continue ;;
	*'*'*) fail "no objects in $build"; continue ;;
	esac
	nm -u "$object" | awk '{print $NF}' | sort -u | comm -12 - "$want" >"$tmp/inside"
	[ ! -s "$tmp/inside" ] || fail "$(basename "$object") calls $(tr '\n' ' ' <"$tmp/inside")past vkr_real"
done

# bindings PROGRAM ARGUMENTS...: every name of ours that the program's own file imports
bindings()
{
	program=$(command -v "$1") || return 0
	program=$(readlink -f "$program")
	shift
	nm -D -u "$program" 2>/dev/null | awk '{sub(/@.*/, "", $NF); print $NF}' | sort -u | comm -12 - "$want" >"$tmp/need"
	[ -s "$tmp/need" ] || return 0
	LD_DEBUG=bindings LD_BIND_NOW=1 LD_DEBUG_OUTPUT="$tmp/ld" LD_PRELOAD=$lib "$program" "$@" >"$tmp/out" 2>&1 ||
		fail "$program does not run with the library preloaded: $(tail -1 "$tmp/out")"
	cat "$tmp"/ld.* | grep -F "binding file $program " | grep -F "to $lib " |
		sed -n "s/.*normal symbol \`\([^']*\)'.*/\1/p" | sort -u >"$tmp/bound"
	rm -f "$tmp"/ld.*
	comm -23 "$tmp/need" "$tmp/bound" >"$tmp/missed"
	[ ! -s "$tmp/missed" ] || fail "$program takes $(tr '\n' ' ' <"$tmp/missed")from elsewhere"
	checked="${checked:-} $(basename "$program"):$(wc -l <"$tmp/bound")"
}

if readelf -d "$lib" | grep -q 'lib[at]san'; then # its runtime would have to come first
	[ "$bad" = 0 ] && echo "check-exports: $(wc -l <"$want") names; bindings not looked at under a sanitizer"
	exit "$bad"
fi
bindings /usr/bin/python3 -c pass
bindings redis-server --version
bindings redis-cli --version
bindings valkey-server --version
bindings node -e 0
bindings perl -e 0
bindings sh -c :
[ -n "${checked:-}" ] || fail "no stock program was there to check"

[ "$bad" = 0 ] && echo "check-exports: $(wc -l <"$want") names; bound from${checked:-}"
exit "$bad"

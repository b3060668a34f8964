#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Builds Valkey with native RDMA (server, cli, benchmark) from Debian's source package, once, and prints its folder.
#
#   scripts/build-native.sh [--variant NAME] [--version VERSION] [--cached] [--print-source] [--no-install]
#
#   --variant NAME     one constant of the source changed; built and kept beside the plain one:
#                        keepalive-fast   the server sends a keepalive each 5 ms instead of each 3 s
#   --version VERSION  this version of the source package; default: the newest 9.1 (else the newest) of Debian's sid
#   --cached           build nothing; print the folder if it is there, else exit 1
#   --print-source     print the folder of the unpacked source instead
#   --no-install       do not install missing Debian packages first (scripts/install-deps.sh)
#
# The folder holds bin/valkey-server, bin/valkey-cli, bin/valkey-benchmark and VERSION. It lies under
# ${XDG_CACHE_HOME:-~/.cache}/libvkrdma, named after the version. The source is fetched by apt with lists and settings in a
# folder of their own: no root is needed for it, and the machine's apt configuration and packages stay as they are.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/libvkrdma
variant='' version='' cached=no install=yes what=build
while [ $# -gt 0 ]; do
	case $1 in
	--variant)
		variant=${2:?--variant needs a name}
		shift
		;;
	--version)
		version=${2:?--version needs a version}
		shift
		;;
	--cached) cached=yes ;;
	--print-source) what=source ;;
	--no-install) install=no ;;
	-h | --help)
		sed -n '3,17s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "build-native.sh: unknown option $1 (see --help)" >&2
		exit 2
		;;
	esac
	shift
done

say() { printf '%s\n' "$*" >&2; }
fail() {
	say "build-native.sh: $*"
	exit 1
}

# Prints the expression that makes the variant, and the file it is for.
variant_edit() {
	case $1 in
	keepalive-fast) echo 'src/rdma.c' 's/^#define VALKEY_RDMA_KEEPALIVE_MS 3000$/#define VALKEY_RDMA_KEEPALIVE_MS 5/' ;;
	*) fail "unknown variant $1 (see --help)" ;;
	esac
}
[ -z "$variant" ] || variant_edit "$variant" >/dev/null

# The version that was built last stands in a file, so that a later call asks nobody.
[ -n "$version" ] || [ ! -s "$cache/native.version" ] || version=$(<"$cache/native.version")
folder() { echo "$cache/native-$version${variant:+-$variant}"; }
answer() {
	if [ $what = source ]; then echo "$(folder)/source"; else folder; fi
	exit 0
}
[ -z "$version" ] || [ ! -e "$(folder)/VERSION" ] || answer
[ $cached = no ] || exit 1

mkdir -p "$cache"
exec 9>"$cache/native.lock"
flock 9 # another call may be building; it is there then
[ -n "$version" ] || [ ! -s "$cache/native.version" ] || version=$(<"$cache/native.version")
[ -z "$version" ] || [ ! -e "$(folder)/VERSION" ] || answer

[ $install = no ] || "$here/install-deps.sh" --quiet --native >&2
for tool in dpkg-source make gcc g++ pkg-config; do
	command -v $tool >/dev/null || fail "$tool is missing: scripts/install-deps.sh"
done

work=$(mktemp -d "$cache/native-work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# ---------------------------------------------------------------- the source
apt=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/etc" -o "Dir::State::lists=$work/lists"
	-o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::Languages=none)

# The archive is the one that serves this machine's own packages.
fetch_source() {
	local keyring=/usr/share/keyrings/debian-archive-keyring.gpg base codename versions
	codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
	base=$(apt-get indextargets 'Created-By: Packages' "Codename: $codename" 'Component: main' |
		awk '$1 == "Repo-URI:" && !uri {uri = $2} END {print uri}')
	mkdir -p "$work/etc" "$work/lists/partial" "$work/cache/archives/partial"
	{
		echo "Types: deb-src"
		echo "URIs: ${base:-http://deb.debian.org/debian}"
		echo "Suites: sid"
		echo "Components: main"
		[ ! -e $keyring ] || echo "Signed-By: $keyring"
	} >"$work/etc/native.sources"
	say "reading the list of Debian's source packages"
	apt-get "${apt[@]}" update </dev/null >"$work/apt.log" 2>&1 || {
		tail -n 5 "$work/apt.log" >&2
		fail "the list of source packages could not be had"
	}
	if [ -z "$version" ]; then
		versions=$(apt-cache "${apt[@]}" showsrc --only-source valkey | sed -n 's/^Version: //p' | sort -rV)
		version=$(grep -m 1 '^9\.1\.' <<<"$versions" || head -n 1 <<<"$versions")
		[ -n "$version" ] || fail "Debian's sid has no source package valkey"
		case $version in 9.1.*) ;; *) say "note: no Valkey 9.1 in sid any more; taking $version" ;; esac
	fi
	say "fetching the source of valkey $version"
	(cd "$work" && apt-get "${apt[@]}" source --download-only "valkey=$version") </dev/null >"$work/apt.log" 2>&1 || {
		tail -n 5 "$work/apt.log" >&2
		fail "the source of valkey $version could not be had"
	}
	dpkg-source --no-check -x "$work"/valkey_*.dsc "$work/source" >"$work/unpack.log" 2>&1 || { # apt has checked it
		tail -n 5 "$work/unpack.log" >&2
		fail "the source could not be unpacked"
	}
	[ -e "$work/source/src/rdma.c" ] || fail "valkey $version has no RDMA"
}

# compile FOLDER: as Debian builds it (its jemalloc, -O2), without what RDMA does not need.
compile() {
	say "building valkey $version with RDMA${variant:+, variant $variant} (a few minutes)"
	make -C "$1/src" -j "$(nproc)" BUILD_RDMA=yes BUILD_TLS=no USE_SYSTEMD=no MALLOC=jemalloc USE_SYSTEM_JEMALLOC=yes \
		OPTIMIZATION=-O2 valkey-server valkey-cli valkey-benchmark </dev/null >"$work/make.log" 2>&1 || {
		grep -nE 'error|Error' "$work/make.log" | head -n 10 >&2
		tail -n 10 "$work/make.log" >&2
		fail "valkey $version could not be built"
	}
}

# Into place in one step: a folder with VERSION in it is complete.
finish() {
	local dest=$1
	mkdir "$work/done"
	mv "$work/source" "$work/done/source"
	mkdir -p "$work/done/bin"
	cp -p "$work/done/source/src"/valkey-{server,cli,benchmark} "$work/done/bin/"
	echo "$version" >"$work/done/VERSION"
	rm -rf "$dest"
	mv "$work/done" "$dest"
}

plain=''
[ -z "$version" ] || plain=$cache/native-$version
if [ -z "$variant" ]; then
	fetch_source
	compile "$work/source"
	finish "$cache/native-$version"
	echo "$version" >"$cache/native.version"
else
	# From the plain build's tree: only what the edit touches is compiled again.
	if [ -z "$plain" ] || [ ! -e "$plain/VERSION" ]; then
		exec 9>&-
		plain=$("$0" --no-install ${version:+--version "$version"})
		exec 9>"$cache/native.lock"
		flock 9
		version=$(<"$plain/VERSION")
	fi
	read -r file edit <<<"$(variant_edit "$variant")"
	cp -a "$plain/source" "$work/source"
	sed -i "$edit" "$work/source/$file"
	! cmp -s "$work/source/$file" "$plain/source/$file" || fail "variant $variant: $file of $version has no such line"
	compile "$work/source"
	finish "$(folder)"
fi
say "built in ${SECONDS} s"
answer

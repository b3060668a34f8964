#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Fetches rdma-core's rsocket preload of Debian's sid, with its libraries and providers, and prints its folder.
#
#   scripts/rsocket.sh [--cached]
#
#   --cached   fetch nothing; print the folder if it is there, else exit 1
#
# Only to compare with it (bench/run.sh --only rsocket). The packages are unpacked beside, under
# ${XDG_CACHE_HOME:-~/.cache}/libvkrdma, and never installed: their own C library serves the programs that FOLDER/run starts.
# No root is needed, and the machine's apt configuration stays as it is.
#
#   FOLDER/run PROGRAM...    a program under that preload
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/libvkrdma
dest=$cache/rsocket
cached=no
case ${1:-} in
'') ;;
--cached) cached=yes ;;
-h | --help)
	sed -n '3,14s/^# \{0,1\}//p' "$0"
	exit 0
	;;
*)
	echo "rsocket.sh: unknown option $1 (see --help)" >&2
	exit 2
	;;
esac
[ ! -e "$dest/VERSION" ] || {
	echo "$dest"
	exit 0
}
[ $cached = no ] || exit 1

say() { printf '%s\n' "$*" >&2; }
fail() {
	say "rsocket.sh: $*"
	exit 1
}
mkdir -p "$cache"
work=$(mktemp -d "$cache/rsocket-work.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# ---------------------------------------------------------------- the packages
apt=(-q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/etc" -o "Dir::State::lists=$work/lists"
	-o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root -o Acquire::Retries=3 -o Acquire::Languages=none -o APT::Default-Release=
	-o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o "Dir::State::status=$work/installed")
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
# The archive is the one that serves this machine's own packages.
base=$(apt-get indextargets 'Created-By: Packages' "Codename: $codename" 'Component: main' |
	awk '$1 == "Repo-URI:" && !uri {uri = $2} END {print uri}')
mkdir -p "$work/etc" "$work/lists/partial" "$work/cache/archives/partial" "$work/deb" "$work/done/root"
: >"$work/installed" # what this machine has does not matter
{
	echo "Types: deb"
	echo "URIs: ${base:-http://deb.debian.org/debian}"
	echo "Suites: sid"
	echo "Components: main"
	[ ! -e $keyring ] || echo "Signed-By: $keyring"
} >"$work/etc/sid.sources"
say "reading sid's list of packages"
apt-get "${apt[@]}" update </dev/null >"$work/log" 2>&1 || {
	tail -n 5 "$work/log" >&2
	fail "the list of packages could not be had"
}
known() { [ -n "$(apt-cache "${apt[@]}" madison "$1" 2>/dev/null)" ]; }
packages=()
for p in librdmacm1 libibverbs1 ibverbs-providers libc6 libgcc-s1 libnl-3-200 libnl-route-3-200; do
	for name in "${p}t64" "$p"; do # some were renamed with the 64-bit time_t
		if known "$name"; then
			packages+=("$name")
			break
		fi
	done
done
say "fetching ${packages[*]}"
(cd "$work/deb" && apt-get "${apt[@]}" download "${packages[@]}") </dev/null >"$work/log" 2>&1 || {
	tail -n 5 "$work/log" >&2
	fail "the packages could not be had"
}
for deb in "$work"/deb/*.deb; do dpkg -x "$deb" "$work/done/root"; done

# ---------------------------------------------------------------- how to use them
preload=$(cd "$work/done/root" && find . -name librspreload.so.1 | head -n 1)
loader=$(cd "$work/done/root" && find . -name 'ld-linux*.so.*' | head -n 1)
[ -n "$preload" ] || fail "this librdmacm1 has no librspreload.so.1"
[ -n "$loader" ] || fail "this libc6 has no dynamic loader"
libs=$(cd "$work/done/root" && find . -name 'librdmacm.so.1' -printf '%h\n' | head -n 1)
cat >"$work/done/run" <<END
#!/bin/bash
# A program under rdma-core's rsocket preload; the providers are found beside the libraries.
root=\$(cd "\$(dirname "\$0")/root" && pwd)
program=\$(type -P "\$1") || exit 127
shift
exec "\$root/$loader" --library-path "\$root/$libs:\$root/$libs/libibverbs" --preload "\$root/$preload" "\$program" "\$@"
END
chmod +x "$work/done/run"
"$work/done/run" true || fail "a program does not start under the preload"
dpkg-deb -f "$(find "$work/deb" -name 'librdmacm1*_*' | head -n 1)" Version >"$work/done/VERSION"
rm -rf "$dest"
mv "$work/done" "$dest"
echo "$dest"

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Installs what libvkrdma needs, from the Debian archive that this machine already uses (Debian 12 and 13).
#
#   scripts/install-deps.sh [--build | --native | --bed | --suites] [--print] [--quiet]
#
#   --build   only what compiles the library, not what the tests and the quick start run
#   --native  only what scripts/build-native.sh needs
#   --bed     and QEMU, for the test bed (scripts/testbed.sh)
#   --suites  and the programs whose suites scripts/suites.sh runs
#   --print   say what would be installed and stop
#   --quiet   say nothing when nothing is missing
#
# Nothing that is installed already is upgraded. No service is started: the server packages would otherwise bring up a
# server on port 6379. A server that runs already is left alone.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
want=all bed=no suites=no print=no quiet=no
for arg in "$@"; do
	case $arg in
	--build) want=build ;;
	--native) want=native ;;
	--bed) bed=yes ;;
	--suites) suites=yes ;;
	--print) print=yes ;;
	--quiet) quiet=yes ;;
	-h | --help)
		sed -n '3,17s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "install-deps.sh: unknown option $arg" >&2
		exit 2
		;;
	esac
done

say() { printf '%s\n' "$*"; }
fail() {
	printf 'install-deps.sh: %s\n' "$*" >&2
	exit 1
}

command -v apt-get >/dev/null || fail "apt-get not found: this script knows Debian only; see README.md for the list"

as_root=()
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
policy=/usr/sbin/policy-rc.d
policy_ours=no

cleanup() {
	if [ $policy_ours = yes ]; then
		"${as_root[@]}" rm -f $policy
		[ ! -e "$work/policy-rc.d" ] || "${as_root[@]}" mv "$work/policy-rc.d" $policy
	fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

installed() { [ "$(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | cut -c2)" = i ]; }
# No pipe here that ends early: with pipefail its first program would be reported as failed.
known() { [[ $(apt-cache policy "$1" 2>/dev/null) =~ Candidate:\ [0-9] ]]; }

# Never lets a package start or stop a service while we install; the user's own policy comes back afterwards.
hold_services() {
	[ $policy_ours = no ] || return 0
	[ ! -e $policy ] || "${as_root[@]}" cp -a $policy "$work/policy-rc.d"
	printf '#!/bin/sh\nexit 101\n' >"$work/deny"
	"${as_root[@]}" install -m 755 "$work/deny" $policy
	policy_ours=yes
}

apt_install() {
	hold_services
	"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-upgrade \
		-o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@" </dev/null >"$work/apt.log" 2>&1 || {
		tail -n 30 "$work/apt.log" >&2
		return 1
	}
}

updated=no
apt_update() {
	[ $updated = no ] || return 0
	say "  reading the package lists"
	"${as_root[@]}" apt-get update -qq -o DPkg::Lock::Timeout=300 </dev/null >"$work/update.log" 2>&1 ||
		say "  warning: apt-get update said: $(tail -n 1 "$work/update.log")"
	updated=yes
}

# ---------------------------------------------------------------- what is missing
build_set=(gcc make cmake ninja-build libc6-dev libibverbs-dev librdmacm-dev uthash-dev)
run_set=(libibverbs1 librdmacm1 ibverbs-providers redis-server redis-tools python3 python3-redis openssl iproute2 procps)
test_set=(libcmocka-dev clang spin gdb valgrind perftest rdmacm-utils ibverbs-utils nginx-light)
native_set=(gcc g++ make libc6-dev dpkg-dev pkg-config libjemalloc-dev libibverbs-dev librdmacm-dev)
# The guest's kernel is not among these: make-guest.sh unpacks it beside.
bed_set=(qemu-system-x86 busybox-static kmod cpio xz-utils zstd util-linux)

# What is in source packages only, or not in main, is not among these: tests/suites/debian.py unpacks it beside.
suites_set=(stress-ng python3-twisted python3-tornado python3-pytest python3-pytest-asyncio python3-async-timeout iperf3 wrk memcached
	libmemcached-tools haproxy nginx-light rdmacm-utils libevent-dev dpkg-dev redis-server make gcc xz-utils)

case $want in
build) packages=("${build_set[@]}") ;;
native) packages=("${native_set[@]}") ;;
all) packages=("${build_set[@]}" "${run_set[@]}" "${test_set[@]}" "${native_set[@]}") ;;
esac
[ $bed = no ] || packages+=("${bed_set[@]}")
[ $suites = no ] || packages+=("${suites_set[@]}")
missing=()
for p in $(printf '%s\n' "${packages[@]}" | sort -u); do
	installed "$p" || missing+=("$p")
done
# The runtime of clang's sanitizers and fuzzer is named after clang's version. Where the package lists have not been
# read yet its name is unknown until later.
clang_rt() { apt-cache depends clang 2>/dev/null | sed -n 's/^ *Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p'; }
rt=''
if [ $want = all ]; then
	rt=$(clang_rt)
	[ -z "$rt" ] || installed "$rt" || missing+=("$rt")
fi
# Any Node.js with npm will do; Debian's where there is none.
if [ $want = all ]; then
	command -v node >/dev/null || missing+=(nodejs)
	command -v npm >/dev/null || missing+=(npm)
fi
need_valkey=no
if [ $want = all ] && ! { command -v valkey-server && command -v valkey-cli; } >/dev/null; then
	need_valkey=yes
fi

node_cache=${VKRDMA_NODE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/libvkrdma/node}
node_src=$here/../tests/interop/node
need_node=no
if [ $want = all ] && ! cmp -s "$node_src/package-lock.json" "$node_cache/installed.lock"; then
	need_node=yes
fi

need_sources=no
if [ $suites = yes ] && ! /usr/bin/python3 "$here/../tests/suites/debian.py" --cached; then
	need_sources=yes
fi

if [ ${#missing[@]} = 0 ] && [ $need_valkey = no ] && [ $need_node = no ] && [ $need_sources = no ]; then
	[ $quiet = yes ] || say "Everything needed is installed."
	exit 0
fi
say "To be installed:"
[ ${#missing[@]} = 0 ] || say "  Debian packages: ${missing[*]}"
[ $need_valkey = no ] || say "  Debian packages: valkey-server valkey-tools (from $codename, or $codename-backports)"
[ $need_node = no ] || say "  npm package ioredis for one interoperability test, into $node_cache"
[ $need_sources = no ] || say "  tests of Debian's source packages, unpacked beside (tests/suites/debian.py)"
[ $print = no ] || exit 0
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || fail "not root, and no sudo: ask an administrator to run scripts/install-deps.sh"
	as_root=(sudo)
fi

# ---------------------------------------------------------------- valkey, perhaps from backports
# The address of the archive is the one that serves this machine's own suite.
backports_source() {
	local suite=$codename-backports base keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	base=$(apt-get indextargets 'Created-By: Packages' "Codename: $codename" 'Component: main' |
		awk '$1 == "Repo-URI:" && !uri {uri = $2} END {print uri}')
	[ -n "$base" ] || return 1
	{
		echo "Types: deb"
		echo "URIs: $base"
		echo "Suites: $suite"
		echo "Components: main"
		[ ! -e $keyring ] || echo "Signed-By: $keyring"
	} >"$work/backports.sources"
	{
		echo "Package: *"
		echo "Pin: release n=$suite"
		echo "Pin-Priority: 100"
	} >"$work/backports.pref"
	say "  adding $suite (pinned: nothing is taken from it unless asked for by name)"
	"${as_root[@]}" install -m 644 "$work/backports.sources" /etc/apt/sources.list.d/libvkrdma-backports.sources
	"${as_root[@]}" install -m 644 "$work/backports.pref" /etc/apt/preferences.d/libvkrdma-backports
	updated=no
	apt_update
}

drop_backports() {
	"${as_root[@]}" rm -f /etc/apt/sources.list.d/libvkrdma-backports.sources \
		/etc/apt/preferences.d/libvkrdma-backports
}

install_valkey() {
	local version
	apt_update
	if ! known valkey-server; then
		backports_source || return 1
		known valkey-server || {
			drop_backports
			return 1
		}
	fi
	version=$(apt-cache policy valkey-server | sed -n 's/^  Candidate: //p')
	say "  installing valkey-server $version"
	apt_install "valkey-server=$version" "valkey-tools=$version"
}

# A package that we just installed would start its server at the next boot; the user did not ask for that.
disable_service() {
	[ -d /run/systemd/system ] || return 0
	"${as_root[@]}" systemctl disable --quiet "$1" 2>/dev/null || true
}

if [ ${#missing[@]} -gt 0 ]; then
	for p in "${missing[@]}" clang; do
		known "$p" || apt_update
	done
	if [ $want = all ] && [ -z "$rt" ]; then
		rt=$(clang_rt)
		[ -z "$rt" ] || installed "$rt" || missing+=("$rt")
	fi
	say "  installing ${#missing[@]} packages (about a minute)"
	if ! apt_install "${missing[@]}"; then
		apt_update
		apt_install "${missing[@]}" || fail "apt-get could not install: ${missing[*]}"
	fi
	for p in redis-server memcached haproxy nginx; do
		case " ${missing[*]} " in *" $p "* | *" $p-light "*) disable_service "$p" ;; esac
	done
fi
if [ $need_valkey = yes ]; then
	if install_valkey; then
		disable_service valkey-server
	else
		say "  valkey-server is not to be had from this machine's archive: redis-server is used instead"
	fi
fi

# ---------------------------------------------------------------- ioredis
if [ $need_node = yes ]; then
	say "  installing ioredis into $node_cache"
	rm -rf "$node_cache"
	mkdir -p "$node_cache"
	cp "$node_src/package.json" "$node_src/package-lock.json" "$node_cache/"
	if (cd "$node_cache" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error </dev/null) \
		>"$work/npm.log" 2>&1; then
		cp "$node_src/package-lock.json" "$node_cache/installed.lock"
	else
		tail -n 5 "$work/npm.log" >&2
		say "  warning: npm could not install ioredis: its test will be skipped, with this reason"
	fi
fi
if [ $need_sources = yes ]; then
	/usr/bin/python3 "$here/../tests/suites/debian.py" || say "  warning: suites that need these say so, and are not run"
fi
say "Installed."

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Runs the test bed's lists on real rdma-core: in a virtual machine that has a soft-RoCE device, or on this machine's own.
#
#   scripts/testbed.sh [--list core|full|bench] [--only NAME]... [--native] [OPTIONS]
#
#   --list core     what every change is tested with: some minutes (the default)
#   --list full     everything
#   --list bench    not tests: quick figures for docs/performance.md, left in FOLDER/testbed/bench-*.json
#   --only NAME     one test of the lists, or all those that match the pattern: --only 'conf.io_*'; may be repeated
#   --names         print the names and stop
#   --run COMMAND   instead of a list: run a shell command, with the device set up
#   --shell         instead of a list: a shell in the guest, on this terminal
#   --native        no guest: this machine's RDMA device, or one made with rdma_rxe
#   --build FOLDER  what is tested (default: build/, made by this script)
#   --no-build      it is built already
#   --no-install    do not install missing Debian packages first
#   --timeout S     end the guest after S seconds (default 1500, else 14400)
#   --kernel PKG    another of Debian's kernel packages than the one linux-image-amd64 depends on
#
# The guest is made of Debian's kernel, kept in ~/.cache/libvkrdma/bed, and of this machine's own files, which it cannot
# change. Results, logs and the guest's console are left in FOLDER/testbed. Exit code 0: every test passed. See docs/testbed.md.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$PATH:/usr/sbin:/sbin
list=core only=() mode=guest action=list command='' build='' make=yes install=yes limit='' kernel=''
while [ $# -gt 0 ]; do
	case $1 in
	--list | --only | --run | --build | --timeout | --kernel)
		[ $# -gt 1 ] || {
			echo "testbed.sh: $1 needs a value (see --help)" >&2
			exit 2
		}
		;;
	esac
	case $1 in
	--list)
		list=$2
		shift
		;;
	--only)
		only+=("$2")
		shift
		;;
	--run)
		action=run command=$2
		shift
		;;
	--build)
		build=$2
		shift
		;;
	--timeout)
		limit=$2
		shift
		;;
	--kernel)
		kernel=$2
		shift
		;;
	--shell) action=shell ;;
	--names) action=names ;;
	--native) mode=native ;;
	--no-build) make=no ;;
	--no-install) install=no ;;
	-h | --help)
		sed -n '3,25s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "testbed.sh: unknown option $1 (see --help)" >&2
		exit 2
		;;
	esac
	shift
done
case $list in
core) : "${limit:=1500}" ;;
full | bench) : "${limit:=14400}" ;;
*)
	echo "testbed.sh: --list core, full or bench" >&2
	exit 2
	;;
esac

fail() {
	printf 'testbed.sh: %s\n' "$*" >&2
	exit 1
}
say() { printf '== [%3d s] %s\n' $SECONDS "$*"; }

if [ $install = yes ] && [ $action != names ]; then
	set -- --quiet
	[ $mode = native ] || set -- --quiet --bed
	"$root/scripts/install-deps.sh" "$@"
fi
[ $list != bench ] || [ $install = no ] || "$root/scripts/rsocket.sh" >/dev/null
if [ -z "$build" ]; then
	build=$root/build
	if [ $make = yes ]; then
		say "building"
		log=$(mktemp)
		trap 'rm -f "$log"' EXIT
		(cd "$root" && cmake --preset release && cmake --build --preset release) >"$log" 2>&1 || {
			tail -n 30 "$log"
			fail "the build failed"
		}
	fi
fi
[ -e "$build/libvkrdma.so" ] || fail "$build/libvkrdma.so is missing: build it first"
build=$(cd "$build" && pwd)
out=$build/testbed
runner=(/usr/bin/python3 "$root/tests/bed/run.py" --src "$root" --build "$build" --out "$out" --list "$list")
for name in "${only[@]}"; do runner+=(--only "$name"); done
[ $action != run ] || runner+=(--run "$command")

mkdir -p "$out"
exec 9>"$out.lock"
flock -n 9 || fail "another run uses $out"
find "$out" -mindepth 1 -delete
# Which tests of the build can run on a device is read here: the guest is slow.
ctest --test-dir "$build" --show-only=json-v1 >"$out/ctest.json"
if [ $action = names ]; then
	exec "${runner[@]}" --names
fi
names=$("${runner[@]}" --names) # an unknown name is told before anything starts
# Peers that are built from source are built here: the guest is slow, and has no network.
if grep -qE '^[a-z]+  (native|traps)\.' <<<"$names"; then
	native=("$root/scripts/build-native.sh")
	[ $install = yes ] || native+=(--no-install)
	"${native[@]}" --cached >/dev/null 2>&1 || say "building Valkey with native RDMA"
	"${native[@]}" >/dev/null || fail "the native peers could not be built"
	[ $list = core ] || "${native[@]}" --variant keepalive-fast >/dev/null || fail "the native peers could not be built"
fi

if [ $mode = native ]; then
	[ $action != shell ] || fail "--shell is for the guest"
	exec timeout --foreground -k 30 "$limit" "$root/scripts/testbed/native.sh" "$root/tests/bed/device.sh" "${runner[@]}"
fi

# ---------------------------------------------------------------- the guest
for program in qemu-system-x86_64 busybox modprobe depmod cpio setpriv; do
	command -v $program >/dev/null || fail "$program is missing: run scripts/install-deps.sh --bed"
done
guest=$("$root/scripts/testbed/make-guest.sh" $kernel)

# A device node alone proves nothing: without the processor's support the guest would never start.
# Copies by "rep movsb" are emulated a byte at a time: without that feature the guest copies more than twice as fast.
accel=tcg,thread=multi,tb-size=512 cpu=max,la57=off,erms=off,fsrm=off
if grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo && [ -r /dev/kvm ] && [ -w /dev/kvm ] && (: <>/dev/kvm) 2>/dev/null; then
	accel=kvm cpu=host
fi
cpus=$(nproc)
[ "$cpus" -le 2 ] || cpus=2
memory=${BED_MEMORY:-2048}

printf '%q ' "${runner[@]}" >"$out/command"
{
	printf 'export %s=%q\n' HOME "$HOME" XDG_CACHE_HOME "${XDG_CACHE_HOME:-}" VKRDMA_NODE_CACHE "${VKRDMA_NODE_CACHE:-}" \
		BED_DEVICE_SCRIPT "$root/tests/bed/device.sh" BED_OUT "$out" BED_ACTION "$action" \
		BED_SIZE "$(stty size 2>/dev/null || echo 50 150)"
} >"$out/environment"
# Files under /tmp and the like are behind the guest's own; those that are needed there are shown through.
printf '%s\n' "$root" "$build" "$HOME" "${XDG_CACHE_HOME:-}" | grep -E '^/(tmp|run|dev/shm)/' >"$out/through" || true

stop() {
	[ -z "${qemu:-}" ] || kill -KILL "$qemu" 2>/dev/null || true
	[ -z "${saved:-}" ] || stty "$saved" 2>/dev/null || true
}
trap stop EXIT
trap 'echo "testbed.sh: interrupted" >&2; exit 130' INT TERM HUP

if [ $action = shell ]; then
	[ -t 0 ] || fail "--shell needs a terminal"
	saved=$(stty -g)
	input=/dev/tty limit=infinity
	stty raw -echo
else
	input=/dev/null
	say "starting the guest (${accel%%,*}, $(basename "$guest"))"
fi
# The guest dies with this script, whatever ends it.
# shellcheck disable=SC2094
setpriv --pdeathsig KILL qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -M q35 -accel $accel \
	-cpu $cpu -smp "$cpus" -m "$memory" -kernel "$guest/kernel" -initrd "$guest/initrd" \
	-serial "file:$out/console" -chardev stdio,id=out,signal=off -serial chardev:out \
	-fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
	-device virtio-9p-pci,fsdev=root,mount_tag=root \
	-fsdev "local,id=out,path=$out,security_model=none" -device virtio-9p-pci,fsdev=out,mount_tag=out \
	-append "console=ttyS0 quiet panic=-1 nokaslr mitigations=off audit=0 nowatchdog rcupdate.rcu_expedited=1 random.trust_cpu=on bed_out=$out" \
	<$input 9>&- 2>"$out/qemu" &
qemu=$!
(
	trap - EXIT INT TERM HUP
	exec 9>&-
	exec setpriv --pdeathsig KILL sleep "$limit"
) &
clock=$!
first=0
wait -n -p first $qemu $clock || true
if [ "$first" = "$clock" ]; then
	echo
	echo "testbed.sh: the guest did not finish in $limit s"
else
	kill $clock 2>/dev/null || true
fi
stop
wait $qemu 2>/dev/null || true
qemu=
if [ -s "$out/status" ]; then
	status=$(cat "$out/status")
else
	status=1
	echo "testbed.sh: the guest ended without a result. Its console ($out/console):"
	cat "$out/qemu"
	tr -d '\r' <"$out/console" | tail -n 40
fi
exit "$status"

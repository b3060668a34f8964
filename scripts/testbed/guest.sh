#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Runs in the guest as its first real program: sets the machine up, runs what was asked for, writes the status, ends the guest.
out=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=${TERM:-linux}
. "$out/environment"
[ -n "$XDG_CACHE_HOME" ] || unset XDG_CACHE_HOME
[ -n "$VKRDMA_NODE_CACHE" ] || unset VKRDMA_NODE_CACHE
trap '' INT QUIT TSTP
stty raw -echo <>/dev/ttyS1
ln -sfT /proc/self/fd /dev/fd
for n in 0,stdin 1,stdout 2,stderr; do ln -sfT "fd/${n%,*}" "/dev/${n#*,}"; done
hostname testbed
ip link set lo up
# As systemd would have it.
ulimit -Hn 524288
ulimit -Sn 1024
ulimit -l unlimited
ulimit -c 0
sysctl -qw kernel.printk='7 4 1 7' net.ipv4.ip_unprivileged_port_start=1024
status=1
if "$BED_DEVICE_SCRIPT" up >/dev/ttyS1 2>&1; then
	eval "$("$BED_DEVICE_SCRIPT" env)"
	if [ "$BED_ACTION" = shell ]; then
		stty sane rows "${BED_SIZE% *}" cols "${BED_SIZE#* }" <>/dev/ttyS1
		"$BED_DEVICE_SCRIPT" env >/dev/ttyS1
		setsid -c -w bash -i <>/dev/ttyS1 >&0 2>&1
		status=$?
	else
		eval "$(cat "$out/command")" </dev/null >/dev/ttyS1 2>&1
		status=$?
	fi
fi
echo $status >"$out/status"
sync
echo b >/proc/sysrq-trigger
sleep 60

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# native.sh DEVICE-SCRIPT RUNNER...: the test list on this machine. A device that is there is used as it is; where there is none
# one is made with rdma_rxe, and taken away at the end.
set -euo pipefail
device=$1
shift
PATH=$PATH:/usr/sbin:/sbin
if ! "$device" find; then
	[ "$(id -u)" = 0 ] || {
		echo "testbed.sh: no RDMA device with an address here, and only root can make one: run scripts/testbed.sh --native as root" >&2
		exit 1
	}
	# A module may be there already, or be part of the kernel.
	for module in rdma_rxe ib_uverbs rdma_ucm; do
		[ -d /sys/module/$module ] || modprobe -q $module 2>/dev/null || module=
		[ -n "$module" ] || break
	done
	[ -n "$module" ] || {
		echo "testbed.sh: no RDMA device here, and this kernel cannot load rdma_rxe: run scripts/testbed.sh without --native" >&2
		exit 1
	}
	trap '"$device" down' EXIT
	trap 'exit 130' INT TERM HUP
	"$device" up
fi
env=$("$device" env)
eval "$env"
"$@" </dev/null

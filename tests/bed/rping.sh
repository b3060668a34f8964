#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# rdma-core's own ping between two processes, by IPv4 and by IPv6: the device works without anything of ours.
set -eu
for address in "$BED_ADDR4" "$BED_ADDR6"; do
	rping -s -a "$address" -C 10 &
	server=$!
	trap 'kill $server 2>/dev/null' EXIT
	for _ in $(seq 50); do
		timeout 10 rping -c -a "$address" -C 10 && break
		[ $? != 124 ] || exit 1 # nobody answers
		sleep 0.2
	done
	wait $server
	trap - EXIT
	echo "$address answered"
done

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# The device under test.
#   device.sh up     makes a soft-RoCE device on a network interface of its own, or mends what a test broke
#   device.sh down   takes both away
#   device.sh find   succeeds when some RDMA device here has an active port and an address
#   device.sh env    prints the variables that tests read
set -u
PATH=$PATH:/usr/sbin:/sbin
netdev=vkrbed0 rdmadev=rxe_vkrbed0 addr4=10.109.1.1 addr6=fd09:6b72::1
# The same two as the kernel writes them in the device's table.
gid4=0000:0000:0000:0000:0000:ffff:0a6d:0101 gid6=fd09:6b72:0000:0000:0000:0000:0000:0001

fail() {
	echo "device.sh: $*" >&2
	exit 1
}

have() { [ -e "/sys/class/infiniband/$rdmadev" ]; }

up() {
	[ -e /sys/class/net/$netdev ] || ip link add $netdev type dummy || fail "cannot make an interface of type dummy"
	# Room for a 4,096-byte RDMA packet with its headers. On lo the connection manager does not work.
	ip link set $netdev mtu 4200 up || fail "cannot set up $netdev"
	ip -4 addr show dev $netdev | grep -q "$addr4/" || ip addr add $addr4/24 dev $netdev || fail "no IPv4 address"
	# The address is lost when the link goes down. nodad: it can be used at once.
	ip -6 addr show dev $netdev | grep -q "$addr6/" || ip -6 addr add $addr6/64 dev $netdev nodad || fail "no IPv6 address"
	have || rdma link add $rdmadev type rxe netdev $netdev || fail "cannot make a soft-RoCE device"
	for _ in $(seq 100); do
		grep -qs ACTIVE /sys/class/infiniband/$rdmadev/ports/1/state && has_gid $gid4 && has_gid $gid6 && return 0
		sleep 0.1
	done
	fail "$rdmadev did not become active with both addresses"
}

has_gid() { grep -qsFx "$1" /sys/class/infiniband/$rdmadev/ports/1/gids/*; }

down() {
	! have || rdma link delete $rdmadev
	[ ! -e /sys/class/net/$netdev ] || ip link delete $netdev
}

# The first device with an active port whose network interface has addresses.
other() {
	local d n
	for d in /sys/class/infiniband/*; do
		grep -qs ACTIVE "$d"/ports/1/state || continue
		for n in "$d"/ports/1/gid_attrs/ndevs/0 "$d"/device/net/*; do
			case $n in */ndevs/0) n=$(cat "$n" 2>/dev/null) ;; *) n=$(basename "$n") ;; esac
			[ -n "$n" ] && [ -e "/sys/class/net/$n" ] || continue
			addr4=$(ip -4 -o addr show dev "$n" scope global | awk '{sub("/.*", "", $4); print $4; exit}')
			[ -n "$addr4" ] || continue
			addr6=$(ip -6 -o addr show dev "$n" scope global | awk '{sub("/.*", "", $4); print $4; exit}')
			rdmadev=$(basename "$d") netdev=$n
			return 0
		done
	done
	return 1
}

case ${1:-} in
up) up ;;
down) down ;;
find) have || other ;;
env)
	own=1
	have || { own=0 && other; } || fail "there is no RDMA device"
	printf 'export BED_NETDEV=%s BED_RDMADEV=%s BED_ADDR4=%s BED_ADDR6=%s BED_OWN=%s\n' \
		"$netdev" "$rdmadev" "$addr4" "$addr6" "$own"
	;;
*)
	sed -n '4,8s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Programs that nobody here wrote, straight from Debian's packages, on softverbs by LD_LIBRARY_PATH: rdmacm-utils,
# ibverbs-utils, perftest. Each is bounded and its output is checked.
#
#   strangers.sh SOFTLIB [NAME]...      SOFTLIB: the folder with libibverbs.so.1 and librdmacm.so.1
#
# Not run, because they need what softverbs does not offer (RC only, verbs and CM only):
#   ibv_uc_pingpong, ibv_ud_pingpong    UC and UD queue pairs
#   udaddy, mckey                       UD and multicast
#   ibv_xsrq_pingpong, rdma_xserver, rdma_xclient   XRC
#   rstream, rcopy, riostream           rsocket, another library inside librdmacm
#   cmtime                              needs netlink and thousands of connections on a device of its own; test_scale does that
set -uo pipefail

softlib=$(readlink -f "${1:?folder of libibverbs.so.1}")
shift
only=("$@")
work=$(mktemp -d)
pids=()
tidy() {
	local p
	for p in "${pids[@]}"; do kill -KILL "$p" 2>/dev/null; done
	rm -rf "$work"
}
trap tidy EXIT
pass=0 failed=() skipped=()
limit=25

soft() {
	LD_LIBRARY_PATH=$softlib exec timeout -k 2 "$limit" "$@"
}

# A port that no TCP listener has; the RDMA port space is asked for the same number.
port=$((20000 + RANDOM % 20000))
next_port() {
	while :; do
		port=$((port + 1))
		grep -qi ":$(printf %04X "$port") " /proc/net/tcp /proc/net/tcp6 2>/dev/null || return
	done
}

tcp_listens() {
	grep -qi ":$(printf %04X "$port") 0\+:0000 0A" /proc/net/tcp ||
		grep -qi ":$(printf %04X "$port") 0\+:0000 0A" /proc/net/tcp6
}

# softverbs holds a port of the RDMA port space by an abstract socket. perftest's server makes its listener twice, so one
# that is there may go again: wait until the same socket has been seen for a while with the server asleep.
cm_listens() {
	local inode seen='' still=0 pid
	while [ $still -lt 5 ] && kill -0 "$server" 2>/dev/null; do
		sleep 0.03
		inode=$(grep -E "@vkrdma-soft/[0-9]+/106/[0-9a-f.:]+/$port(\$|/)" /proc/net/unix | cut -d' ' -f7)
		pid=$(pgrep -P "$server")
		if [ -n "$inode" ] && [ "$inode" = "$seen" ] && grep -q '^State:.*S' "/proc/$pid/status" 2>/dev/null; then
			still=$((still + 1))
		else
			still=0
		fi
		seen=$inode
	done
}

# wanted NAME BINARY: whether this case is to run and can
wanted() {
	local w
	if [ ${#only[@]} -gt 0 ]; then
		for w in "${only[@]}"; do [ "$w" = "$1" ] && break; done
		[ "$w" = "$1" ] || return 1
	fi
	command -v "$2" >/dev/null && return 0
	skipped+=("$1: $2 is not installed")
	return 1
}

verdict() { # NAME OK REASON
	if [ "$2" = 0 ]; then
		echo "ok   $1"
		pass=$((pass + 1))
	else
		echo "FAIL $1: $3"
		sed 's/^/     server: /' "$work/server" 2>/dev/null | tail -15
		sed 's/^/     client: /' "$work/client" 2>/dev/null | tail -15
		failed+=("$1")
	fi
}

# alone NAME PATTERN COMMAND...: exit 0 and the pattern in its output
alone() {
	local name=$1 pattern=$2 rc
	shift 2
	wanted "$name" "$1" || return 0
	: >"$work/server"
	(soft "$@") >"$work/client" 2>&1
	rc=$?
	[ "$rc" = 0 ] || { verdict "$name" 1 "exit code $rc"; return; }
	grep -Eq "$pattern" "$work/client"
	verdict "$name" $? "no match of $pattern"
}

# The server runs in the background.
start_server() {
	(soft "$@") >"$work/server" 2>&1 &
	server=$!
	pids+=("$server")
}

# pair READY SERVER... -- CLIENT...: one run, @P is the port; exit codes in rc and rc_server
pair() {
	local ready=$1
	local -a srv=() cli=()
	shift
	next_port
	while [ "$1" != -- ]; do srv+=("${1//@P/$port}") && shift; done
	shift
	while [ $# -gt 0 ]; do cli+=("${1//@P/$port}") && shift; done
	start_server "${srv[@]}"
	while ! "${ready}_listens" && kill -0 "$server" 2>/dev/null; do sleep 0.02; done
	# With -R perftest's client takes it that its second request comes later than the server's second listen().
	(VKRDMA_SOFT_FAULT=slow_request=400 soft "${cli[@]}") >"$work/client" 2>&1
	rc=$?
	[ "$rc" = 0 ] || kill "$server" 2>/dev/null
	wait "$server"
	rc_server=$?
}

# both NAME READY PATTERN SERVER... -- CLIENT...: both exit 0, the pattern is in the output of one. READY: where the server
# listens, tcp or cm. A client that was refused came too early all the same; perftest's then goes on with a freed id and
# crashes or worse, so both are started anew.
both() {
	local name=$1 ready=$2 pattern=$3 rc rc_server try
	shift 3
	wanted "$name" "$1" || return 0
	for try in {1..8}; do
		pair "$ready" "$@" 2>/dev/null
		if [ "$rc" = 0 ] || ! grep -Eq 'REJECTED|refused' "$work/client"; then break; fi
		sleep "0.$try"
	done
	[ "$rc" = 0 ] || { verdict "$name" 1 "client's exit code $rc"; return; }
	[ "$rc_server" = 0 ] || { verdict "$name" 1 "server's exit code $rc_server"; return; }
	cat "$work/server" "$work/client" >"$work/both"
	grep -Eq "$pattern" "$work/both"
	verdict "$name" $? "no match of $pattern"
}

a=127.0.0.1

alone devices 'soft0' ibv_devices
alone devinfo 'PORT_ACTIVE' ibv_devinfo
alone devinfo-v 'max_qp:' ibv_devinfo -v

# -V validates what comes back; -S the size; the server's -P serves for ever, so it is not used.
both rping cm 'ping data: rdma-ping-' rping -s -v -V -C 50 -a $a -p @P -- rping -c -v -V -C 50 -a $a -p @P
both rping-64k cm 'client DISCONNECT EVENT|DISCONNECT' rping -s -V -S 65000 -C 100 -a $a -p @P -- \
	rping -c -d -V -S 65000 -C 100 -a $a -p @P
both rping-6 cm 'ping data: rdma-ping-' rping -s -v -V -C 10 -a ::1 -p @P -- rping -c -v -V -C 10 -a ::1 -p @P

# -c checks the received bytes; -e sleeps for completions; -n iterations.
both rc_pingpong tcp '2000 iters in' ibv_rc_pingpong -g 0 -c -n 2000 -p @P -- ibv_rc_pingpong -g 0 -c -n 2000 -p @P $a
both rc_pingpong-e tcp '2000 iters in' ibv_rc_pingpong -g 0 -c -e -n 2000 -p @P -- \
	ibv_rc_pingpong -g 0 -c -e -n 2000 -p @P $a
both rc_pingpong-1M tcp '200 iters in' ibv_rc_pingpong -g 0 -c -e -s 1048576 -n 200 -p @P -- \
	ibv_rc_pingpong -g 0 -c -e -s 1048576 -n 200 -p @P $a
both srq_pingpong tcp 'iters in' ibv_srq_pingpong -g 0 -q 4 -n 1000 -p @P -- ibv_srq_pingpong -g 0 -q 4 -n 1000 -p @P $a
both srq_pingpong-e tcp 'iters in' ibv_srq_pingpong -g 0 -e -q 4 -n 1000 -p @P -- \
	ibv_srq_pingpong -g 0 -e -q 4 -n 1000 -p @P $a

# perftest, addresses over TCP and then over rdma_cm (-R). -F: no complaint about the CPU's frequency.
perf() { # NAME PATTERN OPTIONS...
	local tool=$1 pattern=$2
	shift 2
	both "$tool${*:+ $*}" tcp "$pattern" "$tool" -F -x 0 -p @P "$@" -- "$tool" -F -x 0 -p @P "$@" $a
	both "$tool -R${*:+ $*}" cm "$pattern" "$tool" -F -R -p @P "$@" -- "$tool" -F -R -p @P "$@" $a
}

perf ib_write_bw '65536 +1000 ' -s 65536 -n 1000
perf ib_write_bw '^ 64 +20000 ' -s 64 -n 5000 -q 4
perf ib_send_bw '65536 +1000 ' -s 65536 -n 1000
perf ib_send_bw '4096 +1000 ' -s 4096 -n 1000 -e
perf ib_read_bw '65536 +1000 ' -s 65536 -n 1000
perf ib_send_lat '^ 64 +500 ' -s 64 -n 500
perf ib_send_lat '^ 64 +500 ' -s 64 -n 500 -e
perf ib_write_lat '^ 64 +1000 ' -s 64 -n 1000
perf ib_read_lat '^ 64 +500 ' -s 64 -n 500
perf ib_atomic_lat '^ 8 +500 ' -n 500

# -c connections, -C messages each, -S size
both ucmatose cm 'return status 0' ucmatose -b $a -c 5 -C 20 -S 1000 -p @P -- ucmatose -s $a -c 5 -C 20 -S 1000 -p @P
both rdma_server cm 'end 0' rdma_server -p @P -- rdma_client -s $a -p @P

for s in "${skipped[@]}"; do echo "skip $s"; done
for s in 'ibv_uc_pingpong, ibv_ud_pingpong, udaddy, mckey: UC, UD, multicast' 'ibv_xsrq_pingpong, rdma_xserver: XRC' \
	'rstream, rcopy, riostream: rsocket'; do echo "out of scope: $s"; done
echo "$pass passed, ${#failed[@]} failed, ${#skipped[@]} skipped"
[ ${#failed[@]} = 0 ] || { printf 'failed: %s\n' "${failed[@]}"; exit 1; }
[ $pass -gt 0 ] || exit 77

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# From a fresh clone to Valkey over RDMA, on Debian 12 or 13.
#
#   scripts/quickstart.sh [--no-install] [--provider soft|verbs] [--requests N] [--keep]
#
#   --no-install  use what is there; without it missing Debian packages are named and installed (sudo only for that)
#   --provider    soft: softverbs, RDMA in user space for machines without a device; verbs: a real device.
#                 Without the option a real device is used where there is one.
#   --requests N  requests of each benchmark run (default 50000)
#   --keep        keep the folder with the logs
#
# Builds into build/, starts Debian's own valkey-server twice on free ports (one plain, one under the library), drives both with
# unmodified clients, and prints requests a second by TCP and by RDMA, and what vkrdma-stat saw. Fails when the bytes did not
# go by RDMA. Everything it starts is stopped at its end, also when interrupted.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
install=yes provider='' requests=50000 keep=no

while [ $# -gt 0 ]; do
	case $1 in
	--no-install) install=no ;;
	--provider)
		provider=${2:-}
		shift
		;;
	--requests)
		requests=${2:-}
		shift
		;;
	--keep) keep=yes ;;
	-h | --help)
		sed -n '3,17s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "quickstart.sh: unknown option $1 (see --help)" >&2
		exit 2
		;;
	esac
	shift
done
case $provider in '' | soft | verbs) ;; *)
	echo "quickstart.sh: --provider is soft or verbs" >&2
	exit 2
	;;
esac
case $requests in '' | *[!0-9]*)
	echo "quickstart.sh: --requests takes a number" >&2
	exit 2
	;;
esac

bold='' plain=''
if [ -t 1 ]; then
	bold=$'\033[1m' plain=$'\033[0m'
fi
step() { printf '\n%s==> %s%s\n' "$bold" "$*" "$plain"; }
fail() {
	printf '\nquickstart.sh: %s\n' "$*" >&2
	exit 1
}

work=$(mktemp -d "${TMPDIR:-/tmp}/vkrdma-quickstart.XXXXXX")
pids=()
cleanup() {
	local status=$?
	trap - EXIT INT TERM HUP
	local p
	for p in "${pids[@]}"; do
		kill "$p" 2>/dev/null || true
	done
	for p in "${pids[@]}"; do
		for _ in $(seq 50); do
			kill -0 "$p" 2>/dev/null || break
			sleep 0.1
		done
		kill -9 "$p" 2>/dev/null || true
		wait "$p" 2>/dev/null || true
	done
	if [ $status -ne 0 ] && [ $status -ne 130 ]; then
		for log in "$work"/*.log; do
			[ -s "$log" ] || continue
			printf '\n---- end of %s\n' "$(basename "$log")" >&2
			tail -n 15 "$log" >&2
		done
	fi
	if [ $keep = yes ]; then
		echo "Logs are kept in $work"
	else
		rm -rf "$work"
	fi
	exit $status
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# slow COMMAND...: runs it with its output in a log and a dot every two seconds.
slow() {
	local log=$1 pid status=0
	shift
	"$@" >"$log" 2>&1 </dev/null &
	pid=$!
	pids+=("$pid")
	while kill -0 $pid 2>/dev/null; do
		printf '.'
		sleep 2
	done
	wait $pid || status=$?
	echo
	return $status
}

# ---------------------------------------------------------------- install and build
if [ $install = yes ]; then
	step "1/6 What is needed (Debian packages)"
	scripts/install-deps.sh
else
	step "1/6 Nothing is installed (--no-install)"
fi

step "2/6 Build into build/ (about a minute)"
{ command -v cmake && command -v ninja; } >/dev/null || fail "cmake and ninja are needed: run without --no-install"
slow "$work/configure.log" cmake --preset release || fail "cmake failed"
slow "$work/build.log" cmake --build build --target vkrdma vkrdma-soft vkrdma-run vkrdma-stat || fail "the build failed"
run=$root/build/vkrdma-run stat=$root/build/vkrdma-stat
for f in "$run" "$stat" build/libvkrdma.so; do
	[ -e "$f" ] || fail "the build left no $f"
done
ls -l build/libvkrdma.so | awk '{print "build/libvkrdma.so:", $5, "bytes"}'

# ---------------------------------------------------------------- programs, device, ports
if command -v valkey-server >/dev/null && command -v valkey-cli >/dev/null && command -v valkey-benchmark >/dev/null; then
	kind=valkey
elif command -v redis-server >/dev/null && command -v redis-benchmark >/dev/null; then
	kind=redis
	echo "valkey-server is not to be had here: redis-server stands in"
else
	fail "neither valkey-server nor redis-server is installed: run without --no-install"
fi

# The first IPv4 address of a network device that has an RDMA device behind it.
rdma_address() {
	local ndev a
	for ndev in $(cat /sys/class/infiniband/*/ports/*/gid_attrs/ndevs/* 2>/dev/null | sort -u); do
		a=$(ip -4 -o addr show dev "$ndev" 2>/dev/null | awk '{sub("/.*", "", $4); print $4; exit}')
		[ -z "$a" ] || {
			echo "$a"
			return 0
		}
	done
	return 1
}

host=127.0.0.1
if [ -z "$provider" ]; then
	if rdma_address >/dev/null; then provider=verbs; else provider=soft; fi
fi
soft=()
if [ "$provider" = soft ]; then
	soft=(--soft)
	what="softverbs (RDMA in user space on this machine; no device needed)"
else
	host=$(rdma_address) || fail "no network address with an RDMA device behind it; try build/vkrdma-run --check"
	what="the RDMA device behind $host ($(ls /sys/class/infiniband | tr '\n' ' '))"
fi

free_port() {
	local p
	while :; do
		p=$((15000 + RANDOM % 17000))
		(exec 3<>"/dev/tcp/$host/$p") 2>/dev/null || {
			echo $p
			return
		}
	done
}

wait_for() { # PORT PID LOG
	for _ in $(seq 100); do
		kill -0 "$2" 2>/dev/null || fail "the server on port $1 ended: see $3"
		[ "$("$kind-cli" -h "$host" -p "$1" PING 2>/dev/null)" != PONG ] || return 0
		sleep 0.1
	done
	fail "the server on port $1 does not answer"
}

server() { # PORT LOG PREFIX...
	local port=$1 log=$2
	shift 2
	mkdir -p "$work/$port"
	"$@" "$kind-server" --port "$port" --bind "$host" --dir "$work/$port" --save '' --protected-mode no >"$log" 2>&1 </dev/null &
	pids+=($!)
	wait_for "$port" $! "$log"
}

step "3/6 Start $kind-server: $("$kind-server" --version | grep -o 'v=[0-9.]*' | cut -c3-), unmodified, twice"
tcp_port=$(free_port)
server "$tcp_port" "$work/server-tcp.log"
echo "plain:    $kind-server --port $tcp_port"
rdma_port=$(free_port)
server "$rdma_port" "$work/server-rdma.log" "$run" "${soft[@]}" --listen "$rdma_port"
server_pid=${pids[-1]}
echo "carried:  vkrdma-run ${soft[*]} --listen $rdma_port $kind-server --port $rdma_port"
echo "provider: $what"
echo "Port 6379 is not used."

client=("$run" "${soft[@]}" --connect "$rdma_port")

# A client that fell back to TCP would prove nothing: forbid it.
export VKRDMA_FALLBACK=none

# ---------------------------------------------------------------- drive
step "4/6 Unmodified clients over RDMA"
got=$(timeout --foreground 20 "${client[@]}" "$kind-cli" -h "$host" -p "$rdma_port" SET greeting "hello over RDMA writes") || fail "$kind-cli: $got"
echo "$kind-cli SET greeting ...   $got"
got=$(timeout --foreground 20 "${client[@]}" "$kind-cli" -h "$host" -p "$rdma_port" GET greeting) || true
[ "$got" = "hello over RDMA writes" ] || fail "$kind-cli GET returned: $got"
echo "$kind-cli GET greeting       $got"
if /usr/bin/python3 -c 'import redis' 2>/dev/null; then
	cat >"$work/client.py" <<'PYTHON'
import hashlib, os, sys
import redis
r = redis.Redis(sys.argv[1], int(sys.argv[2]))
value = os.urandom(8 << 20)
r.set("blob", value)
back = r.get("blob")
assert back == value, "the value came back changed"
pipe = r.pipeline(transaction=False)
for i in range(1000):
    pipe.set(f"py:{i}", i)
pipe.execute()
assert r.mget([f"py:{i}" for i in range(1000)]) == [str(i).encode() for i in range(1000)]
print("python3-redis: 8 MiB there and back intact (sha256 %s...), 1000 keys by pipeline and MGET" %
      hashlib.sha256(back).hexdigest()[:12])
PYTHON
	timeout --foreground 60 "${client[@]}" /usr/bin/python3 "$work/client.py" "$host" "$rdma_port" || fail "python3-redis failed over RDMA"
else
	fail "Debian's python3-redis is not installed: run without --no-install"
fi
got=$(env -u VKRDMA_FALLBACK "$kind-cli" -h "$host" -p "$rdma_port" GET greeting) || true
[ "$got" = "hello over RDMA writes" ] || fail "a client without the library got: $got"
echo "A client without the library on the same port, by TCP: $got"

step "5/6 $kind-benchmark, TCP against RDMA (medians of three runs of $requests requests, taken in turn)"
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }
rows=("-c 50" "-c 50 -P 16" "-c 50 --threads 2")
prefix=()
measure() { # PORT ARGS...: "SET GET" in requests a second, of a benchmark started through prefix
	local port=$1 out n=$requests
	shift
	# With threads the tools look at the clock four times a second only: a short run would measure that.
	case $* in *--threads*) n=$((requests * 4)) ;; esac
	out=$(timeout --foreground 300 "${prefix[@]}" "$kind-benchmark" -h "$host" -p "$port" -t set,get -n "$n" "$@" --csv \
		2>>"$work/benchmark.log") || return 1
	awk -F'"' '$2 == "SET" {s = $4} $2 == "GET" {g = $4} END {if (s + 0 == 0 || g + 0 == 0) exit 1; printf "%d %d\n", s, g}' <<<"$out"
}
printf '\n  %-22s %4s %12s %12s %8s\n' "$kind-benchmark" '' 'TCP' 'RDMA' 'ratio'
median() { sort -n | sed -n '2p'; }
for row in "${rows[@]}"; do
	read -ra args <<<"$row"
	rm -f "$work/tcp" "$work/rdma"
	for _ in 1 2 3; do
		prefix=()
		measure "$tcp_port" "${args[@]}" >>"$work/tcp" || fail "$kind-benchmark $row failed over TCP"
		prefix=("${client[@]}")
		measure "$rdma_port" "${args[@]}" >>"$work/rdma" || fail "$kind-benchmark $row failed or hung over RDMA"
	done
	title=$row column=1
	for command in SET GET; do
		tcp=$(cut -d' ' -f$column "$work/tcp" | median) rdma=$(cut -d' ' -f$column "$work/rdma" | median)
		printf '  %-22s %4s %12d %12d %7sx\n' "$title" $command "$tcp" "$rdma" "$(ratio "$rdma" "$tcp")"
		title='' column=2
	done
done
echo "  (requests a second on this machine now; bench/run.sh measures with care)"

# ---------------------------------------------------------------- evidence
step "6/6 The evidence: what vkrdma-stat says of the server"
"$stat" --json >"$work/stat.json" || fail "vkrdma-stat failed"
/usr/bin/python3 - "$work/stat.json" "$server_pid" <<'PYTHON' || fail "no evidence that the bytes went by RDMA writes"
import json, sys
processes = json.load(open(sys.argv[1]))["processes"]
server = next((p for p in processes if p["pid"] == int(sys.argv[2])), None)
if server is None:
    sys.exit("vkrdma-stat does not know the server")
totals = server["totals"]
print(f"  {server['program']} (pid {server['pid']})")
for listener in server["listeners"]:
    print(f"  listens on {listener['local']}: {listener['transport']}"
          f", accepted {listener.get('accepted_rdma', '?')} by RDMA, {listener.get('accepted_tcp', '?')} by TCP")
names = {"bytes_in": "bytes received by RDMA writes", "bytes_out": "bytes sent by RDMA writes",
         "immediates_in": "RDMA writes with immediate received", "immediates_out": "RDMA writes with immediate sent"}
for key, text in names.items():
    print(f"  {totals[key]:>15,}  {text}")
if not all(totals[key] > 0 for key in names):
    sys.exit("a counter is zero: nothing was carried")
PYTHON

cat <<EOT

Done. To do the same with programs of your own:
  build/vkrdma-run ${soft[*]} --listen PORT SERVER ...
  build/vkrdma-run ${soft[*]} --connect PORT CLIENT ...
  build/vkrdma-stat              what is carried now, and why something is not
  build/vkrdma-run --check       whether this machine has an RDMA device that works
EOT

#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
#
# Builds libvkrdma and runs its tests.
#
#   scripts/test.sh [--tier quick|default|full] [--only SUITE]... [--no-install] [--jobs N]
#
#   --tier quick    release build; unit tests, softverbs, conformance, a small interoperability run: some minutes
#   --tier default  and faults, the differential tester, all interoperability topics: 18 minutes on 2 quiet cores
#   --tier full     and traps, trouble, the largest model, the sanitizers, the second compiler, long runs and large
#                   counts: more than an hour
#   --only SUITE    one suite: build, unit, softverbs, conformance, trouble, model, model-keep, fault, traps, native, fuzz, diff, interop,
#                   asan (with it hostile peers), tsan, clang, or the name of an interoperability topic (values, replica, ...); may be repeated
#   --no-install    do not install missing Debian packages first (scripts/install-deps.sh)
#
# Ends with "N passed, N failed, N skipped"; every skip is listed with its reason. Exit code 0 only when none failed.
set -uo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root" || exit 1
tier=default install=yes jobs=$(nproc) only=()

while [ $# -gt 0 ]; do
	case $1 in
	--tier)
		tier=${2:-}
		shift
		;;
	--only)
		only+=("${2:-}")
		shift
		;;
	--jobs)
		jobs=${2:-}
		shift
		;;
	--no-install) install=no ;;
	-h | --help)
		sed -n '3,17s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*)
		echo "test.sh: unknown option $1 (see --help)" >&2
		exit 2
		;;
	esac
	shift
done
case $tier in
quick | default | full) ;;
*)
	only+=("$tier") # --tier NAME: one suite
	tier=default
	;;
esac

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
trap 'exit 130' INT TERM
export VKR_SKIPS=$results/skips VKR_TIER=$tier PYTHONDONTWRITEBYTECODE=1
: >"$VKR_SKIPS"
started=$SECONDS

say() { printf '\n== [%3d s] %s\n' $((SECONDS - started)) "$*"; }
note() { echo "$1" >>"$results/$2"; }

wanted() {
	[ ${#only[@]} = 0 ] && return 0
	local w o
	for w in "$@"; do
		for o in "${only[@]}"; do
			[ "$w" != "$o" ] || return 0
		done
	done
	return 1
}

# By name, or in the full tier.
named() { { [ "$tier" = full ] || [ ${#only[@]} -gt 0 ]; } && wanted "$@"; }

# build PRESET: configure and compile; a failure counts as one failed test.
build() {
	local preset=$1 log=$results/build-$1.log
	say "building: $preset"
	if cmake --preset "$preset" >"$log" 2>&1 && cmake --build --preset "$preset" -j "$jobs" >>"$log" 2>&1; then
		note "build.$preset" passed
		tail -n 1 "$log"
		return 0
	fi
	grep -nE 'error|FAILED|Error' "$log" | head -n 20
	tail -n 15 "$log"
	note "build.$preset" failed
	return 1
}

# Continuous integration shares its machine: a test that fails there has one more try, and both are printed.
again=()
[ "${CI:-}" != true ] || again=(--repeat until-pass:2)

runs=0
# run FOLDER TITLE CTEST-ARGS...
run() {
	local folder=$1 title=$2 junit how=(--output-on-failure "${again[@]}")
	# It repeats what differs itself, from the same seed; a second run would have other sequences, and hide it. What
	# did not repeat is no failure, but told.
	[ "$title" != diff ] || how=(--verbose)
	shift 2
	if [ "$(ctest --test-dir "$folder" -N "$@" 2>/dev/null | sed -n 's/^Total Tests: //p')" = 0 ]; then
		[ ${#only[@]} = 0 ] || note "$title: no such tests in $folder" failed
		return 0
	fi
	say "$title"
	runs=$((runs + 1))
	junit=$results/junit-$runs.xml
	ctest --test-dir "$folder" "${how[@]}" --output-junit "$junit" "$@" </dev/null
	[ -s "$junit" ] || note "$title: ctest wrote no results" failed
}

# The results of every ctest run: lines for passed, failed and skipped.
collect() {
	/usr/bin/python3 - "$results" <<'PYTHON'
import glob, sys, xml.etree.ElementTree as tree
results = sys.argv[1]
out = {k: open(f'{results}/{k}', 'a') for k in ('passed', 'failed', 'skipped')}
for path in sorted(glob.glob(f'{results}/junit-*.xml')):
    for case in tree.parse(path).iter('testcase'):
        name, status = case.get('name'), case.get('status')
        if status == 'run':
            out['passed'].write(name + '\n')
        elif status == 'disabled':
            out['skipped'].write(f'{name}: disabled in CMakeLists.txt\n')
        elif status == 'notrun':
            skipped = case.find('skipped')
            why = skipped.get('message') if skipped is not None else 'not run'
            text = [l for l in (case.findtext('system-out') or '').splitlines() if 'skip' in l.lower()]
            line = f'{name}: {text[-1].strip() if text else why}\n'
            # A carried run whose native run failed is a failure; a test that said it cannot run here is a skip.
            out['skipped' if 'SKIP_RETURN_CODE' in (why or '') else 'failed'].write(line)
        else:
            out['failed'].write(name + '\n')
PYTHON
	cat "$VKR_SKIPS" >>"$results/skipped"
	touch "$results/passed" "$results/failed"
}

if [ $install = yes ]; then
	say "checking what is installed"
	scripts/install-deps.sh || exit 1
fi

# Peers with RDMA of their own: built once, kept outside the repository.
native_ready() {
	scripts/build-native.sh --cached >/dev/null && return 0
	say "building Valkey with RDMA of its own (once)"
	scripts/build-native.sh --no-install >/dev/null && return 0
	[ ${#only[@]} = 0 ] || note "native Valkey could not be built" failed
	[ ${#only[@]} -gt 0 ] || note "native, traps: native Valkey could not be built (scripts/build-native.sh)" skipped
	return 1
}
# The whole matrix is named (--only native) or full; by default some cells of each sort.
native_cells='^native\.(native-(cli|benchmark)\.valkey|(valkey-cli|python3-redis)\.native)$'
{ [ ${#only[@]} = 0 ] && [ "$tier" != full ]; } || native_cells='^native\.'

rest='interop|peers'
if build release; then
	if { [ "$tier" != quick ] || [ ${#only[@]} -gt 0 ]; } && wanted native traps && native_ready && wanted native; then
		rm -rf build/native-matrix
		run build "native peers" -L '^peers$' -R "$native_cells" -j "$jobs"
		[ ! -d build/native-matrix ] || /usr/bin/python3 tests/native/table.py build/native-matrix
	fi
	# Those of the first run side by side, one more than there are processors: some wait while others calculate.
	for group in "unit softverbs model" conformance trouble fault traps model-keep fuzz diff; do
		chosen=''
		for suite in $group; do
			rest="$rest|$suite"
			case $suite in
			traps | trouble | model-keep) named $suite || continue ;;
			esac
			wanted $suite && chosen="$chosen|$suite"
		done
		case $group in *\ *) beside=$((jobs + 1)) ;; *) beside=$jobs ;; esac
		[ -z "$chosen" ] || run build "${group// /, }" -L "^(${chosen#|})\$" -j "$beside"
	done
	[ ${#only[@]} -gt 0 ] || run build "other tests" -LE "^($rest)\$" -j "$jobs"
	topics=''
	for t in tests/interop/test_*.py; do
		t=$(basename "$t" .py)
		t=${t#test_}
		if [ ${#only[@]} -gt 0 ] && wanted interop "$t"; then
			topics="$topics|$t"
		elif [ ${#only[@]} = 0 ]; then
			case $tier,$t in
			quick,values | quick,commands | quick,ports | quick,death | quick,strangers) topics="$topics|$t" ;;
			quick,*) ;;
			*) topics="$topics|$t" ;;
			esac
		fi
	done
	[ -z "$topics" ] || run build interop -R "^interop\\.(${topics#|})\\." -j "$jobs"
fi

sanitized='unit|softverbs|conformance|fuzz'
[ "$tier" != full ] || sanitized="$sanitized|fault"
if named asan; then
	if build asan; then
		export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
		run build-asan "AddressSanitizer" -L "^($sanitized)\$" -j "$jobs"
		[ "$tier" = full ] || run build-asan "hostile peers, AddressSanitizer" -R '^fault\.hostile$'
		[ "$tier" != full ] || VKR_TIER=quick run build-asan "interop, AddressSanitizer" \
			-R '^interop\.(values|commands|death|ports)\.carried' -FS '.*' -j 1
		unset ASAN_OPTIONS UBSAN_OPTIONS
	fi
fi
if named tsan; then
	if build tsan; then
		# ThreadSanitizer of this age does not know the address layout of newer kernels' randomisation.
		say "ThreadSanitizer"
		runs=$((runs + 1))
		setarch -R ctest --test-dir build-tsan --output-on-failure --output-junit "$results/junit-$runs.xml" \
			-L '^(unit|softverbs|conformance)$' -j "$jobs" </dev/null
	fi
fi
if named clang; then
	build clang
fi

collect
say "summary (tier $tier)"
if [ -s "$results/skipped" ]; then
	echo "Skipped:"
	sed 's/^/  /' "$results/skipped"
fi
if [ -s "$results/failed" ]; then
	echo "Failed:"
	sed 's/^/  /' "$results/failed"
fi
count() { if [ -e "$results/$1" ]; then wc -l <"$results/$1"; else echo 0; fi; }
passed=$(count passed) failed=$(count failed)
[ "$passed" -gt 0 ] || [ "$failed" -gt 0 ] || { echo "no test ran" && failed=1; }
echo
echo "$passed passed, $failed failed, $(count skipped) skipped"
[ "$failed" = 0 ]

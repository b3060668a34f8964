# SPDX-License-Identifier: BSD-2-Clause
"""Benchmarks of libvkrdma: see bench/README.md."""
import argparse
import json
import os
import signal
import subprocess
import sys
import time

import docs
import part_connections
import part_cpu
import part_crossing
import part_instructions
import part_large
import part_latency
import part_native
import part_pingpong
import part_rsocket
import part_syscalls
import part_valkey
from common import Bench, Failed, machine, progress, realtime

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = {'pingpong': part_pingpong, 'latency': part_latency, 'valkey': part_valkey, 'large': part_large, 'connections': part_connections,
         'native': part_native, 'crossing': part_crossing, 'cpu': part_cpu, 'syscalls': part_syscalls, 'instructions': part_instructions,
         'rsocket': part_rsocket}
BY_NAME = {'rsocket'}  # needs a real device, and packages of another suite
NATIVE = {'native', 'crossing'}  # need scripts/build-native.sh; left out of --quick unless named


def row(text):
    c, pipeline, size = (int(x) for x in text.split(','))
    return c, pipeline, size


def arguments():
    p = argparse.ArgumentParser(prog='bench/run.sh', description='TCP against RDMA, paired and interleaved.')
    p.add_argument('--quick', action='store_true', help='fewer rows, shorter runs, 3 repetitions, without ' + ' and '.join(sorted(NATIVE)))
    p.add_argument('--only', action='append', help='parts, comma-separated, may be repeated: ' + ', '.join(PARTS) + '; default: all but ' + ', '.join(BY_NAME))
    p.add_argument('--realtime', action='store_true', help='at real-time priority (root): other programs are not measured, and wait')
    p.add_argument('--reps', type=int, help='repetitions (default 5; 3 with --quick)')
    p.add_argument('--rows', metavar='C,P,SIZE', action='append', type=row, help='with the part valkey: only this row (clients, pipeline, '
                   'bytes); may be repeated')
    p.add_argument('--build', default=os.path.join(HERE, '..', 'build'), help='build folder')
    p.add_argument('--provider', default='soft', choices=('soft', 'verbs'))
    p.add_argument('--host', default='127.0.0.1', help='with --provider verbs: an address with the device behind it')
    p.add_argument('--from', dest='sources', metavar='FILE', action='append', help='measure nothing: the figures are those that --json '
                   'wrote to FILE; may be repeated')
    p.add_argument('--json', metavar='FILE', help='write all figures to FILE')
    p.add_argument('--markdown', metavar='FILE', help='write the tables to FILE (default: standard output)')
    p.add_argument('--docs', action='store_true', help='keep the figures in bench/results and write docs/performance.md and its plots anew')
    p.add_argument('--bed', help='with --docs: what they are kept as (default softverbs, or device)')
    p.add_argument('--readme', nargs='?', const=os.path.join(HERE, '..', 'README.md'), metavar='FILE',
                   help='the summary of what is kept, into README.md')
    args = p.parse_args()
    args.parts = ','.join(args.only).split(',') if args.only else [x for x in PARTS if x not in BY_NAME and not (args.quick and x in NATIVE)]
    unknown = [x for x in args.parts if x not in PARTS]
    if unknown:
        p.error(f'no such part: {", ".join(unknown)}')
    return args


def measure(args):
    facts = machine()
    if facts['load_before'] > 0.5 * facts['cores']:
        progress(f'note: this machine is busy (load {facts["load_before"]}); the figures will show it')
    bench, started = Bench(args), time.monotonic()
    result = {'parts': {}}
    try:
        if args.realtime and not realtime():
            raise Failed('--realtime is not permitted here')
        for name in (x for x in PARTS if x in args.parts):
            load = round(os.getloadavg()[0], 2) if result['parts'] else facts['load_before']
            try:
                part = PARTS[name].run(bench)
                if not part['rows'] and not part['failures']:
                    raise Failed('no row was measured')
            except (Failed, OSError, subprocess.SubprocessError) as e:
                part = {'failed': str(e)}
                progress(f'{name}: {e}')
            # Later parts come after load of our own, so that only the load before the first tells of other programs.
            part['run'] = {'date': time.strftime('%Y-%m-%d'), 'machine': facts, 'provider': args.provider, 'quick': args.quick,
                           'realtime': args.realtime, 'reps': bench.reps}
            part['load_at_start'] = load
            result['parts'][name] = part
            progress(f'{name}: done after {time.monotonic() - started:.0f} s')
            if args.json:  # what has been measured is not lost when a later part is interrupted
                write_json(args.json, result)
    finally:
        bench.close()
    return result


def write_json(path, result):
    with open(path, 'w', encoding='utf-8') as f:
        json.dump(result, f, indent=1)


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if args.sources:
        result = {'parts': {}}
        for path in args.sources:
            with open(path, encoding='utf-8') as f:
                result['parts'].update(json.load(f)['parts'])
        if args.only:
            result['parts'] = {k: v for k, v in result['parts'].items() if k in args.parts}
    else:
        result = measure(args)
    if args.json:
        write_json(args.json, result)
    text = docs.tables(PARTS, result)
    if args.markdown:
        docs.write(args.markdown, text)
    elif not (args.sources and args.docs):
        print(text)
    if args.docs:
        providers = {p['run']['provider'] for p in result['parts'].values()}
        docs.store(result, args.bed or ('softverbs' if providers <= {'soft'} else 'device'))
        docs.render(PARTS, docs.load())
    if args.readme:
        docs.readme(docs.load(), args.readme)
    return 1 if any(p.get('failed') or p.get('failures') for p in result['parts'].values()) else 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f'bench: {e}')
    except KeyboardInterrupt:
        sys.exit(130)

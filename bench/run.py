# SPDX-License-Identifier: BSD-2-Clause
"""Benchmarks of libvkrdma: see bench/README.md."""
import argparse
import json
import os
import re
import signal
import sys
import time

import part_instructions
import part_native
import part_pingpong
import part_valkey
from common import Bench, Failed, machine, progress, realtime

HERE = os.path.dirname(os.path.abspath(__file__))
PARTS = {'pingpong': part_pingpong, 'valkey': part_valkey, 'instructions': part_instructions, 'native': part_native}
BY_NAME = {'native'}  # needs scripts/build-native.sh
BLOCK = re.compile(r'(<!-- bench(?:mark results)?: ?begin[^>]*-->\n).*?(<!-- bench(?:mark results)?: ?end[^>]*-->)', re.S)


def arguments():
    p = argparse.ArgumentParser(prog='bench/run.sh', description='TCP against RDMA, paired and interleaved.')
    p.add_argument('--quick', action='store_true', help='fewer rows, shorter runs, 3 repetitions')
    p.add_argument('--only', default=','.join(x for x in PARTS if x not in BY_NAME), help='parts, comma-separated: ' + ', '.join(PARTS))
    p.add_argument('--realtime', action='store_true', help='at real-time priority (root): other programs are not measured, and wait')
    p.add_argument('--reps', type=int, help='repetitions (default 5; 3 with --quick)')
    p.add_argument('--build', default=os.path.join(HERE, '..', 'build'), help='build folder')
    p.add_argument('--provider', default='soft', choices=('soft', 'verbs'))
    p.add_argument('--host', default='127.0.0.1', help='with --provider verbs: an address with the device behind it')
    p.add_argument('--json', metavar='FILE', help='write all figures to FILE')
    p.add_argument('--markdown', metavar='FILE', help='write the tables to FILE (default: standard output)')
    p.add_argument('--readme', nargs='?', const=os.path.join(HERE, '..', 'README.md'), metavar='FILE',
                   help='replace the block between the bench markers in README.md')
    args = p.parse_args()
    args.parts = args.only.split(',')
    unknown = [x for x in args.parts if x not in PARTS]
    if unknown:
        p.error(f'no such part: {", ".join(unknown)}')
    return args


def render(result):
    m = result['machine']
    head = (f'Measured {result["date"]} on {m["cores"]} cores ({m["cpu"] or m["arch"]}), {m["memory_gib"]} GiB, Linux {m["kernel"]}, '
            f'{m["libc"]}; provider: {"softverbs" if result["provider"] == "soft" else "rdma-core"}; load before: {m["load_before"]}'
            f'{", at real-time priority" if result["realtime"] else ""}. '
            f'Made by `bench/run.sh{" --quick" if result["quick"] else ""}`.')
    out = [head]
    for name, part in PARTS.items():
        if name in result['parts']:
            r = result['parts'][name]
            out += ['', f'Not measured ({name}): {r["failed"]}' if 'failed' in r else part.markdown(r, result['reps'])]
    return '\n'.join(out) + '\n'


def replace_block(path, text):
    with open(path, encoding='utf-8') as f:
        old = f.read()
    new, n = BLOCK.subn(lambda m: m.group(1) + '\n' + text + '\n' + m.group(2), old)
    if n != 1:
        raise Failed(f'{os.path.basename(path)} has no single block between <!-- bench:begin --> and <!-- bench:end -->')
    with open(path + '.new', 'w', encoding='utf-8') as f:
        f.write(new)
    os.replace(path + '.new', path)


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    facts = machine()
    if facts['load_before'] > 0.5 * facts['cores']:
        progress(f'note: this machine is busy (load {facts["load_before"]}); the figures will show it')
    bench = Bench(args)
    if args.realtime and not realtime():
        raise Failed('--realtime is not permitted here')
    result = {'date': time.strftime('%Y-%m-%d'), 'machine': facts, 'provider': args.provider, 'quick': args.quick,
              'realtime': args.realtime, 'reps': bench.reps, 'parts': {}}
    bad = False
    try:
        for name, part in PARTS.items():
            if name not in args.parts:
                continue
            try:
                result['parts'][name] = part.run(bench)
            except Failed as e:
                result['parts'][name] = {'failed': str(e)}
                progress(f'{name}: {e}')
            bad |= bool(result['parts'][name].get('failed') or result['parts'][name].get('failures'))
    finally:
        bench.close()
    text = render(result)
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as f:
            json.dump(result, f, indent=1)
    if args.markdown:
        with open(args.markdown, 'w', encoding='utf-8') as f:
            f.write(text)
    else:
        print(text)
    if args.readme:
        replace_block(args.readme, text)
    return 1 if bad else 0


if __name__ == '__main__':
    try:
        sys.exit(main())
    except Failed as e:
        sys.exit(f'bench: {e}')
    except KeyboardInterrupt:
        sys.exit(130)

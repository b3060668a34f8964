#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Other people's test suites, each natively and carried, and what differs (scripts/suites.sh runs this).

    run.py [--work DIR] [--list] [--docs] [--carried] [NAME...]

Differences that are explained stand in README.md beside this file, one line each.
"""
import argparse
import json
import os
import re
import sys
import time

import suites_python  # noqa: F401  they register themselves
import suites_programs  # noqa: F401
from harness import BUILD, HERE, ROOT, SUITES, Mode, Skip, fetched


def explained():
    """README.md's list: `- suite: test: why`; a test may end in * for all that begin so."""
    found = []
    with open(os.path.join(HERE, 'README.md')) as f:
        for line in f:
            if m := re.match(r'- `([\w-]+)`: `(.+?)`: (.+)', line):
                found.append(m.groups())
    return found


def explanation(known, name, test):
    for s, pattern, why in known:
        if s == name and (test == pattern or (pattern.startswith('*') and test.endswith(pattern[1:])) or
                          (pattern.endswith('*') and test.startswith(pattern[:-1]))):
            return why
    return None


def kept(name, work):
    with open(os.path.join(work, name, 'record.json')) as f:
        return json.load(f)


def run_suite(name, work, native_kept):
    """The record of a suite's two runs; it is kept, for docs/suites.md is made of the newest ones."""
    suite, results, again = SUITES[name], {}, []
    for thing in suite.things:
        fetched(thing)
    versions = suite.versions()
    if native_kept:
        try:
            results['native'] = kept(name, work)['native']
        except OSError as e:
            raise Skip(f'no result of an earlier native run in {work}') from e
    for which in ('carried',) if native_kept else ('native', 'carried'):
        mode = Mode(name, which, work)
        started = time.monotonic()
        results[which] = suite.run(mode, work)
        print(f'  {name}, {which}: {time.monotonic() - started:.0f} s', flush=True)
    native, carried = results['native'], results['carried']
    # Many of these tests have time limits of their own, and a busy machine: those that failed carried have one more try.
    mode.only = sorted(t for t, v in native.items() if v == 'ok' and carried.get(t) != 'ok')
    if mode.only:
        for test, result in suite.run(mode, work).items():
            if test in mode.only and result == 'ok':
                carried[test] = 'ok'
                again.append(test)
    record = dict(name=name, versions=versions, date=time.strftime('%Y-%m-%d'), native=native,
                  carried=carried, again=again, no_tcp=suite.no_tcp, **mode.evidence())
    with open(os.path.join(work, name, 'record.json'), 'w') as f:
        json.dump(record, f, indent=1)
    return record


def row(record):
    native, carried = record['native'], record['carried']
    return (record['name'], len(native), sum(v == 'ok' for v in native.values()), sum(v == 'ok' for v in carried.values()),
            sum(v == 'ok' and carried.get(k) == 'ok' for k, v in native.items()), record['rdma'], record['tcp'], record['immediates'])


HEADS = ('suite', 'tests', 'native', 'carried', 'both', 'rdma', 'tcp', 'immediates')


def judge(record, known):
    """What differs: (test or '', text, explained), and whether all of it is explained and something was carried."""
    name, found = record['name'], []
    for test in sorted(set(record['native']) | set(record['carried'])):
        a, b = record['native'].get(test, 'missing'), record['carried'].get(test, 'missing')
        if a == b or (a != 'ok' and b == 'ok'):
            continue
        found.append((test, f'natively {a}, carried {b}', explanation(known, name, test)))
    if not any(v == 'ok' for v in record['native'].values()):
        found.append(('', 'nothing passes natively', None))
    if not (record['rdma'] and record['immediates']) and not record['no_tcp']:
        found.append(('', 'no connection was carried', None))
    return found, all(why for _, _, why in found)


def show(records, skipped, known):
    good = not skipped
    print('\n' + ''.join(h.ljust(22) if i == 0 else h.rjust(11) for i, h in enumerate(HEADS)))
    for r in records:
        print(''.join(str(c).ljust(22) if i == 0 else str(c).rjust(11) for i, c in enumerate(row(r))))
    for name, reason in skipped:
        print(f'{name.ljust(22)}  not run: {reason}')
    print()
    for r in records:
        for reason, n in r['why'].items():
            print(f"{r['name']}: {n} connections by TCP: {reason}")
        for test in r['again']:
            print(f"{r['name']}: {test}: passed carried at the second try")
        found, fine = judge(r, known)
        good = good and fine
        for test, text, why in found:
            print(f"{r['name']}: {test}: {text}: {why or 'UNEXPLAINED'}")
        if r['no_tcp']:
            print(f"{r['name']}: makes no TCP connection: the library watches, and carries nothing")
    return good


DOCS = """# Other people's suites

Written by `scripts/suites.sh --docs`, do not edit by hand. `scripts/suites.sh` runs these suites, which nobody of this project wrote,
natively and carried; in carried mode every listener and every connection of both ends is flagged, on softverbs. [tests/suites](../tests/suites/README.md)
says what each of them is.

- **tests**: those that ran or were skipped. **native**, **carried**: passed on kernel TCP, and with the library. **both**: passed both ways.
- **RDMA**, **TCP**: the connections of the carried run, an entry at each end. **immediates**: RDMA writes with immediate that its programs sent;
  programs that were killed are not in it.
"""


def docs(records, known, path):
    with open(path, 'w') as f:
        f.write(DOCS + '\n| suite | versions | tests | native | carried | both | RDMA | TCP | immediates | date |\n'
                '|---|---|---|---|---|---|---|---|---|---|\n')
        for r in records:
            c = row(r)
            f.write(f"| {c[0]} | {r['versions']} | {' | '.join(map(str, c[1:]))} | {r['date']} |\n")
        f.write('\nA suite of Python that makes no TCP connection (pipes and Unix sockets alone) shows that the library leaves those alone.\n')
        f.write('\n## Every difference\n\nA test that passes natively and not carried:\n\n')
        for r in records:
            for test, text, why in judge(r, known)[0]:
                f.write(f"- {r['name']}: `{test}`: {text}: {why or '**unexplained**'}\n")
        again = [f"{r['name']} `{t}`" for r in records for t in r['again']]
        if again:
            f.write('\nPassed carried at the second try (time limits of their own, on a busy machine): ' + ', '.join(again) + '.\n')
        f.write('\n## Connections by TCP in carried runs\n\n| suite | connections | reason (N: a number) |\n|---|---|---|\n')
        for r in records:
            for reason, n in r['why'].items():
                f.write(f"| {r['name']} | {n} | {reason} |\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--work', default=os.path.join(BUILD, 'suites'))
    p.add_argument('--list', action='store_true')
    p.add_argument('--docs', action='store_true')
    p.add_argument('--carried', action='store_true')
    p.add_argument('names', nargs='*')
    args = p.parse_args()
    work, known = os.path.abspath(args.work), explained()
    if args.list:
        print('\n'.join(SUITES))
        return 0
    unknown = [n for n in args.names if n not in SUITES]
    if unknown:
        sys.exit(f'no such suite: {unknown[0]} (--list)')
    records, skipped = [], []
    if args.docs:
        for name in SUITES:
            try:
                records.append(kept(name, work))
            except OSError:
                skipped.append((name, f'no result in {work}'))
        docs(records, known, os.path.join(ROOT, 'docs', 'suites.md'))
        return 0 if show(records, skipped, known) else 1
    os.makedirs(work, exist_ok=True)
    for name in args.names or SUITES:
        try:
            records.append(run_suite(name, work, args.carried))
        except Skip as e:
            skipped.append((name, str(e)))
    return 0 if show(records, skipped, known) else 1


if __name__ == '__main__':
    sys.exit(main())

# SPDX-License-Identifier: BSD-2-Clause
"""Does the exchange of RegisterXferMemory at the end of a receive ring cause jitter? Measured GET by GET.

One client fetches a value of 16 KiB again and again; its receive ring takes 1 MiB in every case, so that each 64th reply, about,
crosses the ring's end and has to wait for a new RegisterXferMemory. Then one of 4 MiB, which takes four rings. Where it is
permitted all programs run at real-time priority, so that other programs on the machine are not measured. Writes docs/refresh.svg and the block of figures in
docs/refresh.md.
"""
import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

import refresh_plot
from common import Bench, Failed, free_port, machine, progress, realtime, wait_port
from part_native import folder

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(HERE, '..', 'docs')
VALUE, LARGE, RING = 16384, 4 << 20, 1 << 20
REPLY = len(f'${VALUE}\r\n') + VALUE + 2
# name, client, server, environment of the shimmed client
CASES = [('native client, native server', 'native', 'native', {}),
         ('shim client, native server, early refresh', 'shim', 'native', {'VKRDMA_EARLY_REFRESH': 'yes'}),
         ('shim client, native server, no early refresh', 'shim', 'native', {'VKRDMA_EARLY_REFRESH': 'no'}),
         ('shim client, shim server, refreshed rings', 'shim', 'shim', {'VKRDMA_FEATURES': 'fin,resize'}),
         ('shim client, shim server, continuous ring', 'shim', 'shim', {}),
         ('TCP', 'tcp', 'tcp', {})]
# GETs outstanding, microseconds of work between replies
LOADS = [(1, 0), (8, 20)]
LARGE_GETS = 30
BLOCK = re.compile(r'(<!-- figures: begin[^>]*-->\n).*?(<!-- figures: end -->)', re.S)


class Refresh:
    def __init__(self, bench):
        self.b, self.native = bench, folder()
        self.client = os.path.join(bench.dir, 'refresh')
        deps = os.path.join(self.native, 'source', 'deps', 'libvalkey')
        parts = ('valkey', 'net', 'read', 'sds', 'alloc', 'sockcompat', 'conn', 'rdma', 'async', 'dict')
        subprocess.run(['cc', '-w', '-O2', '-D_GNU_SOURCE', *(f'-I{deps}/{d}' for d in ('include', 'include/valkey', 'src')),
                        '-o', self.client, os.path.join(HERE, 'refresh.c'),
                        *(os.path.join(deps, 'src', n + '.c') for n in parts), '-lrdmacm', '-libverbs'], check=True)
        self.ports, self.control, self.servers = {}, {}, {}
        for kind, how in (('tcp', 'plain'), ('native', 'verbs'), ('shim', 'serve')):
            port = self.control[kind] = free_port()
            self.ports[kind] = port if kind != 'native' else free_port()
            extra = ['--rdma-bind', bench.host, '--rdma-port', self.ports[kind]] if kind == 'native' else []
            self.servers[kind] = bench.spawn(
                [os.path.join(self.native, 'bin', 'valkey-server'), '--port', port, '--bind', bench.host, '--save', '', '--dir',
                 bench.dir, '--protected-mode', 'no', *extra], how, port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_port(bench.host, port, self.servers[kind])
            self.set_value(port, b'v', VALUE)
            self.set_value(port, b'w', LARGE)

    def set_value(self, port, key, size):
        with socket.create_connection((self.b.host, port), 10) as s:
            s.sendall(b'*3\r\n$3\r\nSET\r\n$1\r\n%s\r\n$%d\r\n%s\r\n' % (key, size, b'x' * size))
            if s.recv(5) != b'+OK\r\n':
                raise Failed('the value could not be set')

    def once(self, case, load, count, key='v'):
        _, client, server, settings = case
        env_kind = {'native': 'verbs', 'shim': 'shim', 'tcp': 'plain'}[client]
        env = self.b.env(env_kind, self.ports[server])
        env.update(settings, VKRDMA_RING=str(RING))
        argv = [self.client, self.b.host, self.ports[server], 'rdma' if client == 'native' else 'tcp', key, count, *load]
        p = subprocess.Popen([str(a) for a in argv], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             stdin=subprocess.DEVNULL)
        self.b.procs.append(p)
        took = [int(line) / 1000 for line in self.b.finish(p, 60).split()]
        if len(took) != count:
            raise Failed(f'{case[0]}: {len(took)} latencies instead of {count}')
        return took


def by_position(took):
    """Latencies by the number of replies since the one that crossed the ring's end (that one: 0). The first ring is left out:
    connections warm up in it."""
    out, since = {}, None
    for i, us in enumerate(took):
        first, last = i * REPLY, (i + 1) * REPLY - 1
        if first // RING != last // RING:
            since = 0
        elif since is not None:
            since += 1
        if since is not None:
            out.setdefault(since, []).append(us)
    return out


def percentile(values, share):
    values = sorted(values)
    return values[min(int(len(values) * share), len(values) - 1)]


def measure(bench, count):
    """Latencies of the small values by load and place in the ring, and of the large value."""
    r = Refresh(bench)
    pooled = {(c[0], load): {} for c in CASES for load in LOADS}
    large = {c[0]: [] for c in CASES}

    def tried(*how):
        for _ in range(3):
            try:
                return r.once(*how)
            except Failed as e:
                progress(f'  {e}')
        raise Failed(f'{how[0][0]} did not end three times')
    for rep in range(bench.reps):
        for i in range(len(CASES)):
            case = CASES[(i + rep) % len(CASES)]
            for load in LOADS:
                for since, values in by_position(tried(case, load, count)).items():
                    pooled[case[0], load].setdefault(since, []).extend(values)
            large[case[0]] += tried(case, (1, 0), LARGE_GETS, 'w')[1:]
        progress(f'repetition {rep + 1} of {bench.reps}')
    return pooled, large


def figures(pooled):
    rows = []
    for load in LOADS:
        for case in CASES:
            data = pooled[case[0], load]
            crossing = data[0]
            others = [v for since, values in data.items() if since > 1 for v in values]
            rows.append({'depth': load[0], 'work_us': load[1], 'case': case[0], 'crossings': len(crossing),
                         'cross': [percentile(crossing, q) for q in (0.5, 0.9, 0.99)],
                         'other': [percentile(others, q) for q in (0.5, 0.9, 0.99)],
                         'extra': statistics.median(crossing) - statistics.median(others)})
    return rows


def table(rows, large, facts, bench, first):
    priority = 'at real-time priority' if first else 'beside all other programs'
    out = [f'Measured {time.strftime("%Y-%m-%d")} on {facts["cores"]} cores, Linux {facts["kernel"]}, '
           f'{"softverbs" if bench.provider == "soft" else "rdma-core"}, {priority}, load before {facts["load_before"]}; '
           f'{bench.reps} interleaved repetitions. Microseconds, p50 / p90 / p99.', '',
           '| outstanding | work between | who | replies across an end | those | all others | p50 of those against the others |',
           '|---|---|---|---|---|---|---|']
    for r in rows:
        three = ['{:.0f} / {:.0f} / {:.0f}'.format(*r[k]) for k in ('cross', 'other')]
        out.append(f'| {r["depth"]} | {r["work_us"]} us | {r["case"]} | {r["crossings"]} | {three[0]} | {three[1]} | {r["extra"]:+.0f} us |')
    out += ['', f'| GETs of {LARGE >> 20} MiB | |', '|---|---|']
    out += ['| {} | {:.0f} / {:.0f} / {:.0f} |'.format(name, *(percentile(v, q) for q in (0.5, 0.9, 0.99)))
            for name, v in large.items()]
    return '\n'.join(out)


def main():
    p = argparse.ArgumentParser(prog='bench/refresh.sh', description=__doc__.split('\n', maxsplit=1)[0])
    p.add_argument('--build', default=os.path.join(HERE, '..', 'build'), help='build folder')
    p.add_argument('--reps', type=int, default=9, help='repetitions (default 9)')
    p.add_argument('--count', type=int, default=1500, help='GETs of a run (default 1500)')
    p.add_argument('--provider', default='soft', choices=('soft', 'verbs'))
    p.add_argument('--host', default='127.0.0.1', help='with --provider verbs: an address with the device behind it')
    p.add_argument('--json', metavar='FILE', help='write the figures to FILE')
    p.add_argument('--docs', default=DOCS, metavar='FOLDER', help='where refresh.md and refresh.svg are (default docs/)')
    args = p.parse_args()
    args.quick = False
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    facts, bench = machine(), Bench(args)
    first = realtime()
    try:
        pooled, large = measure(bench, args.count)
    finally:
        bench.close()
    rows = figures(pooled)
    text = table(rows, large, facts, bench, first)
    print(text)
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as f:
            json.dump(rows, f, indent=1)
    with open(os.path.join(args.docs, 'refresh.svg'), 'w', encoding='utf-8') as f:
        f.write(refresh_plot.render([c[0] for c in CASES], LOADS, {
            key: {since: (percentile(v, 0.5), percentile(v, 0.9)) for since, v in data.items()} for key, data in pooled.items()},
            {name: (percentile(v, 0.5), percentile(v, 0.9)) for name, v in large.items()}))
    page = os.path.join(args.docs, 'refresh.md')
    with open(page, encoding='utf-8') as f:
        old = f.read()
    new, n = BLOCK.subn(lambda m: m.group(1) + text + '\n' + m.group(2), old)
    if n != 1:
        raise Failed('refresh.md has no single block between <!-- figures: begin --> and <!-- figures: end -->')
    with open(page, 'w', encoding='utf-8') as f:
        f.write(new)


if __name__ == '__main__':
    try:
        main()
    except Failed as e:
        sys.exit(f'refresh: {e}')

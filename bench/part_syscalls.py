# SPDX-License-Identifier: BSD-2-Clause
"""System calls a request, of the server and of the client.

Counted by perf in the kernel, which hardly disturbs; by strace where perf may not, which does (runs are then short). Two runs of
different length are subtracted, so that start-up and tear-down do not count.
"""
import os
import re
import shutil
import signal
import subprocess

from common import Failed, progress, size_name
from stock import RDMA, TCP, Stock

COMBOS = [(1, 1, 16), (50, 1, 16), (50, 16, 16), (10, 1, 65536)]
QUICK = [(1, 1, 16), (50, 1, 16)]
WAYS = {'tcp': TCP, 'rdma': RDMA, 'rdma-sleep': RDMA._replace(env=(('VKRDMA_POLL', 'off'),))}
NAMED = ('read', 'write', 'writev', 'recvfrom', 'sendto', 'recvmsg', 'sendmsg', 'epoll_wait', 'epoll_pwait', 'epoll_pwait2', 'epoll_ctl',
         'poll', 'ppoll', 'futex', 'sched_yield', 'clock_nanosleep', 'nanosleep')
ALL = 'raw_syscalls:sys_enter'
SETPRIV = ('setpriv', '--pdeathsig', 'KILL')  # the client does not outlive the tool that counts for it


class Perf:
    """Counts of events, the total among them."""
    name = 'perf'

    def __init__(self, bench):
        self.dir = bench.dir
        self.events = [ALL] + [f'syscalls:sys_enter_{n}' for n in NAMED]
        if not self.works(self.events):
            self.events = [ALL] + [e for e in self.events[1:] if self.works([ALL, e])]

    @staticmethod
    def works(events):
        if not shutil.which('perf') or not shutil.which('setpriv'):
            return False
        r = subprocess.run(['perf', 'stat', '-x,', '-e', ','.join(events), '--', 'true'], capture_output=True, text=True, timeout=30,
                           check=False)
        return r.returncode == 0 and not re.search(r'not (supported|counted)', r.stderr)

    def read(self, path):
        counts = {}
        with open(path, encoding='utf-8') as f:
            for line in f:
                words = line.strip().split(',')
                if len(words) > 2 and words[0].isdigit():
                    counts[words[2].replace('syscalls:sys_enter_', '')] = int(words[0])
        total = counts.pop(ALL, 0)
        return total, counts

    def count(self, stock, way, args):
        """({side: (total, {name: calls})}, proof)"""
        server, _ = stock.server(way)
        out = {side: os.path.join(self.dir, f'perf.{side}') for side in ('client', 'server')}
        head = ['perf', 'stat', '-x,', '-e', ','.join(self.events)]
        wrap = [*head, '-o', out['server'], '-p', str(server.pid), '--', *SETPRIV, *head, '-o', out['client'], '--', *SETPRIV]
        _, proof, _ = stock.benchmark(way, *args, wrap=wrap)
        return {side: self.read(path) for side, path in out.items()}, proof


class Strace:
    name = 'strace'

    def __init__(self, bench):
        self.dir = bench.dir

    @staticmethod
    def works():
        return bool(shutil.which('strace')) and subprocess.run(['strace', '-f', '-c', '-o', '/dev/null', 'true'], timeout=30,
                                                                capture_output=True, check=False).returncode == 0

    @staticmethod
    def read(path):
        counts = {}
        with open(path, encoding='utf-8') as f:
            for line in f:
                words = line.split()
                if len(words) >= 5 and words[3].isdigit() and words[-1] != 'total':
                    counts[words[-1]] = int(words[3])
        return sum(counts.values()), counts

    def count(self, stock, way, args):
        server, _ = stock.server(way)
        out = {side: os.path.join(self.dir, f'strace.{side}') for side in ('client', 'server')}
        tracer = stock.b.spawn(['strace', '-f', '-c', '-o', out['server'], '-p', server.pid], 'plain')
        line = tracer.stderr.readline()
        if 'attached' not in line:
            raise Failed(f'strace: {line.strip()}')
        try:
            _, proof, _ = stock.benchmark(way, *args, wrap=['strace', '-f', '-c', '-o', out['client']])
        finally:
            stock.b.stop(tracer, signal.SIGINT)  # it writes its sums then
        return {side: self.read(path) for side, path in out.items()}, proof


def row(stock, tool, way, c, pipeline, size, low, high):
    args = ['-t', 'get', '-c', c, '-P', pipeline, '-d', size]
    stock.benchmark(WAYS[way], '-t', 'set', '-c', c, '-P', pipeline, '-d', size, '-n', c * pipeline)  # there is something to get
    a, _ = tool.count(stock, WAYS[way], [*args, '-n', low])
    b, proof = tool.count(stock, WAYS[way], [*args, '-n', high])
    sides = {}
    for side in a:
        total = (b[side][0] - a[side][0]) / (high - low)
        names = {k: (n - a[side][1].get(k, 0)) / (high - low) for k, n in b[side][1].items()}
        names = {k: round(v, 4) for k, v in sorted(names.items(), key=lambda x: -x[1]) if v >= 0.001}
        sides[side] = {'total': round(total, 4), 'named': names}
    out = {'way': way, 'clients': c, 'pipeline': pipeline, 'size': size, 'requests': high, **sides,
           'immediates': proof.get('immediates_in', 0) + proof.get('immediates_out', 0)}
    for k in ('wakeups', 'cq_polls', 'cq_events', 'immediates_in', 'immediates_out'):
        if proof:
            out[k + '_per_request'] = round(proof[k] / high, 4)
    return out


def run(bench):
    tool = Perf(bench) if Perf.works([ALL]) else Strace(bench) if Strace.works() else None
    if not tool:
        raise Failed('neither perf (with the right to count system calls) nor strace works here')
    stock = Stock(bench)
    rows, failures = [], []
    high = (10000 if bench.quick else 50000) if tool.name == 'perf' else (2000 if bench.quick else 5000)
    for c, p, s in QUICK if bench.quick else COMBOS:
        for way in WAYS:
            progress(f'system calls: {way} -c {c} -P {p} -d {s}')
            try:
                rows.append(row(stock, tool, way, c, p, s, max(high // 5, c * p), high * (4 if p > 1 else 1)))
            except (Failed, OSError) as e:
                failures.append(f'{way} {size_name(s)} -c {c} -P {p}: {e}')
                progress(f'  FAILED: {e}')
    stock.stop()
    return {'server': stock.version, 'tool': tool.name, 'rows': rows, 'failures': failures}


def calls(side):
    names = ', '.join(f'{k} {v:.2f}' for k, v in side['named'].items() if v >= 0.005)
    return f'**{side["total"]:.2f}**' + (f' ({names})' if names else '')


def markdown(r, _reps):
    out = [f'System calls a GET, counted by {r["tool"]}; {r["server"]} and its benchmark. `rdma-sleep`: `VKRDMA_POLL=off` at both ends. The'
           ' last columns are of the server and from vkrdma-stat: sleeps that a completion or notice ended, and polls of completion queues'
           ' (no system call), a request.', '',
           '| value | -c | -P | way | client | server | wake-ups | polls | immediates in / out a request | immediates |', '|---' * 10 + '|']
    for x in r['rows']:
        own = [''] * 3
        if 'wakeups_per_request' in x:
            own = [f'{x["wakeups_per_request"]:.3f}', f'{x["cq_polls_per_request"]:.2f}',
                   f'{x["immediates_in_per_request"]:.2f} / {x["immediates_out_per_request"]:.2f}']
        out.append(f'| {size_name(x["size"])} | {x["clients"]} | {x["pipeline"]} | {x["way"]} | {calls(x["client"])} | {calls(x["server"])} | '
                   + ' | '.join(own) + f' | {x["immediates"] or ""} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

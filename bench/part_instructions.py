# SPDX-License-Identifier: BSD-2-Clause
"""Instructions a request inside the shim and inside softverbs, counted by callgrind.

Two runs of different length are subtracted, so that start-up and tear-down do not count; what is left is divided by the
requests between them. Exclusive cost by object file: what a library calls counts for the library that is called.
"""
import collections
import os
import re
import shutil
import signal
import subprocess

from common import Failed, free_port, progress, wait_line, wait_port

LIBS = ('libvkrdma.so', 'libvkrdma-soft.so', 'libc.so', 'the program')


OTHER_PORT = 1  # of a rule that flags nothing here
NOTHING = 'nothing flagged'
NAMED = re.compile(r'(c?(?:ob|fn))=\((\d+)\)\s*(.*)')


def by_function(path):
    """Exclusive instructions of each (object, function) in a callgrind.out file."""
    cost, names, where, skip = collections.Counter(), {}, {'ob': '', 'fn': ''}, False
    with open(path, encoding='utf-8', errors='replace') as f:
        for line in f:
            if line[:1] in '0123456789+-*':
                if skip:  # the inclusive cost of a call
                    skip = False
                else:
                    cost[where['ob'], where['fn']] += int(line.split()[1])
            elif line.startswith('calls='):
                skip = True
            elif m := NAMED.match(line):
                key, number, name = m.groups()
                kind = key[-2:]
                if name:
                    names[kind, number] = os.path.basename(name.strip()) if kind == 'ob' else name.strip()
                if key == kind:  # not cob=, cfn=: those name the callee
                    where[kind] = names[kind, number]
    return cost


def library(name, program):
    if name.startswith('libvkrdma-soft.so') or name in ('libibverbs.so.1', 'librdmacm.so.1'):
        return 'libvkrdma-soft.so'
    if name.startswith('libvkrdma.so'):
        return 'libvkrdma.so'
    if name.startswith(('libc.so', 'libc-')):
        return 'libc.so'
    return 'the program' if name == program else None


class Counter:
    def __init__(self, bench):
        self.b, self.n = bench, 0
        small = os.path.join(bench.build, 'bench', 'callgrind', 'libvkrdma.so')
        # The softverbs beside it has segments that valgrind has room for; both ends use it.
        self.shim = small if bench.provider == 'soft' else bench.shim
        if not os.path.exists(self.shim):
            raise Failed('the softverbs build for callgrind is missing')

    def valgrind(self, argv):
        self.n += 1
        path = os.path.join(self.b.dir, f'callgrind.{self.n}')
        return path, ['valgrind', '--tool=callgrind', f'--callgrind-out-file={path}', '-q', *argv]

    def read(self, path, program):
        """Every part of a dump: callgrind may write one file a thread or one for all."""
        total = collections.Counter()
        d, base = os.path.split(path)
        found = [f for f in os.listdir(d) if f == base or f.startswith(base + '.')]
        for f in found:
            total.update(by_function(os.path.join(d, f)))
        if not total:
            raise Failed('callgrind wrote nothing')
        out = collections.Counter()
        for (ob, fn), n in total.items():
            out[library(ob, program), fn] += n
        return out

    def immediates(self, process, flagged):
        """Those of a process; one with nothing flagged has no counters at all."""
        if flagged:
            return sum(self.b.immediates(process.pid))
        try:
            self.b.process(process.pid)
        except Failed:
            return 0
        raise Failed('something is flagged')

    def pingpong(self, mode, size, rounds, flagged=True):
        """A client under callgrind; its server is native. Not flagged: its rule is for another port."""
        port = free_port()
        prog = self.b.program('pingpong')
        server = self.b.spawn([prog, 'server', self.b.host, port], 'serve', port, self.shim)
        wait_line(server, 'listening')
        path, argv = self.valgrind([prog, 'client', self.b.host, port, size, f'{rounds}r', mode])
        client = self.b.spawn(argv, 'shim', port if flagged else OTHER_PORT, self.shim, stdin=subprocess.PIPE)
        line = client.stdout.readline()
        if not line.startswith('{'):
            raise Failed(f'under callgrind: {client.stderr.read()[-800:]}')
        imm = self.immediates(client, flagged)
        if flagged and imm < 2 * rounds:
            raise Failed(f'{rounds} rounds but {imm} immediates: not RDMA')
        client.stdin.close()
        client.wait(60)
        self.b.stop(server)
        return self.read(path, 'pingpong'), imm

    def server(self, kind, c, pipeline, n, flagged=True):
        """valkey-server under callgrind, driven by its own benchmark. Not flagged: its rule is for another port."""
        port = free_port()
        path, argv = self.valgrind([f'{kind}-server', '--port', port, '--bind', self.b.host, '--save', '', '--dir', self.b.dir])
        server = self.b.spawn(argv, 'serve', port if flagged else OTHER_PORT, self.shim, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
        wait_port(self.b.host, port, server, 60)
        self.b.finish(self.b.spawn([f'{kind}-benchmark', '-h', self.b.host, '-p', port, '-t', 'get', '-c', c, '-P', pipeline,
                                    '-n', n, '--csv'], 'shim' if flagged else 'plain', port, self.shim), 300)
        imm = self.immediates(server, flagged)
        self.b.stop(server, signal.SIGTERM)
        return self.read(path, os.path.basename(os.path.realpath(shutil.which(f'{kind}-server')))), imm


def slope(once, low, high):
    """Per request: by library, the dearest functions of ours, the proof, and all user-space instructions."""
    a, _ = once(low)
    b, imm = once(high)
    each = {k: (n - a[k]) / (high - low) for k, n in b.items() if n != a[k]}
    libs = {lib: round(sum(n for (where, _), n in each.items() if where == lib), 1) for lib in LIBS}
    ours = sorted(((n, f'{fn} [{lib}]') for (lib, fn), n in each.items() if lib in LIBS[:2]), reverse=True)
    return libs, {name: round(n, 1) for n, name in ours[:25]}, imm, round(sum(each.values()), 1)


def run(bench):
    if not shutil.which('valgrind'):
        raise Failed('valgrind is not installed')
    c = Counter(bench)
    rows, failures = [], []
    low, high = (1000, 5000) if bench.quick else (2000, 22000)
    todo = [(f'client, {mode}: write + {"epoll_wait + " if mode == "epoll" else ""}read, {size} B each way',
             lambda n, mode=mode, size=size: c.pingpong(mode, size, n), low, high)
            for mode in ('block', 'epoll') for size in (64, 4096)]
    kinds = [k for k in ('valkey', 'redis') if shutil.which(f'{k}-server')]
    todo += [(f'{k}-server, GET, -c {cl} -P {p}', lambda n, k=k, cl=cl, p=p: c.server(k, cl, p, n), low, high)
             for k in kinds[:1] for cl, p in ((1, 1), (50, 1), (50, 16))]
    todo += [(f'client, {mode}, {NOTHING}: write + {"epoll_wait + " if mode == "epoll" else ""}read, 64 B each way',
              lambda n, mode=mode: c.pingpong(mode, 64, n, flagged=False), low, high) for mode in ('block', 'epoll')]
    todo += [(f'{k}-server, GET, -c {cl} -P 1, {NOTHING}', lambda n, k=k, cl=cl: c.server(k, cl, 1, n, flagged=False), low, high)
             for k in kinds[-1:] for cl in (1, 50)]
    for name, once, lo, hi in todo:
        progress(f'instructions: {name}')
        try:
            per, dearest, imm, total = slope(once, lo, hi)
            rows.append({'what': name, 'per_request': per, 'dearest': dearest, 'immediates': imm, 'total': total})
        except (Failed, subprocess.TimeoutExpired) as e:
            failures.append(f'{name}: {e}')
            progress(f'  FAILED: {e}')
    return {'rows': rows, 'failures': failures}


def bare(name):
    """A function's name without its library and callgrind's number of the recursion."""
    return name.split(' [')[0].split("'")[0]


def markdown(r, _reps):
    out = ['Instructions a request in user space (callgrind, exclusive, start-up subtracted), by object. softverbs does in software what'
           ' a device would do.', '',
           '| what | ' + ' | '.join(LIBS) + ' | immediates |', '|---|' + '---|' * (len(LIBS) + 1)]
    for x in r['rows']:
        out.append(f'| {x["what"]} | ' + ' | '.join(f'{x["per_request"][k]:.0f}' for k in LIBS) + f' | {x["immediates"]} |')
    out += ['', 'The dearest functions of the two libraries, instructions a request:', '']
    out += [f'- {x["what"]}: ' + ', '.join(f'`{bare(name)}` {n:.0f}' for name, n in list(x['dearest'].items())[:8])
            for x in r['rows']]
    out += [f'- {x["what"]}: the library adds {x["per_request"]["libvkrdma.so"]:.0f} to {x["total"] - x["per_request"]["libvkrdma.so"]:.0f}'
            f' instructions, {100 * x["per_request"]["libvkrdma.so"] / (x["total"] - x["per_request"]["libvkrdma.so"]):.1f} %'
            for x in r['rows'] if NOTHING in x['what']]
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

# SPDX-License-Identifier: BSD-2-Clause
"""Native RDMA and the shim, each end either way, and TCP: the same binaries (scripts/build-native.sh), interleaved."""
import os
import re
import subprocess

from common import Failed, free_port, pairs, progress, size_name, summary, wait_port
from stock import LEVELS, parse, thousands

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..')
WAYS = ('tcp', 'native-native', 'shim-native', 'native-shim', 'shim-shim')  # client-server
COMBOS = [(c, p, s) for s in (64, 1024, 4096, 16384, 65536) for c, p in ((1, 1), (10, 1), (50, 1), (50, 16))]
QUICK = [(c, p, s) for s in (64, 4096, 65536) for c, p in ((1, 1), (50, 1), (50, 16))]
HANGS_ALLOWED = 3


def folder():
    out = subprocess.run([os.path.join(ROOT, 'scripts', 'build-native.sh'), '--cached'], capture_output=True, text=True,
                         timeout=60, check=False)
    found = os.environ.get('VKR_NATIVE') or out.stdout.strip()
    if not found:
        raise Failed('native Valkey has not been built: scripts/build-native.sh')
    return found


class Hang(Failed):
    """A run that did not end."""


class Matrix:
    def __init__(self, bench, seconds):
        self.b, self.seconds, self.hangs = bench, seconds, {}
        self.bin = os.path.join(folder(), 'bin')
        self.version = subprocess.run([self.tool('server'), '--version'], capture_output=True, text=True, check=True)
        self.version = re.search(r'v=([\d.]+)', self.version.stdout).group(1)
        self.port = {'tcp': free_port(), 'native': free_port(), 'shim': free_port()}
        self.control = free_port()  # the native server's TCP port: nothing listens for TCP on its RDMA port
        self.servers = {
            'tcp': self.start('plain', self.port['tcp']),
            'native': self.start('verbs', self.control, '--rdma-bind', bench.host, '--rdma-port', self.port['native']),
            'shim': self.start('serve', self.port['shim']),
        }
        self.proof = {}

    def tool(self, name):
        return os.path.join(self.bin, 'valkey-' + name)

    def start(self, kind, port, *args):
        p = self.b.spawn([self.tool('server'), '--port', port, '--bind', self.b.host, '--save', '', '--dir', self.b.dir,
                          '--protected-mode', 'no', *args], kind, port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_port(self.b.host, port, p)
        return p

    def once(self, way, c, pipeline, size, n):
        client, _, server = way.partition('-')
        port = self.port[server or client]
        argv = [self.tool('benchmark'), '-h', self.b.host, '-p', port, '-t', 'set,get', '-c', c, '-P', pipeline, '-d', size, '-n', n]
        before = self.b.totals(self.servers['shim'].pid) if server == 'shim' else None
        p = self.b.spawn(argv + (['--rdma'] if client == 'native' else []), {'native': 'verbs', 'shim': 'shim'}.get(client, 'plain'), port)
        try:
            out = self.b.finish(p, 20 + 8 * self.seconds)
        except Failed as e:
            if 'not finished' in str(e):
                raise Hang(f'{way} -c {c} -P {pipeline} -d {size} did not end') from None
            raise
        if before:
            self.prove(way, before, n)
        got = parse(out)
        if set(got) != {'SET', 'GET'}:
            raise Failed(f'{way}: no results in {out[-300:]!r}')
        return got

    def prove(self, way, before, n):
        after = self.b.totals(self.servers['shim'].pid)
        gone = {k: after[k] - before[k] for k in ('immediates_in', 'immediates_out', 'bytes_in')}
        if min(gone.values()) <= 0 or gone['bytes_in'] < n:
            raise Failed(f'{way}: the immediates do not account for it, so this was not RDMA')
        for k, v in gone.items():
            self.proof[way, k] = self.proof.get((way, k), 0) + v

    def tried(self, way, *how):
        """Native ends hang now and then, by themselves: counted, and tried again."""
        for _ in range(HANGS_ALLOWED):
            try:
                return self.once(way, *how)
            except Hang as e:
                self.hangs[way] = self.hangs.get(way, 0) + 1
                progress(f'  {e}')
        raise Failed(f'{way} did not end {HANGS_ALLOWED} times')

    def requests(self, c, pipeline, size):
        n = max(c * pipeline * 4, 256)
        while True:
            slow = min(v['rps'] for v in self.once('tcp', c, pipeline, size, n).values())
            if n / slow > self.seconds / 8 or n > 4e6:
                return max(int(slow * self.seconds), c * pipeline * 4)
            n *= 8

    def rows(self, c, pipeline, size):
        n = self.requests(c, pipeline, size)
        runs = {w: [] for w in WAYS}
        for i in range(self.b.reps):
            for way in WAYS[i % len(WAYS):] + WAYS[:i % len(WAYS)]:
                runs[way].append(self.tried(way, c, pipeline, size, n))
        for test in ('SET', 'GET'):
            rps = {w: [r[test]['rps'] for r in runs[w]] for w in WAYS}
            yield {'test': test, 'clients': c, 'pipeline': pipeline, 'size': size, 'requests': n,
                   'ways': {w: {'rps': summary(rps[w]), 'of_native': pairs(rps['native-native'], rps[w]),
                                **{k + '_ms': summary([r[test][k + '_ms'] for r in runs[w]])['median'] for k in LEVELS}}
                            for w in WAYS}}


def run(bench, seconds=None):
    m = Matrix(bench, seconds or (0.4 if bench.quick else 1.0))
    rows, failures = [], []
    for c, p, s in QUICK if bench.quick else COMBOS:
        progress(f'native and shim: -c {c} -P {p} -d {s}')
        try:
            rows += m.rows(c, p, s)
        except Failed as e:
            failures.append({'clients': c, 'pipeline': p, 'size': s, 'why': str(e)})
            progress(f'  FAILED: {e}')
    for p in m.servers.values():
        bench.stop(p)
    return {'version': m.version, 'rows': rows, 'failures': failures, 'hangs': m.hangs,
            'proof': {f'{w} {k}': v for (w, k), v in m.proof.items()}}


def markdown(r, reps):
    out = [f'Valkey {r["version"]} with RDMA of its own, the same binaries for every column (client-server). Median of {reps} interleaved '
           'repetitions: requests a second (quartiles), then p50 / p99 / p99.9 in ms; the last column is shim-shim against '
           'native-native, repetition by repetition: median (lowest to highest).', '',
           '| test | value | -c | -P | ' + ' | '.join(WAYS) + ' | shim/native |', '|---' * (5 + len(WAYS)) + '|']
    for x in r['rows']:
        cells = []
        for w in WAYS:
            v = x['ways'][w]
            cells.append(f'{thousands(v["rps"]["median"])} ({thousands(v["rps"]["q1"])} to {thousands(v["rps"]["q3"])})<br>'
                         f'{v["p50_ms"]:.2f} / {v["p99_ms"]:.2f} / {v["p999_ms"]:.2f}')
        q = x['ways']['shim-shim']['of_native']
        out.append(f'| {x["test"]} | {size_name(x["size"])} | {x["clients"]} | {x["pipeline"]} | ' + ' | '.join(cells) +
                   f' | **{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f}) |')
    below = [f'{x["test"]} {size_name(x["size"])} -c {x["clients"]} -P {x["pipeline"]}' for x in r['rows']
             if x['ways']['shim-shim']['of_native']['median'] < 1.0]
    out += ['', f'shim-shim below native-native: {"; ".join(below) if below else "nowhere"}. Runs that hung and were repeated: '
            + (', '.join(f'{w} {n}' for w, n in r['hangs'].items()) or 'none') + '.']
    out += [f'\nFailed: -c {f["clients"]} -P {f["pipeline"]} {size_name(f["size"])}: {f["why"]}' for f in r['failures']]
    return '\n'.join(out)

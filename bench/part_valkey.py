# SPDX-License-Identifier: BSD-2-Clause
"""valkey-benchmark (or redis-benchmark) over TCP and over RDMA, paired and interleaved."""
import csv
import io
import shutil
import subprocess

from common import Failed, free_port, pairs, progress, size_name, summary, wait_port

CLIENTS, PIPELINES, SIZES = (1, 10, 50), (1, 16), (16, 1024, 16384, 1 << 20)
QUICK = [(1, 1, 16), (50, 1, 16), (50, 1, 1024), (50, 16, 16), (50, 1, 16384), (10, 1, 1 << 20)]


def versions(kind):
    out = subprocess.run([f'{kind}-server', '--version'], capture_output=True, text=True, check=False).stdout
    words = dict(w.split('=', 1) for w in out.split() if '=' in w)
    return f'{kind}-server {words.get("v", "?")}'


class Valkey:
    def __init__(self, bench, seconds):
        self.b, self.seconds = bench, seconds
        self.kind = next((k for k in ('valkey', 'redis') if shutil.which(f'{k}-server') and shutil.which(f'{k}-benchmark')),
                         None)
        if not self.kind:
            raise Failed('neither valkey-server and valkey-benchmark nor redis-server and redis-benchmark are installed')
        self.version = versions(self.kind)
        self.plain_port, self.shim_port = free_port(), free_port()
        self.plain = self.start('plain', self.plain_port)
        self.shim = self.start('serve', self.shim_port)

    def start(self, kind, port):
        p = self.b.spawn([f'{self.kind}-server', '--port', port, '--bind', self.b.host, '--save', '', '--appendonly', 'no',
                          '--dir', self.b.dir], kind, port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_port(self.b.host, port, p)
        return p

    def once(self, transport, c, pipeline, size, n):
        """{'SET': rps, 'GET': rps}; over RDMA with the immediates that carried them."""
        port = self.shim_port if transport == 'shim' else self.plain_port
        before = self.b.immediates(self.shim.pid)
        out = self.b.finish(self.b.spawn(
            [f'{self.kind}-benchmark', '-h', self.b.host, '-p', port, '-t', 'set,get', '-c', c, '-P', pipeline, '-d', size,
             '-n', n, '--csv'], transport, port), 120)
        after = self.b.immediates(self.shim.pid)
        rows = list(csv.DictReader(io.StringIO(out[out.index('"test"'):])))
        result = {r['test']: {'rps': float(r['rps']), 'p50_ms': float(r['p50_latency_ms']), 'p99_ms': float(r['p99_latency_ms'])}
                  for r in rows}
        imm = (after[0] - before[0], after[1] - before[1])
        if transport == 'shim' and min(imm) <= 0:
            raise Failed(f'-c {c} -P {pipeline} -d {size}: no immediate was counted, so this was not RDMA')
        if transport != 'shim' and max(imm) > 0:
            raise Failed('the TCP run touched the RDMA server')
        return result, imm

    def requests(self, c, pipeline, size):
        """How many requests take about self.seconds over TCP."""
        n = max(c * pipeline * 4, 64)
        while True:
            got, _ = self.once('plain', c, pipeline, size, n)
            slow = min(v['rps'] for v in got.values())
            if n / slow > self.seconds / 8 or n > 4e6:
                break
            n *= 8
        return max(int(slow * self.seconds), c * pipeline * 4)

    def row(self, c, pipeline, size):
        n = self.requests(c, pipeline, size)
        self.once('shim', c, pipeline, size, max(n // 8, c * pipeline))  # warm both sides
        runs = {'plain': [], 'shim': []}
        immediates = [0, 0]
        for i in range(self.b.reps):
            for transport in ('plain', 'shim') if i % 2 == 0 else ('shim', 'plain'):
                got, imm = self.once(transport, c, pipeline, size, n)
                runs[transport].append(got)
                if transport == 'shim':
                    immediates = [immediates[0] + imm[0], immediates[1] + imm[1]]
        rows = []
        for test in ('SET', 'GET'):
            tcp, rdma = ([r[test]['rps'] for r in runs[t]] for t in ('plain', 'shim'))
            rows.append({'test': test, 'clients': c, 'pipeline': pipeline, 'size': size, 'requests': n, 'tcp': summary(tcp),
                         'rdma': summary(rdma), 'ratio': pairs(tcp, rdma),
                         'tcp_p99_ms': summary([r[test]['p99_ms'] for r in runs['plain']])['median'],
                         'rdma_p99_ms': summary([r[test]['p99_ms'] for r in runs['shim']])['median'],
                         'immediates_in': immediates[0], 'immediates_out': immediates[1]})
        return rows


def run(bench, seconds=None):
    v = Valkey(bench, seconds or (0.5 if bench.quick else 1.2))
    combos = QUICK if bench.quick else [(c, p, s) for s in SIZES for c in CLIENTS for p in PIPELINES]
    rows, failures = [], []
    for c, p, s in combos:
        progress(f'{v.kind}-benchmark -c {c} -P {p} -d {s}')
        try:
            rows += v.row(c, p, s)
        except Failed as e:
            failures.append({'clients': c, 'pipeline': p, 'size': s, 'why': str(e)})
            progress(f'  FAILED: {e}')
            v = Valkey(bench, v.seconds)
    bench.stop(v.plain)
    bench.stop(v.shim)
    return {'server': v.version, 'rows': rows, 'failures': failures}


def thousands(x):
    return f'{x / 1000:.1f}k' if x >= 1000 else f'{x:.0f}'


def markdown(r, reps):
    out = [f'{r["server"]}, requests a second, median (quartiles) of {reps} interleaved pairs; ratio: RDMA/TCP pair by pair,'
           ' median (lowest to highest). Each RDMA row was checked by the immediates that its server counted.', '',
           '| test | value | -c | -P | TCP | RDMA | RDMA/TCP | p99 TCP / RDMA, ms | immediates in/out |',
           '|---|---|---|---|---|---|---|---|---|']
    for x in r['rows']:
        t, d, q = x['tcp'], x['rdma'], x['ratio']
        out.append(f'| {x["test"]} | {size_name(x["size"])} | {x["clients"]} | {x["pipeline"]} '
                   f'| {thousands(t["median"])} ({thousands(t["q1"])} to {thousands(t["q3"])}) '
                   f'| {thousands(d["median"])} ({thousands(d["q1"])} to {thousands(d["q3"])}) '
                   f'| **{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f}) '
                   f'| {x["tcp_p99_ms"]:.2f} / {x["rdma_p99_ms"]:.2f} | {x["immediates_in"]} / {x["immediates_out"]} |')
    out += [f'\nFailed: -c {f["clients"]} -P {f["pipeline"]} {size_name(f["size"])}: {f["why"]}' for f in r['failures']]
    return '\n'.join(out)

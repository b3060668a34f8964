# SPDX-License-Identifier: BSD-2-Clause
"""valkey-benchmark (or redis-benchmark) over TCP and over RDMA, paired and interleaved."""
from common import Failed, pairs, progress, size_name, summary
from stock import RDMA, TCP, Stock, thousands

# Of large values longer runs: in the first half second rings and TCP's windows still grow.
LARGE, LARGE_TIMES = 1 << 20, 3
CLIENTS, PIPELINES, SIZES = (1, 10, 50), (1, 16), (16, 1024, 16384, 1 << 20)
QUICK = [(1, 1, 16), (50, 1, 16), (50, 1, 1024), (50, 16, 16), (50, 1, 16384), (10, 1, 1 << 20)]


def row(stock, seconds, c, pipeline, size):
    args = ['-c', c, '-P', pipeline, '-d', size]
    n = stock.requests(seconds * (LARGE_TIMES if size >= LARGE else 1), *args, least=max(c * pipeline * 4, 64))
    n -= n % pipeline  # or valkey-benchmark may find at its end that it has more answers than it wanted, and gives up
    stock.benchmark(RDMA, '-t', 'set,get', *args, '-n', max(n // 8 // pipeline * pipeline, c * pipeline))  # warm both sides
    runs, immediates = {'tcp': [], 'rdma': []}, [0, 0]
    for i in range(stock.b.reps):
        for name, way in (('tcp', TCP), ('rdma', RDMA)) if i % 2 == 0 else (('rdma', RDMA), ('tcp', TCP)):
            got, proof, _ = stock.benchmark(way, '-t', 'set,get', *args, '-n', n)
            runs[name].append(got)
            if name == 'rdma':
                immediates = [immediates[0] + proof['immediates_in'], immediates[1] + proof['immediates_out']]
    for test in ('SET', 'GET'):
        tcp, rdma = ([r[test]['rps'] for r in runs[k]] for k in ('tcp', 'rdma'))
        yield {'test': test, 'clients': c, 'pipeline': pipeline, 'size': size, 'requests': n, 'tcp': summary(tcp),
               'rdma': summary(rdma), 'ratio': pairs(tcp, rdma),
               'tcp_p99_ms': summary([r[test]['p99_ms'] for r in runs['tcp']])['median'],
               'rdma_p99_ms': summary([r[test]['p99_ms'] for r in runs['rdma']])['median'],
               'immediates_in': immediates[0], 'immediates_out': immediates[1]}


def run(bench, seconds=None):
    stock = Stock(bench)
    combos = bench.rows or (QUICK if bench.quick else [(c, p, s) for s in SIZES for c in CLIENTS for p in PIPELINES])
    rows, failures = [], []
    for c, p, s in combos:
        progress(f'{stock.kind}-benchmark -c {c} -P {p} -d {s}')
        try:
            rows += row(stock, seconds or (0.5 if bench.quick else 1.2), c, p, s)
        except Failed as e:
            failures.append({'clients': c, 'pipeline': p, 'size': s, 'why': str(e)})
            progress(f'  FAILED: {e}')
            stock.stop()
    stock.stop()
    return {'server': stock.version, 'rows': rows, 'failures': failures}


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

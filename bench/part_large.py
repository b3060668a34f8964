# SPDX-License-Identifier: BSD-2-Clause
"""Large values: bytes a second of SET and GET."""
from common import Failed, pairs, progress, size_name, summary
from stock import RDMA, TCP, Stock

COMBOS = [(c, s) for s in (65536, 1 << 20, 16 << 20) for c in (1, 10 if s < 16 << 20 else 4)]
QUICK = [(1, 65536), (10, 1 << 20), (1, 16 << 20)]


def row(stock, seconds, c, size):
    args = ['-c', c, '-d', size]
    n = stock.requests(seconds, *args, least=max(c * 4, 8))
    speed, immediates, stalls = {'tcp': [], 'rdma': []}, [0, 0], 0
    for i in range(stock.b.reps):
        for name, way in (('tcp', TCP), ('rdma', RDMA)) if i % 2 == 0 else (('rdma', RDMA), ('tcp', TCP)):
            got, proof, _ = stock.benchmark(way, '-t', 'set,get', *args, '-n', n)
            speed[name].append({test: v['rps'] * size for test, v in got.items()})
            if name == 'rdma':
                # Each value went there once and came back once.
                for k in ('bytes_in', 'bytes_out'):
                    if proof[k] < n * size:
                        raise Failed(f'-c {c} -d {size}: {proof[k]} {k} over RDMA are less than the values')
                immediates = [immediates[0] + proof['immediates_in'], immediates[1] + proof['immediates_out']]
                stalls += proof['stalls']
    for test in ('SET', 'GET'):
        tcp, rdma = ([r[test] for r in speed[k]] for k in ('tcp', 'rdma'))
        yield {'test': test, 'clients': c, 'size': size, 'requests': n, 'tcp': summary(tcp), 'rdma': summary(rdma),
               'ratio': pairs(tcp, rdma), 'immediates_in': immediates[0], 'immediates_out': immediates[1], 'server_stalls': stalls}


def run(bench, seconds=None):
    stock = Stock(bench)
    rows, failures = [], []
    for c, size in QUICK if bench.quick else COMBOS:
        progress(f'large values: -c {c} -d {size}')
        try:
            rows += row(stock, seconds or (0.4 if bench.quick else 1.2), c, size)
        except Failed as e:
            failures.append(f'{size_name(size)} -c {c}: {e}')
            progress(f'  FAILED: {e}')
    stock.stop()
    return {'server': stock.version, 'rows': rows, 'failures': failures}


def speed(s):
    return f'{s["median"] / 1e9:.2f} ({s["q1"] / 1e9:.2f} to {s["q3"] / 1e9:.2f})'


def markdown(r, reps):
    out = [f'{r["server"]} and its benchmark: GB (1e9 bytes of values) a second, median (quartiles) of {reps} interleaved pairs.', '',
           '| test | value | -c | TCP | RDMA | RDMA/TCP | immediates in/out | stalls of the server |', '|---' * 8 + '|']
    for x in r['rows']:
        q = x['ratio']
        out.append(f'| {x["test"]} | {size_name(x["size"])} | {x["clients"]} | {speed(x["tcp"])} | {speed(x["rdma"])} '
                   f'| **{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f}) | {x["immediates_in"]} / {x["immediates_out"]} '
                   f'| {x["server_stalls"]} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

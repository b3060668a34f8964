# SPDX-License-Identifier: BSD-2-Clause
"""Processor time a request, user and system, of the server and of the client.

The server's is its own getrusage (INFO cpu), asked over TCP before and after; the client's is what the kernel charged for it when it
ended. A short run is subtracted from a long one, so that start-up does not count.
"""
from common import Failed, pairs, progress, size_name, summary
from stock import RDMA, TCP, Stock

COMBOS = [(1, 1, 16), (50, 1, 16), (50, 16, 16), (10, 1, 65536), (10, 1, 1 << 20)]
QUICK = [(50, 1, 16), (50, 16, 16)]
WAYS = {'tcp': TCP, 'rdma': RDMA}
SIDES = ('client', 'server')


def spent(stock, way, test, args, n):
    """Seconds: client user, client system, server user, server system."""
    before = stock.server_cpu(way)
    got, proof, client = stock.benchmark(way, '-t', test, *args, '-n', n)
    after = stock.server_cpu(way)
    return [*client, *(b - a for a, b in zip(before, after))], proof, got


def row(stock, seconds, test, c, pipeline, size):
    args = ['-c', c, '-P', pipeline, '-d', size]
    stock.benchmark(RDMA, '-t', 'set', *args, '-n', c)  # there is something to get
    stock.benchmark(TCP, '-t', 'set', *args, '-n', c)
    short = c * pipeline
    n = stock.requests(seconds, *args, least=short * 4, tests=test) + short
    runs, immediates = {w: [] for w in WAYS}, 0
    for i in range(stock.b.reps):
        for w in ('tcp', 'rdma') if i % 2 == 0 else ('rdma', 'tcp'):
            a, _, _ = spent(stock, WAYS[w], test, args, short)
            b, proof, _ = spent(stock, WAYS[w], test, args, n)
            runs[w].append([max(y - x, 0) / (n - short) * 1e6 for x, y in zip(a, b)])
            immediates += proof.get('immediates_in', 0) + proof.get('immediates_out', 0)
    out = {'test': test.upper(), 'clients': c, 'pipeline': pipeline, 'size': size, 'requests': n, 'immediates': immediates, 'ways': {}}
    for w, all_of in runs.items():
        out['ways'][w] = {f'{side}_{kind}_us': summary([r[2 * i + j] for r in all_of])
                          for i, side in enumerate(SIDES) for j, kind in enumerate(('user', 'system'))}
    out['ratio'] = {side: pairs([r[2 * i] + r[2 * i + 1] for r in runs['tcp']], [r[2 * i] + r[2 * i + 1] for r in runs['rdma']])
                    for i, side in enumerate(SIDES)}
    return out


def run(bench, seconds=None):
    stock = Stock(bench)
    rows, failures = [], []
    for c, p, s in QUICK if bench.quick else COMBOS:
        for test in ('set', 'get'):
            progress(f'processor time: {test} -c {c} -P {p} -d {s}')
            try:
                rows.append(row(stock, seconds or (0.4 if bench.quick else 1.0), test, c, p, s))
            except (Failed, ZeroDivisionError) as e:
                failures.append(f'{test} {size_name(s)} -c {c} -P {p}: {e}')
                progress(f'  FAILED: {e}')
    stock.stop()
    return {'server': stock.version, 'rows': rows, 'failures': failures}


def markdown(r, reps):
    out = [f'{r["server"]} and its benchmark: microseconds of processor time a request, user + system, medians of {reps} interleaved pairs; '
           'RDMA/TCP: of the sums, pair by pair.', '',
           '| test | value | -c | -P | client TCP | client RDMA | RDMA/TCP | server TCP | server RDMA | RDMA/TCP | immediates |',
           '|---' * 11 + '|']
    for x in r['rows']:
        cells = []
        for side in SIDES:
            for w in WAYS:
                v = x['ways'][w]
                cells.append(f'{v[side + "_user_us"]["median"]:.1f} + {v[side + "_system_us"]["median"]:.1f}')
            q = x['ratio'][side]
            cells.append(f'**{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f})')
        out.append(f'| {x["test"]} | {size_name(x["size"])} | {x["clients"]} | {x["pipeline"]} | ' + ' | '.join(cells)
                   + f' | {x["immediates"]} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

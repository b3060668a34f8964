# SPDX-License-Identifier: BSD-2-Clause
"""One client, one request at a time: TCP, and RDMA with adaptive polling and without it (VKRDMA_POLL) at both ends."""
import json
import subprocess

from common import Failed, pairs, progress, size_name, summary
from stock import RDMA, TCP, Stock

WAYS = {'tcp': TCP, 'rdma-poll': RDMA, 'rdma-sleep': RDMA._replace(env=(('VKRDMA_POLL', 'off'),))}
SIZES = (64, 4096)
LEVELS = ('p50_us', 'p99_us', 'p999_us')


def once(stock, way, test, size, seconds):
    """What request.c measured, and what the counters of both ends grew by."""
    b = stock.b
    server, port = stock.server(way)
    carried = way.server == 'serve'
    before = b.totals(server.pid) if carried else None
    client = b.spawn([b.program('request'), b.host, port, test, size, seconds], way.client, port, extra=way.env, stdin=subprocess.PIPE)
    line = client.stdout.readline()
    if not line.startswith('{'):
        raise Failed(f'request {test} {size}: {client.stderr.read()[-400:]}')
    got = json.loads(line)
    got['immediates'] = got['server_wakeups'] = got['client_wakeups'] = 0
    if carried:
        own, after = b.totals(client.pid), b.totals(server.pid)
        if min(own['immediates_in'], own['immediates_out']) < got['rounds']:
            raise Failed(f'{test} {size}: {got["rounds"]} requests and not as many immediates: not RDMA')
        got.update(immediates=own['immediates_in'] + own['immediates_out'], client_wakeups=own['wakeups'],
                   server_wakeups=after['wakeups'] - before['wakeups'])
    client.stdin.close()
    client.wait(20)
    return got


def row(stock, test, size, seconds):
    runs = {w: [] for w in WAYS}
    for i in range(stock.b.reps):
        for name in list(WAYS) if i % 2 == 0 else list(WAYS)[::-1]:
            runs[name].append(once(stock, WAYS[name], test, size, seconds))
    return {'test': test.upper(), 'size': size, 'ways': {
        w: {**{k: summary([r[k] for r in v]) for k in LEVELS}, 'of_tcp': pairs([r['p50_us'] for r in runs['tcp']], [r['p50_us'] for r in v]),
            **{k: sum(r[k] for r in v) for k in ('rounds', 'immediates', 'client_wakeups', 'server_wakeups')}} for w, v in runs.items()}}


def run(bench):
    stock = Stock(bench)
    rows, failures = [], []
    for size in SIZES:
        for test in ('set', 'get'):
            progress(f'latency of {test}, {size_name(size)}')
            try:
                rows.append(row(stock, test, size, 0.3 if bench.quick else 1.5))
            except (Failed, subprocess.TimeoutExpired) as e:
                failures.append(f'{test} {size_name(size)}: {e}')
                progress(f'  FAILED: {e}')
    stock.stop()
    return {'server': stock.version, 'rows': rows, 'failures': failures}


def markdown(r, reps):
    out = [f'{r["server"]} and a client that writes, waits in epoll_wait and reads (bench/request.c): microseconds, medians of {reps}'
           ' interleaved runs. `rdma-poll`: the default; `rdma-sleep`: `VKRDMA_POLL=off` at both ends. Time/TCP: of p50, run by run,'
           ' median (lowest to highest). Wake-ups: sleeps that a completion ended, a request.', '',
           '| test | value | way | p50 / p99 / p99.9, us | p50 time/TCP | wake-ups client / server | immediates |', '|---' * 7 + '|']
    for x in r['rows']:
        for w, v in x['ways'].items():
            q = v['of_tcp']
            own = ' | | '
            if w != 'tcp':
                own = (f'**{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f}) | {v["client_wakeups"] / v["rounds"]:.2f} / '
                       f'{v["server_wakeups"] / v["rounds"]:.2f} | {v["immediates"]}')
            out.append(f'| {x["test"]} | {size_name(x["size"])} | {w} | ' + ' / '.join(f'{v[k]["median"]:.1f}' for k in LEVELS) + f' | {own} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

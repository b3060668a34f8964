# SPDX-License-Identifier: BSD-2-Clause
"""What is to be reached, and what was: the summary at the top of docs/performance.md and in README.md."""
from common import size_name

LEAST, MOST = 'at least', 'at most'


def load(x):
    return f'{x["test"]} {size_name(x["size"])} -c {x["clients"]}'


def rows(parts, part):
    return parts.get(part, {}).get('rows', [])


def valkey(pipeline):
    return lambda parts: [(load(x), x['ratio']) for x in rows(parts, 'valkey')
                          if (x['clients'], x['pipeline'], x['size']) == (50, pipeline, 16)]


def megabyte(parts):
    return [(load(x), x['ratio']) for part in ('large', 'valkey') for x in rows(parts, part)
            if x['size'] == 1 << 20 and x.get('pipeline', 1) == 1]


def alone(parts):
    return [(f'{x["test"]} {size_name(x["size"])}', x['ways']['rdma-poll']['of_tcp']) for x in rows(parts, 'latency')]


def against_native(parts):
    return [(load(x), x['ways']['shim-shim']['of_native']) for x in rows(parts, 'native') if x['pipeline'] == 1]


def raw_verbs(parts):
    return [(k, x['ratios'][k]) for x in rows(parts, 'pingpong') if x['size'] == 64
            for k in ('shim-epoll/verbs-event', 'shim-spin/verbs-spin') if k in x['ratios']]


def crossing(parts):
    return [(f'{x["depth"]} outstanding', x['ways']['shim-shim']['of_native']) for x in rows(parts, 'crossing')]


def stalls(parts):
    return [(f'{x["depth"]} outstanding', exact(x['stalls'])) for x in rows(parts, 'crossing')]


def exact(v):
    return {'median': v, 'min': v, 'max': v}


def shim_of(parts, what):
    return [(x['what'], exact(x['per_request']['libvkrdma.so'])) for x in rows(parts, 'instructions') if what(x['what'])]


def instructions(parts):
    """A wait serves several requests there; a request that has one for itself is a row of the table."""
    return shim_of(parts, lambda what: what.endswith('-c 50 -P 1'))


def not_flagged(parts):
    return shim_of(parts, lambda what: what.startswith('client, epoll, nothing flagged'))


def not_flagged_share(parts):
    """Of a whole server's instructions, in percent."""
    return [(x['what'], exact(100 * x['per_request']['libvkrdma.so'] / (x['total'] - x['per_request']['libvkrdma.so'])))
            for x in rows(parts, 'instructions') if x['what'].startswith('redis-server') and 'nothing flagged' in x['what']]


def held(parts):
    return [x for x in parts.get('connections', {}).get('held', []) if x['way'] == 'rdma']


def idle_memory(parts):
    return [(f'{x["count"]} connections, {side}', exact(v / 1024)) for x in held(parts) for side, v in x['memory_each'].items()]


def together(parts):
    most = max(held(parts), key=lambda x: x['count'], default=None)
    return [(f'{most["count"]} connections', exact(most['together_pss'] / 1e9))] if most else []


def connect_rate(parts):
    return [({'churn': 'connect, close', 'request': 'connect, PING, close'}[x['kind']], x['ratio']) for x in rows(parts, 'connections')]


def rsocket(parts):
    return [(x['what'], x['ratio']) for x in rows(parts, 'rsocket') if x.get('ratio')]


# what, against, direction, value, unit, where from (bed, function)
TARGETS = [
    ('SET and GET, -c 50, 16 B', 'kernel TCP loopback', LEAST, 2.0, 'x', 'softverbs', valkey(1)),
    ('the same with -P 16', 'kernel TCP loopback', LEAST, 1.5, 'x', 'softverbs', valkey(16)),
    ('1 MiB values, bytes/s', 'kernel TCP loopback', LEAST, 1.5, 'x', 'softverbs', megabyte),
    ('p50 at -c 1, adaptive polling', 'kernel TCP loopback', MOST, 0.4, 'x its time', 'softverbs', alone),
    ('both ends under the shim, -c 1, 10, 50, 64 B to 64 KiB', 'native Valkey RDMA at both ends', LEAST, 1.2, 'x', 'softverbs', against_native),
    ('ping-pong p50, 64 B', 'raw verbs, WRITE_WITH_IMM', MOST, 1.15, 'x its time', 'softverbs', raw_verbs),
    ('p99.9 of 4 KiB across ring ends', 'native Valkey RDMA at both ends', MOST, 0.5, 'x its time', 'softverbs', crossing),
    ('sender stalls in that', '', MOST, 0, '', 'softverbs', stalls),
    ('instructions in the shim, a request (read, write, share of epoll_wait)', '', MOST, 1000, '', 'softverbs', instructions),
    ('instructions added to a write, an epoll_wait and a read of what is not flagged', '', MOST, 45, '', 'softverbs', not_flagged),
    ('what that adds to redis-server with nothing flagged', 'no preload', MOST, 1, '%', 'softverbs', not_flagged_share),
    ('memory of an idle connection', '', MOST, 80, 'KiB', 'softverbs', idle_memory),
    ('all connections at once, both processes', '', MOST, 4, 'GB', 'softverbs', together),
    ('connections a second', 'kernel TCP loopback', LEAST, 0.333, 'x', 'softverbs', connect_rate),
    ('stock programs that survive it', "rdma-core's rsocket preload", LEAST, 1.2, 'x', 'guest', rsocket),
]


def number(v, unit=''):
    return f'{v:.0f}' if v == int(v) or abs(v) >= 100 else f'{v:.2f}'


def measured(results, bed, find):
    """[(which, summary)] of one target; [] where nothing was measured."""
    return find(results[bed]['parts']) if bed in results else []


def verdict(direction, goal, found):
    """(worst, whether it reaches the goal)"""
    worst = (min if direction == LEAST else max)(found, key=lambda x: x[1]['median'])
    return worst, worst[1]['median'] >= goal if direction == LEAST else worst[1]['median'] <= goal


def table(results):
    out = ['| what | against | to reach | measured: worst to best row | worst row (lowest to highest run) | reached |', '|---' * 6 + '|']
    for what, against, direction, goal, unit, bed, find in TARGETS:
        head = f'| {what} | {against} | {direction} {number(goal)} {unit}'.rstrip() + ' | '
        found = measured(results, bed, find)
        if not found:
            out.append(head + 'not measured | | |')
            continue
        (which, s), ok = verdict(direction, goal, found)
        best = (max if direction == LEAST else min)(x[1]['median'] for x in found)
        span = number(s['median']) if best == s['median'] else f'{number(s["median"])} to {number(best)}'
        spread = '' if s['min'] == s['max'] else f' ({number(s["min"])} to {number(s["max"])})'
        out.append(head + f'**{span}** | {which}{spread} | {"yes" if ok else "no"} |')
    return '\n'.join(out)

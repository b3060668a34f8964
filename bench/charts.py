# SPDX-License-Identifier: BSD-2-Clause
"""The plots of docs/performance.md: one a part, from the same figures as its table."""
from common import size_name
from svg import bars


def one(colour, s, scale=1.0):
    """A bar of a summary: its median, a whisker between its quartiles."""
    return {'colour': colour, 'parts': [s['median'] * scale], 'low': s['q1'] * scale, 'high': s['q3'] * scale}


def load(x):
    return f'{x["test"]} {size_name(x["size"])} -c {x["clients"]}' + (f' -P {x["pipeline"]}' if x.get('pipeline', 1) > 1 else '')


def valkey(r):
    return bars('valkey-benchmark: requests a second over RDMA, TCP = 1', 'RDMA/TCP', [(load(x), [one(0, x['ratio'])]) for x in r['rows']],
                ['RDMA/TCP, median; line: quartiles'], line=1.0)


def pingpong(r):
    ways = list(dict.fromkeys(w for x in r['rows'] for w in x['ways'] if not w.endswith('spin')))
    return bars('Round trip, p50', 'us', [(f'{size_name(x["size"])}, {w}', [one(('tcp', 'shim', 'verbs').index(w.split('-')[0]), x['ways'][w]['p50_us'])])
                                          for x in r['rows'] for w in ways if w in x['ways']],
                ['kernel TCP', 'under the shim', 'raw verbs'], log=True)


def latency(r):
    names = list(r['rows'][0]['ways']) if r['rows'] else []
    return bars('One client, one request at a time: p50, p99, p99.9', 'us',
                [(f'{x["test"]} {size_name(x["size"])}, {label}', [one(i, x['ways'][w][k]) for i, w in enumerate(names)])
                 for x in r['rows'] for k, label in (('p50_us', 'p50'), ('p99_us', 'p99'), ('p999_us', 'p99.9'))], names, log=True)


def large(r):
    return bars('Large values', 'GB/s', [(load(x), [one(0, x['tcp'], 1e-9), one(1, x['rdma'], 1e-9)]) for x in r['rows']], ['TCP', 'RDMA'])


def connections(r):
    kinds = {'churn': 'connect, close', 'request': 'connect, PING, close'}
    return bars('Connections a second', '1/s', [(kinds[x['kind']], [one(0, x['tcp']), one(1, x['rdma'])]) for x in r['rows']]
                + [(f'{x["count"]} opened and kept, {x["way"]}', [{'colour': int(x['way'] == 'rdma'), 'parts': [x['per_second']]}])
                   for x in r['held']], ['TCP', 'RDMA'])


def crossing(r):
    names = list(r['rows'][0]['ways']) if r['rows'] else []
    return bars('GETs of 4 KiB across ring ends', 'us', [(f'{x["depth"]} outstanding, {label}', [one(i, x['ways'][w][k]) for i, w in enumerate(names)])
                                                        for x in r['rows'] for k, label in (('p50_us', 'p50'), ('p99_us', 'p99'), ('p999_us', 'p99.9'))],
                names, log=True)


def cpu(r):
    groups = []
    for x in r['rows']:
        for side in ('client', 'server'):
            groups.append((f'{load(x)}, {side}', [
                {'colour': [i, i + 2], 'parts': [v[f'{side}_user_us']['median'], v[f'{side}_system_us']['median']]}
                for i, v in enumerate(x['ways'].values())]))
    return bars('Processor time a request', 'us', groups, ['TCP, user', 'RDMA, user', 'TCP, system', 'RDMA, system'])


def syscalls(r):
    names = list(dict.fromkeys(x['way'] for x in r['rows']))
    loads = list(dict.fromkeys((x['size'], x['clients'], x['pipeline']) for x in r['rows']))
    groups = []
    for size, c, p in loads:
        for side in ('client', 'server'):
            here = {x['way']: x[side]['total'] for x in r['rows'] if (x['size'], x['clients'], x['pipeline']) == (size, c, p)}
            groups.append((f'GET {size_name(size)} -c {c} -P {p}, {side}',
                           [{'colour': i, 'parts': [max(here[w], 0)]} for i, w in enumerate(names) if w in here]))
    return bars('System calls a request', 'calls', groups, names)


def native(r):
    names = ['shim-shim', 'shim-native', 'native-shim', 'tcp']
    return bars('Requests a second, native RDMA at both ends = 1', 'of native-native',
                [(load(x), [one(i, x['ways'][w]['of_native']) for i, w in enumerate(names) if w in x['ways']]) for x in r['rows']], names, line=1.0)


def instructions(r):
    libs = list(r['rows'][0]['per_request']) if r['rows'] else []
    return bars('Instructions a request in user space', 'instructions',
                [(x['what'].split(': ')[0] + (', ' + x['what'].split(', ')[-1] if ': ' in x['what'] else ''),
                  [{'colour': list(range(len(libs))), 'parts': [max(x['per_request'][k], 0) for k in libs]}]) for x in r['rows']], libs)


CHARTS = {f.__name__: f for f in (valkey, pingpong, latency, large, connections, crossing, cpu, syscalls, native, instructions)}

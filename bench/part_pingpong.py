# SPDX-License-Identifier: BSD-2-Clause
"""Round trips: sockets over TCP, the same program under the shim, and raw verbs on the same provider."""
import json
import os
import subprocess

from common import Failed, free_port, pairs, progress, size_name, summary, wait_line

SIZES = (64, 4096, 65536)
# name, kind of environment, mode of the program
WAYS = [
    ('tcp-block', 'plain', 'block'), ('shim-block', 'shim', 'block'),
    ('tcp-epoll', 'plain', 'epoll'), ('shim-epoll', 'shim', 'epoll'),
    ('verbs-event', 'verbs', 'event'), ('verbs-copy-event', 'verbs', 'event'),
    ('tcp-spin', 'plain', 'poll'), ('shim-spin', 'shim', 'poll'),
    ('verbs-spin', 'verbs', 'poll'), ('verbs-copy-spin', 'verbs', 'poll'),
]
RATIOS = [('shim-epoll', 'tcp-epoll'), ('shim-epoll', 'verbs-event'), ('shim-epoll', 'verbs-copy-event'),
          ('shim-spin', 'verbs-spin'), ('shim-spin', 'verbs-copy-spin'), ('shim-block', 'tcp-block')]


def once(b, name, kind, mode, size, seconds):
    port = free_port()
    prog = b.program('verbs_pingpong' if kind == 'verbs' else 'pingpong')
    extra = ['copy'] if 'copy' in name else []
    server = b.spawn([prog, 'server', b.host, port], 'serve' if kind == 'shim' else kind, port)
    try:
        wait_line(server, 'listening')
        client = b.spawn([prog, 'client', b.host, port, size, seconds, mode, *extra], kind, port, stdin=subprocess.PIPE)
        line = client.stdout.readline()
        if not line.startswith('{'):
            raise Failed(f'{name} {size}: {client.stderr.read()[-400:]}')
        got = json.loads(line)
        got['immediates'] = sum(b.immediates(client.pid)) if kind == 'shim' else 0
        if kind == 'shim' and got['immediates'] < 2 * got['rounds']:
            raise Failed(f'{name} {size}: {got["rounds"]} rounds but {got["immediates"]} immediates: not RDMA')
        client.stdin.close()
        client.wait(20)
    finally:
        b.stop(server)
    return got


def run(bench):
    seconds = 0.3 if bench.quick else 1
    ways = [w for w in WAYS if w[1] != 'verbs' or os.path.exists(bench.program('verbs_pingpong'))]
    if bench.provider == 'verbs' and len(os.sched_getaffinity(0)) < 4:  # two pollers starve a software device's own threads
        ways = [w for w in ways if w[2] != 'poll']
    rows, failures = [], []
    for size in SIZES:
        got = {name: [] for name, _, _ in ways}
        imm = {name: 0 for name, _, _ in ways}
        for i in range(bench.reps):
            progress(f'ping-pong {size_name(size)}, turn {i + 1} of {bench.reps}')
            for name, kind, mode in ways if i % 2 == 0 else ways[::-1]:
                try:
                    r = once(bench, name, kind, mode, size, seconds)
                except (Failed, subprocess.TimeoutExpired) as e:
                    failures.append(str(e))
                    progress(f'  FAILED: {e}')
                    continue
                got[name].append(r)
                imm[name] += r['immediates']
        row = {'size': size, 'ways': {n: {'mean_us': summary([r['mean_us'] for r in v]), 'p50_us': summary(
            [r['p50_us'] for r in v]), 'p99_us': summary([r['p99_us'] for r in v]), 'immediates': imm[n]}
            for n, v in got.items() if v}}
        row['ratios'] = {f'{a}/{c}': pairs([r['p50_us'] for r in got[c]], [r['p50_us'] for r in got[a]])
                         for a, c in RATIOS if got.get(a) and got.get(c) and len(got[a]) == len(got[c])}
        rows.append(row)
    return {'rows': rows, 'failures': failures}


def markdown(r, reps):
    out = [f'Round trips, median of {reps} interleaved runs, microseconds: p50 (p99). `epoll`: write, epoll_wait, read, asleep in'
           ' between; `spin`: epoll_wait with no time-out, or ibv_poll_cq; `copy`: raw verbs that also copy the payload out of and'
           ' into buffers of their own, as every read and write must.', '',
           '| way | ' + ' | '.join(size_name(x['size']) for x in r['rows']) + ' |',
           '|---|' + '---|' * len(r['rows'])]
    for name, _, _ in WAYS:
        if any(name in x['ways'] for x in r['rows']):
            cells = [f'{x["ways"][name]["p50_us"]["median"]:.1f} ({x["ways"][name]["p99_us"]["median"]:.1f})'
                     if name in x['ways'] else 'failed' for x in r['rows']]
            out.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    for a, c in RATIOS:
        key = f'{a}/{c}'
        cells = [f'{x["ratios"][key]["median"]:.2f} ({x["ratios"][key]["min"]:.2f} to {x["ratios"][key]["max"]:.2f})'
                 if key in x['ratios'] else '' for x in r['rows']]
        out.append(f'| **{key}** | ' + ' | '.join(cells) + ' |')
    proof = ', '.join(f'{n} {sum(x["ways"][n]["immediates"] for x in r["rows"] if n in x["ways"])}'
                      for n, k, _ in WAYS if k == 'shim')
    out.append(f'\nImmediates counted by the shimmed clients: {proof}.')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

# SPDX-License-Identifier: BSD-2-Clause
"""Requests of 4 KiB across the ends of the receive ring: the slowest of them, native ends, ends under the shim, and TCP.

bench/refresh.c fetches a value of 4 KiB again and again. A native client's ring of 1 MiB takes about 255 replies, so that one in 255
waits for another RegisterXferMemory: more than the thousandth that p99.9 leaves out.
"""
from common import Failed, pairs, progress, summary
from refresh import Refresh, percentile

VALUE = 4096
CASES = {'tcp': ('TCP', 'tcp', 'tcp', {}), 'native-native': ('native', 'native', 'native', {}), 'shim-shim': ('shim', 'shim', 'shim', {})}
LEVELS = {'p50': 0.5, 'p99': 0.99, 'p999': 0.999}


def once(r, case, count, depth):
    for attempt in range(3):  # native ends hang now and then, by themselves
        before = r.b.totals(r.servers['shim'].pid)
        try:
            took = r.once(CASES[case], (depth, 0), count, 'x')
            break
        except Failed as e:
            progress(f'  {e}')
            if case == 'shim-shim' or attempt == 2:
                raise
    after = r.b.totals(r.servers['shim'].pid)
    grown = {k: v - before[k] for k, v in after.items()}
    if case == 'shim-shim' and (min(grown['immediates_in'], grown['immediates_out']) <= 0 or grown['bytes_out'] < count * VALUE):
        raise Failed(f'{case}: the immediates do not account for it, so this was not RDMA')
    return took, grown


def run(bench):
    r = Refresh(bench)
    for port in r.control.values():
        r.set_value(port, b'x', VALUE)
    count = 2000 if bench.quick else 10000
    out = {'count': count, 'value': VALUE, 'rows': [], 'failures': []}
    for depth in (1, 8):
        runs, proof = {c: [] for c in CASES}, {'stalls': 0, 'immediates': 0, 'refreshes': 0}
        try:
            for i in range(bench.reps):
                progress(f'4 KiB across ring ends, {depth} outstanding, turn {i + 1} of {bench.reps}')
                for case in list(CASES) if i % 2 == 0 else list(CASES)[::-1]:
                    took, grown = once(r, case, count, depth)
                    runs[case].append({k: percentile(took, q) for k, q in LEVELS.items()})
                    if case == 'shim-shim':
                        proof['stalls'] += grown['stalls']
                        proof['refreshes'] += grown['refreshes_in']
                        proof['immediates'] += grown['immediates_in'] + grown['immediates_out']
        except Failed as e:
            out['failures'].append(f'{depth} outstanding: {e}')
            progress(f'  FAILED: {e}')
            continue
        out['rows'].append({'depth': depth, **proof, 'ways': {
            c: {**{k + '_us': summary([x[k] for x in runs[c]]) for k in LEVELS},
                'of_native': pairs([x['p999'] for x in runs['native-native']], [x['p999'] for x in runs[c]])} for c in CASES}})
    for p in r.servers.values():
        bench.stop(p)
    return out


def markdown(r, reps):
    out = [f'GETs of {r["value"] >> 10} KiB one after another, {r["count"]} a run, medians of {reps} interleaved runs; time of p99.9 against'
           ' native ends, run by run: median (lowest to highest). Stalls: how often the shimmed server had bytes and no room.', '',
           '| outstanding | ends | p50 / p99 / p99.9, us | p99.9 time/native | stalls | refreshes | immediates |', '|---' * 7 + '|']
    for x in r['rows']:
        for c, v in x['ways'].items():
            q = v['of_native']
            own = f'{x["stalls"]} | {x["refreshes"]} | {x["immediates"]}' if c == 'shim-shim' else ' | | '
            ratio = '' if c == 'native-native' else f'**{q["median"]:.2f}** ({q["min"]:.2f} to {q["max"]:.2f})'
            out.append(f'| {x["depth"]} | {c} | ' + ' / '.join(f'{v[k + "_us"]["median"]:.0f}' for k in LEVELS) + f' | {ratio} | {own} |')
    out += [f'\nFailed: {f}' for f in r['failures']]
    return '\n'.join(out)

# SPDX-License-Identifier: BSD-2-Clause
"""table.py FOLDER: the results that test_matrix.py left there, as one table."""
import glob
import json
import os
import sys

TOPICS = ('values', 'pipelines', 'large_replies', 'many', 'ipv6', 'addresses', 'restart', 'client_killed', 'link_down', 'device_removed')


def human(n):
    for unit in ('', 'k', 'M', 'G'):
        if n < 10000 or unit == 'G':
            return f'{n:.0f}{unit}'
        n /= 1000
    return ''


def render(outcomes):
    """One line a cell; then why a topic is not ok. The last columns prove the transport: what the shimmed end counted, or the
    bytes that a native server took in and gave out."""
    rows, notes = [['client', 'server', *(t.replace('_', ' ') for t in TOPICS), 'immediates in/out', 'bytes in/out']], []
    for cell in sorted(outcomes, key=lambda c: c.split('.')[::-1]):
        topics = outcomes[cell]
        proof = topics.get('proof', {})
        pair = [f'{human(proof.get(k + "_in", 0))}/{human(proof.get(k + "_out", 0))}' if k + '_in' in proof else 'native'
                for k in ('immediates', 'bytes')]
        rows.append([*cell.split('.'), *(topics.get(t, ('',))[0] for t in TOPICS), *pair])
        notes += [f'{cell} {t}: {topics[t][0]}: {topics[t][1]}' for t in TOPICS if t in topics and topics[t][1]]
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = ['  '.join(c.ljust(w) for c, w in zip(r, widths)).rstrip() for r in rows]
    return '\n'.join([lines[0], '-' * len(lines[0]), *lines[1:], *notes])


def main():
    outcomes = {}
    for path in glob.glob(os.path.join(sys.argv[1], '*.json')):
        with open(path, encoding='utf-8') as f:
            outcomes[os.path.basename(path)[:-len('.json')]] = json.load(f)
    if not outcomes:
        sys.exit(f'no results in {sys.argv[1]}')
    print(render(outcomes))


if __name__ == '__main__':
    main()

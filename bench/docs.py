# SPDX-License-Identifier: BSD-2-Clause
"""Figures into documents: tables and plots from the JSON of runs, never from anywhere else.

bench/results/BED.json keeps the newest figures of every part; docs/performance.md has a block for each (BED/PART, and `targets`), and
docs/img/bench-BED-PART.svg a plot. A part that was measured again replaces itself there and leaves the others.
"""
import json
import os
import re

import charts
import targets
from common import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS, DOCS = os.path.join(HERE, 'results'), os.path.join(HERE, '..', 'docs')
BLOCK = re.compile(r'(<!-- bench: ?begin ([\w/-]+)[^>]*-->\n).*?(<!-- bench: ?end -->)', re.S)
README = re.compile(r'(<!-- benchmark results: ?begin[^>]*-->\n).*?(<!-- benchmark results: ?end[^>]*-->)', re.S)


def busy(run):
    return run['machine']['load_before'] > 0.5 * run['machine']['cores'] and not run.get('realtime')


def head(run):
    m = run['machine']
    text = (f'Measured {run["date"]} on {m["cores"]} cores ({m["cpu"] or m["arch"]}), {m["memory_gib"]} GiB, Linux {m["kernel"]}, '
            f'{m["libc"]}; {"softverbs" if run["provider"] == "soft" else "rdma-core"}; load before: {m["load_before"]}'
            f'{", at real-time priority" if run.get("realtime") else ""}. Made by `bench/run.sh{" --quick" if run["quick"] else ""}`.')
    if busy(run):
        text += ' **Provisional: the machine was busy with other things.**'
    return text


def part_text(module, name, part):
    if 'failed' in part:
        return f'Not measured ({name}): {part["failed"]}'
    return module.markdown(part, part['run']['reps'])


def tables(modules, result):
    """Everything of one run."""
    out, last = [], None
    for name, module in modules.items():
        if name not in result['parts']:
            continue
        part = result['parts'][name]
        if part['run'] != last:
            out += [head(part['run']), '']
            last = part['run']
        out += [part_text(module, name, part), '']
    return '\n'.join(out)


def store(result, bed, folder=RESULTS):
    """Merges a run into what is kept of its bed. A part that could not be measured does not replace one that was."""
    os.makedirs(folder, exist_ok=True)
    path, kept = os.path.join(folder, bed + '.json'), {'parts': {}}
    if os.path.exists(path):
        with open(path, encoding='utf-8') as f:
            kept = json.load(f)
    kept['parts'].update({k: v for k, v in result['parts'].items() if 'failed' not in v or k not in kept['parts']})
    write(path, json.dumps(kept, indent=1) + '\n')


def load(folder=RESULTS):
    found = {}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith('.json'):
            with open(os.path.join(folder, name), encoding='utf-8') as f:
                found[name[:-5]] = json.load(f)
    return found


def write(path, text):
    with open(path + '.new', 'w', encoding='utf-8') as f:
        f.write(text)
    os.replace(path + '.new', path)


def plot(folder, bed, name, part):
    """The file's name, or None where there is nothing to draw."""
    draw = charts.CHARTS.get(name)
    svg = draw(part) if draw and 'failed' not in part and part.get('rows') else None
    if not svg:
        return None
    os.makedirs(folder, exist_ok=True)
    file = f'bench-{bed}-{name}.svg'
    write(os.path.join(folder, file), svg)
    return file


def summary(results):
    runs = [p['run'] for r in results.values() for p in r['parts'].values()]
    note = '\n\nProvisional: some of it was measured while the machine was busy.' if any(busy(x) for x in runs) else ''
    return targets.table(results) + note


def block(modules, results, name, images):
    if name == 'targets':
        return summary(results)
    bed, _, part = name.partition('/')
    if part not in modules:
        raise Failed(f'performance.md has a block {name}, and there is no such part')
    found = results.get(bed, {}).get('parts', {}).get(part)
    if not found:
        return 'Not measured yet.'
    image = plot(images, bed, part, found)
    picture = f'![{part}](img/{image})\n\n' if image else ''
    return picture + part_text(modules[part], part, found) + '\n\n' + head(found['run'])


def render(modules, results, folder=DOCS):
    """Every block of performance.md anew."""
    path, images, seen = os.path.join(folder, 'performance.md'), os.path.join(folder, 'img'), set()
    with open(path, encoding='utf-8') as f:
        old = f.read()

    def fill(m):
        seen.add(m.group(2))
        return f'{m.group(1)}\n{block(modules, results, m.group(2), images)}\n\n{m.group(3)}'
    new = BLOCK.sub(fill, old)
    lost = {f'{bed}/{part}' for bed, r in results.items() for part in r['parts']} - seen
    if lost or len(seen) != len(re.findall('<!-- bench: ?begin', old)):
        raise Failed(f'performance.md: no block, or not one block each, for: {", ".join(sorted(lost)) or "see the markers"}')
    write(path, new)


def readme(results, path):
    with open(path, encoding='utf-8') as f:
        old = f.read()
    text = summary(results) + '\n\nTables, plots and what they mean: [docs/performance.md](docs/performance.md).'
    new, n = README.subn(lambda m: f'{m.group(1)}\n{text}\n\n{m.group(2)}', old)
    if n != 1:
        raise Failed(f'{os.path.basename(path)} has no single block between <!-- benchmark results: begin --> and end')
    write(path, new)

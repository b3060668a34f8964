# SPDX-License-Identifier: BSD-2-Clause
"""The pure parts of the benchmark: arithmetic, parsing, plots, documents. Nothing is measured here."""
import os
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import charts  # noqa: E402
import docs  # noqa: E402
import svg  # noqa: E402
import targets  # noqa: E402
from common import Failed, pairs, size_name, summary  # noqa: E402
from part_instructions import bare  # noqa: E402
from part_latency import markdown as latency_markdown  # noqa: E402
from part_syscalls import Perf, Strace  # noqa: E402
from run import PARTS, row  # noqa: E402
from stock import parse  # noqa: E402

OUTPUT = '''====== SET ======
  1000 requests completed in 0.02 seconds

Latency by percentile distribution:
0.000% <= 0.031 milliseconds (cumulative count 1)
50.000% <= 0.063 milliseconds (cumulative count 600)
98.900% <= 0.103 milliseconds (cumulative count 989)
99.500% <= 0.207 milliseconds (cumulative count 995)
100.000% <= 0.303 milliseconds (cumulative count 1000)

Summary:
  throughput summary: 50000.00 requests per second

====== GET ======
100.000% <= 0.127 milliseconds (cumulative count 1)
  throughput summary: inf requests per second
'''


def run_of(load=0.1, **more):
    return {'date': '2026-01-02', 'machine': {'cores': 2, 'cpu': 'x', 'arch': 'y', 'memory_gib': 4, 'kernel': '6.1', 'libc': 'glibc 2',
                                              'load_before': load}, 'provider': 'soft', 'quick': False, 'reps': 3, **more}


def latency(*times):
    way = {k: summary(list(times)) for k in ('p50_us', 'p99_us', 'p999_us')}
    return {'server': 's', 'failures': [], 'run': run_of(), 'rows': [{'test': 'GET', 'size': 64, 'ways': {
        w: {**way, 'of_tcp': pairs([40, 40, 40], list(times)), 'rounds': 10, 'immediates': 20, 'client_wakeups': 5, 'server_wakeups': 1}
        for w in ('tcp', 'rdma-poll', 'rdma-sleep')}}]}


class Arithmetic(unittest.TestCase):
    def test_chosen_rows(self):
        self.assertEqual(row('50,16,1048576'), (50, 16, 1 << 20))
        for bad in ('50,16', '50,16,x', '1,2,3,4'):
            self.assertRaises(ValueError, row, bad)

    def test_summary(self):
        s = summary([5, 1, 3, 2, 4])
        self.assertEqual((s['median'], s['q1'], s['q3'], s['min'], s['max']), (3, 2, 4, 1, 5))
        self.assertEqual(summary([7])['q3'], 7)

    def test_ratios_are_formed_pair_by_pair(self):
        # Both sides slow down together: the ratio stays, whatever the medians say.
        q = pairs([10, 100, 1000], [20, 200, 2000])
        self.assertEqual((q['min'], q['median'], q['max']), (2, 2, 2))

    def test_size_name(self):
        self.assertEqual([size_name(n) for n in (16, 1024, 1 << 20)], ['16 B', '1 KiB', '1 MiB'])

    def test_ticks(self):
        self.assertEqual(svg.ticks(2.2), [0, 0.5, 1.0, 1.5, 2.0])
        self.assertEqual(svg.decades(1, 100), [1, 3, 10, 30, 100])


class Parsing(unittest.TestCase):
    def test_benchmark_output(self):
        got = parse(OUTPUT)
        self.assertEqual(got['SET'], {'rps': 50000.0, 'p50_ms': 0.063, 'p99_ms': 0.207, 'p999_ms': 0.303})
        self.assertEqual(got['GET']['rps'], float('inf'))

    def test_counts_of_system_calls(self):
        with tempfile.NamedTemporaryFile('w+') as f:
            f.write('# started\n\n300,,raw_syscalls:sys_enter,1,100.00,,\n200,,syscalls:sys_enter_read,1,100.00,,\n<not supported>,,x,0,,,\n')
            f.flush()
            self.assertEqual(Perf.read(None, f.name), (300, {'read': 200}))
        with tempfile.NamedTemporaryFile('w+') as f:
            f.write('% time seconds usecs/call calls errors syscall\n 60.0 0.1 1 20 3 read\n 40.0 0.1 1 5 write\n100.0 0.2 25 3 total\n')
            f.flush()
            self.assertEqual(Strace.read(f.name), (25, {'read': 20, 'write': 5}))

    def test_bare_names(self):
        self.assertEqual(bare("vkr_poll'2 [libvkrdma.so]"), 'vkr_poll')


class Plots(unittest.TestCase):
    def rects(self, text):
        return [r for r in ET.fromstring(text).iter('{http://www.w3.org/2000/svg}rect') if r.get('x') and float(r.get('x')) >= svg.LEFT]

    def test_bars_are_as_long_as_their_values(self):
        text = svg.bars('a & b', 'us', [('one <1>', [{'colour': 0, 'parts': [1]}]), ('two', [{'colour': 1, 'parts': [2], 'low': 1, 'high': 3}])], ['x'])
        one, two = (float(r.get('width')) for r in self.rects(text))
        self.assertAlmostEqual(two / one, 2, delta=0.01)
        self.assertIn('one &lt;1&gt;', text)

    def test_segments_stand_end_to_end(self):
        a, b = self.rects(svg.bars('t', 'us', [('g', [{'colour': [0, 1], 'parts': [3, 1]}])], []))
        self.assertAlmostEqual(float(a.get('x')) + float(a.get('width')), float(b.get('x')), delta=0.11)
        self.assertNotEqual(a.get('fill'), b.get('fill'))

    def test_nothing_to_draw(self):
        self.assertIsNone(svg.bars('t', 'us', [], []))
        self.assertIsNone(svg.bars('t', 'us', [('g', [{'colour': 0, 'parts': [0]}])], []))

    def test_logarithmic(self):
        a, b, c = (float(r.get('width')) for r in self.rects(
            svg.bars('t', 'us', [('g', [{'colour': 0, 'parts': [v]} for v in (10, 100, 1000)])], [], log=True)))
        self.assertAlmostEqual(b - a, c - b, delta=0.3)

    def test_every_part_has_a_plot_or_none_on_purpose(self):
        self.assertEqual(set(PARTS) - set(charts.CHARTS), {'rsocket'} & set(PARTS))


class Goals(unittest.TestCase):
    def test_the_worst_row_decides(self):
        rows = [('a', summary([2.5])), ('b', summary([1.9]))]
        (which, _), ok = targets.verdict(targets.LEAST, 2.0, rows)
        self.assertEqual((which, ok), ('b', False))
        (which, _), ok = targets.verdict(targets.MOST, 2.5, rows)
        self.assertEqual((which, ok), ('a', True))

    def test_table(self):
        text = targets.table({'softverbs': {'parts': {'latency': latency(10, 12, 14)}}})
        line = next(x for x in text.splitlines() if x.startswith('| p50 at -c 1'))
        self.assertIn('**0.30** | GET 64 B (0.25 to 0.35) | yes |', line)
        self.assertIn('not measured', next(x for x in text.splitlines() if 'raw verbs' in x))
        self.assertEqual(len(text.splitlines()), 2 + len(targets.TARGETS))


PAGE = '# x\n<!-- bench: begin targets; note -->\nold\n<!-- bench: end -->\nkept\n<!-- bench: begin softverbs/latency -->\nold\n<!-- bench: end -->\n'


class Documents(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.page(PAGE)

    def page(self, text):
        with open(os.path.join(self.dir.name, 'performance.md'), 'w', encoding='utf-8') as f:
            f.write(text)

    def read(self, name):
        with open(os.path.join(self.dir.name, name), encoding='utf-8') as f:
            return f.read()

    def test_blocks_and_plots(self):
        results = {'softverbs': {'parts': {'latency': latency(10, 12, 14)}}}
        for _ in range(2):  # again gives the same
            docs.render(PARTS, results, self.dir.name)
            text = self.read('performance.md')
            self.assertIn(latency_markdown(latency(10, 12, 14), 3), text)
            self.assertNotIn('old', text)
            self.assertEqual(text.count('kept'), 1)
            self.assertEqual(text.count('bench: begin'), 2)
        self.assertIn('(img/bench-softverbs-latency.svg)', text)
        ET.fromstring(self.read('img/bench-softverbs-latency.svg'))
        self.assertNotIn('Provisional', text)

    def test_figures_of_a_busy_machine_say_so(self):
        part = latency(10, 12, 14)
        part['run'] = run_of(load=1.5)
        docs.render(PARTS, {'softverbs': {'parts': {'latency': part}}}, self.dir.name)
        self.assertEqual(self.read('performance.md').count('Provisional'), 2)  # the summary and the block

    def test_a_part_without_a_block_is_told(self):
        with self.assertRaisesRegex(Failed, 'guest/latency'):
            docs.render(PARTS, {'guest': {'parts': {'latency': latency(1, 2)}}}, self.dir.name)

    def test_an_unknown_block_is_told(self):
        self.page(PAGE.replace('softverbs/latency', 'softverbs/latencies'))
        with self.assertRaisesRegex(Failed, 'latencies'):
            docs.render(PARTS, {}, self.dir.name)

    def test_the_page_has_a_block_for_every_part(self):
        with open(os.path.join(docs.DOCS, 'performance.md'), encoding='utf-8') as f:
            blocks = [m.group(2) for m in docs.BLOCK.finditer(f.read())]
        self.assertEqual(len(blocks), len(set(blocks)))
        self.assertLessEqual({f'softverbs/{p}' for p in PARTS if p != 'rsocket'} | {'targets'}, set(blocks))

    def test_a_run_replaces_its_parts_only(self):
        docs.store({'parts': {'latency': latency(1), 'cpu': {'rows': [1], 'failures': [], 'run': run_of()}}}, 'b', self.dir.name)
        docs.store({'parts': {'latency': latency(2), 'cpu': {'failed': 'no', 'run': run_of()}}}, 'b', self.dir.name)
        kept = docs.load(self.dir.name)['b']['parts']
        self.assertEqual(kept['latency']['rows'][0]['ways']['tcp']['p50_us']['median'], 2)
        self.assertEqual(kept['cpu']['rows'], [1])

    def test_failures_are_shown(self):
        part = {'failed': 'no device', 'run': run_of()}
        docs.render(PARTS, {'softverbs': {'parts': {'latency': part}}}, self.dir.name)
        self.assertIn('Not measured (latency): no device', self.read('performance.md'))
        part = latency(1)
        part['failures'] = ['get 64 B: it hung']
        self.assertIn('Failed: get 64 B: it hung', latency_markdown(part, 3))


if __name__ == '__main__':
    unittest.main()

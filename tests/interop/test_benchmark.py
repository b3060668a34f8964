# SPDX-License-Identifier: BSD-2-Clause
"""valkey-benchmark and redis-benchmark run their whole default list: no hang, no error, every row there."""
import csv

import harness

REQUESTS = harness.by_tier(500, 2000, 100_000, 200)
# A reply of LRANGE_600 with 64 KiB values has 39 MB: few of those are a lot.
BIG_REQUESTS = harness.by_tier(50, 50, 200, 10)
BIG = harness.by_tier(65536, 65536, 65536, 20000)
VARIANTS = {
    'c50': ['-c', '50', '-n', REQUESTS],
    'pipeline32': ['-c', '50', '-P', '32', '-n', max(REQUESTS, 50 * 32)],
    'large': ['-c', min(50, BIG_REQUESTS), '-d', BIG, '-n', BIG_REQUESTS],
    'threads2': ['-c', '50', '--threads', '2', '-n', REQUESTS],
}
SERVERS = {'valkey_io1': ('valkey', []), 'valkey_io2': ('valkey', ['--io-threads', '2']), 'redis': ('redis', [])}


class Benchmark(harness.Case):
    def bench(self, tool, server, variant):
        self.need(tool)
        if harness.ASAN:
            self.skipTest('valkey-benchmark does not run with the runtime of AddressSanitizer, with or without the library')
        kind, args = SERVERS[server]
        s = self.server(*args, kind=kind)
        timeout = 600 if harness.TIER == 'full' else 90
        # With VKRDMA_FALLBACK=none redis-benchmark would spin for ever on a connect that failed.
        proc = self.spawn([tool, '-h', harness.HOST, '-p', s.port, '--csv', *VARIANTS[variant]], s.port,
                          env={'VKRDMA_FALLBACK': 'tcp'} if harness.CARRIED else None)
        out = self.finish(proc, timeout).decode()
        self.assert_no_fallback()
        rows = [r for r in csv.reader(out.splitlines()) if len(r) >= 2 and r[0] != 'test']
        names = [r[0] for r in rows]
        for needed in ('PING_INLINE', 'SET', 'GET', 'LPUSH', 'LRANGE_600 (first 600 elements)', 'MSET (10 keys)'):
            self.assertIn(needed, names)
        self.assertGreaterEqual(len(rows), 18, names)
        for row in rows:
            self.assertGreater(float(row[1]), 0, row)
        if not server.startswith('valkey') or tool == 'valkey-benchmark':
            self.assertNotIn(b'rror', proc.err, 'said on stderr')
        self.assertEqual(s.plain().info('stats')['total_error_replies'].strip(), '0')


def add(tool, server, variant):
    def test(self):
        self.bench(tool, server, variant)
    test.__name__ = f'test_{tool.replace("-", "_")}_{server}_{variant}'
    setattr(Benchmark, test.__name__, Benchmark._proved(test))


for _server in SERVERS:
    for _tool in ('valkey-benchmark', 'redis-benchmark'):
        # Natively the stranger's tool proves nothing that its own does not; the time goes to the carried runs.
        # On a device tests/native has each tool with each server.
        if harness.CARRIED and not harness.DEVICE or harness.TIER == 'full' or _tool.startswith(SERVERS[_server][0]):
            for _variant in VARIANTS:
                add(_tool, _server, _variant)

if __name__ == '__main__':
    harness.main()

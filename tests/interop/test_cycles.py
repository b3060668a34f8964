# SPDX-License-Identifier: BSD-2-Clause
"""Thousands of connect, PING, close cycles: nothing piles up on either side."""
import subprocess

import harness

CYCLES = harness.by_tier(500, 2000, 20000, 200)
KEPT = 63 * 76  # kB: queue pairs that a client may keep for the next connection (docs/decisions/0012)


class Cycles(harness.Case):
    def rss(self, pid):
        with open(f'/proc/{pid}/status', encoding='ascii') as f:
            return next(int(line.split()[1]) for line in f if line.startswith('VmRSS'))

    def cycle(self, kind, threads):
        s = self.server(kind=kind)
        self.run_client(self.script('cycles.py', s.port, 100, threads), s.port)
        c = s.plain()
        harness.wait('the warm-up to go', lambda: c.info('clients')['connected_clients'] == '1')
        base, rss = s.gauges(), self.rss(s.pid)
        p = self.spawn(self.script('cycles.py', s.port, CYCLES, threads), s.port, stdin=subprocess.PIPE)
        marks = {}
        for _ in range(2):
            line = p.stdout.readline().decode().split()
            self.assertTrue(line, p.stderr.read() if not line else '')
            marks[line[0]] = tuple(map(int, line[1:]))
        client_gauges = {}
        if harness.CARRIED:
            def drained():
                process = self.assert_carried(p.pid, 'the client')
                client_gauges.update({n: harness.find(process, n) for n in ('qps', 'mrs', 'library_fds')})
                return client_gauges['qps'] == 0
            harness.wait('the client to free its queue pairs', drained)
        marks['later'] = tuple(map(int, self.finish(p, 30, b'\n').split()[1:]))
        self.settle(s, base)
        # Descriptors exactly; memory with a margin for allocators and for a resident table that fills once.
        self.assertLessEqual(marks['later'][0], marks['early'][0], f'descriptors of the client {marks} {client_gauges}')
        self.assertLess(marks['later'][1], marks['early'][1] + 4096 + KEPT + CYCLES // 10, f'client kB {marks} {client_gauges}')
        self.assertLess(self.rss(s.pid), rss + 6144 + CYCLES // 10, f'server kB, before {rss}')

    def test_one_thread(self):
        self.cycle('valkey', 1)

    def test_four_threads(self):
        self.cycle('valkey', 4)

    def test_redis(self):
        self.cycle('redis', 2)


if __name__ == '__main__':
    harness.main()

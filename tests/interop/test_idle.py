# SPDX-License-Identifier: BSD-2-Clause
"""Idle connections cost next to nothing: CPU with 50 of them, memory with 1,000."""
import subprocess
import time

import harness

SECONDS = harness.by_tier(5, 10, 10)
MOST_BYTES = 160 << 10


class Idle(harness.Case):
    def idle_cpu(self, kind, *args):
        if harness.ASAN:
            self.skipTest('timing means nothing under a sanitizer')
        s = self.server(*args, kind=kind)
        clients = self.spawn(self.script('many.py', s.port, 50), s.port, stdin=subprocess.PIPE)
        self.expect_line(clients, b'ready\n')
        time.sleep(1)  # the end of the start-up; not a synchronisation: the measurement that follows is of a stretch of time
        before = {pid: harness.cpu_seconds(pid) for pid in (s.pid, clients.pid)}
        time.sleep(SECONDS)
        used = {pid: harness.cpu_seconds(pid) - t for pid, t in before.items()}
        # The server's own timer (hz 10) takes about 0.3 %.
        self.assertLess(used[s.pid], 0.02 * SECONDS, f'CPU seconds of the server in {SECONDS} s')
        self.assertLess(used[clients.pid], 0.01 * SECONDS, f'CPU seconds of the clients in {SECONDS} s')
        clients.stdin.write(b'ping\n')
        clients.stdin.flush()
        self.expect_line(clients, b'pong\n')  # they still work

    def test_cpu_valkey(self):
        self.idle_cpu('valkey')

    def test_cpu_valkey_io_threads(self):
        self.idle_cpu('valkey', '--io-threads', '2')

    def test_cpu_redis(self):
        self.idle_cpu('redis')

    def test_thousand_connections(self):
        count = 1000
        s = self.server()
        clients = [self.spawn(self.script('many.py', s.port, count // 2), s.port, stdin=subprocess.PIPE) for _ in range(2)]
        for p in clients:
            self.expect_line(p, b'ready\n')
        c = s.plain()
        self.assertGreaterEqual(int(c.info('clients')['connected_clients']), count)
        for p in clients:
            p.stdin.write(b'ping\n')
            p.stdin.flush()
        for p in clients:
            self.expect_line(p, b'pong\n')
        if harness.CARRIED:
            for pid, expect in ((s.pid, count), (clients[0].pid, count // 2)):
                process = harness.stat(pid)
                rdma = [x for x in process['connections'] if x['transport'] == 'rdma']
                self.assertEqual(len(rdma), expect, [x['reason'] for x in process['connections'] if x['transport'] != 'rdma'][:5])
                each = [(x.get('mem_mr') or 0) + (x.get('mem_queue') or 0) for x in rdma]
                self.assertGreater(min(each), 0, 'memory of a connection is reported')
                print(f'memory per idle connection: {max(each) >> 10} KiB at most ', end='')
                self.assertLess(max(each), MOST_BYTES)
        for p in clients:
            p.stdin.write(b'quit\n')
            p.stdin.flush()
            self.expect_line(p, b'closed\n')
        harness.wait('the server to drop them', lambda: c.info('clients')['connected_clients'] == '1', 60)


if __name__ == '__main__':
    harness.main()

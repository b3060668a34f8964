# SPDX-License-Identifier: BSD-2-Clause
"""Idle connections cost next to nothing: CPU with 50 of them, memory with 1,000 (on a device fewer)."""
import subprocess
import time

import harness

SECONDS = harness.by_tier(5, 10, 10)
MOST_BYTES = 160 << 10


class Idle(harness.Case):
    def idle_cpu(self, kind, *args):
        if harness.ASAN:
            self.skipTest('timing means nothing under a sanitizer')
        server, clients = self.used(kind, args, True)
        # The server's own timer (hz 10) takes about 0.3 %.
        most_server, most_clients = 0.02 * SECONDS, 0.01 * SECONDS
        if harness.DEVICE:  # an emulated processor takes many times that: twice what TCP takes there comes on top
            plain = self.used(kind, args, False)
            print(f'server {server:.2f} s, clients {clients:.2f} s; by TCP {plain[0]:.2f} s, {plain[1]:.2f} s ', end='', flush=True)
            most_server, most_clients = most_server + 2 * plain[0], most_clients + 2 * plain[1]
        self.assertLess(server, most_server, f'CPU seconds of the server in {SECONDS} s')
        self.assertLess(clients, most_clients, f'CPU seconds of the clients in {SECONDS} s')

    def used(self, kind, args, flagged):
        """CPU seconds of a server and of its 50 clients in SECONDS in which nobody says anything."""
        s = self.server(*args, kind=kind, flagged=flagged)
        clients = self.spawn(self.script('many.py', s.port, 50), s.port if flagged else [], stdin=subprocess.PIPE)
        self.expect_line(clients, b'ready\n')
        time.sleep(1)  # the end of the start-up; not a synchronisation: the measurement that follows is of a stretch of time
        before = [harness.cpu_seconds(pid) for pid in (s.pid, clients.pid)]
        time.sleep(SECONDS)
        used = [harness.cpu_seconds(pid) - t for pid, t in zip((s.pid, clients.pid), before)]
        clients.stdin.write(b'ping\n')
        clients.stdin.flush()
        self.expect_line(clients, b'pong\n')  # they still work
        return used

    def test_cpu_valkey(self):
        self.idle_cpu('valkey')

    def test_cpu_valkey_io_threads(self):
        self.idle_cpu('valkey', '--io-threads', '2')

    def test_cpu_redis(self):
        self.idle_cpu('redis')

    def test_memory_of_many(self):
        count = harness.by_tier(1000, 1000, 1000, 300)
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

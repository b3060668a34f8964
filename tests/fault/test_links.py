# SPDX-License-Identifier: BSD-2-Clause
"""Links that go down and up again, seen by both sides; injected into softverbs by VKRDMA_SOFT_FAULT."""
import os
import subprocess
import time

from common import HERE, Case, harness

PROMISE = 10  # seconds within which either side has noticed
SLACK = 3     # a loaded machine's


class Links(Case):
    def setUp(self):
        super().setUp()
        if harness.PROVIDER != 'soft':
            self.skipTest('only softverbs can inject faults')

    def idlers(self, port, n, env=None):
        """A client with n idle connections; it stays until its standard input ends."""
        p = self.spawn([harness.PYTHON, os.path.join(HERE, 'many_until.py'), harness.HOST, port, n], port, env, stdin=subprocess.PIPE)
        line = p.stdout.readline().decode()
        self.assertEqual(line, f'open {n} none\n', p.stderr.read()[-1000:] if not line else '')
        return p

    def ended(self, s, timeout):
        """Every RDMA connection of the server has; what softverbs keeps for a process lasts as long as that."""
        harness.wait('the server to notice', lambda: not s.gauges()['qps'] and not s.gauges()['mrs'], timeout)

    def qps(self, p):
        return harness.find(harness.stat(p.pid), 'qps')

    def test_idle(self):
        """Nobody says anything, and the client's link goes down for good: both sides end all connections, and new ones work
        from elsewhere."""
        s = self.server()
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        base = s.gauges()
        p = self.idlers(s.port, 5, {'VKRDMA_SOFT_FAULT': 'cut@3000'})
        self.assertEqual(self.qps(p), 5)
        start = time.monotonic()
        self.ended(s, 3 + PROMISE + SLACK)
        self.assertGreater(time.monotonic() - start, 2, 'the link was not cut')
        harness.wait('the client to notice', lambda: self.qps(p) == 0, PROMISE)
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        p.stdin.close()
        self.assertEqual(p.wait(20), 0)
        self.settle(s, base)

    def test_keepalive_option(self):
        """With VKRDMA_KEEPALIVE=0 it is the program's own SO_KEEPALIVE that finds the dead."""
        s = self.server('--tcp-keepalive', 1, env={'VKRDMA_KEEPALIVE': '0'})
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        base = s.gauges()
        p = self.idlers(s.port, 3, {'VKRDMA_SOFT_FAULT': 'cut@3000', 'VKRDMA_KEEPALIVE': '0'})
        self.ended(s, 3 + PROMISE + SLACK)
        self.assertEqual(self.qps(p), 3, 'nothing told the client, who did not ask')
        p.kill()
        p.wait()
        self.settle(s, base)

    def test_down_and_up(self):
        """The server's link: a client that waits for an answer has an error, and once the link is up connects again."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'cut@4000,join@16000'})
        began = time.monotonic()
        p = self.spawn(['redis-cli', '-h', harness.HOST, '-p', s.port, 'BLPOP', 'nothing', '0'], s.port)
        out = self.finish(p, 4 + PROMISE + SLACK, expect=None)
        self.assertGreater(time.monotonic() - began, 2, out)
        self.assertNotEqual(p.returncode, 0, out)
        self.assertTrue(s.alive())
        time.sleep(max(0, 17 - (time.monotonic() - began)))  # the link's own time, not a condition
        self.assertIn(b'PONG', self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port))


if __name__ == '__main__':
    if harness.MODE != 'carried':
        raise SystemExit(77)
    harness.main()

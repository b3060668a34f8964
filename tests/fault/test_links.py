# SPDX-License-Identifier: BSD-2-Clause
"""Links that go down and up again, seen by both sides, and devices that go while in use and come back; injected into
softverbs by VKRDMA_SOFT_FAULT."""
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

    def test_device(self):
        """The server's device goes: its clients' connections end, nothing of it is held, TCP goes on with the reason; when a
        device is back, so is RDMA."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'remove@4000,return@14000'})
        began = time.monotonic()
        p = self.spawn(['redis-cli', '-h', harness.HOST, '-p', s.port, 'BLPOP', 'nothing', '0'], s.port)
        harness.wait('the device to go', lambda: not s.gauges()['qps'] and time.monotonic() - began > 3, 4 + SLACK)
        now = harness.stat(s.pid)
        self.assertEqual([harness.find(now, name) for name in ('qps', 'mrs', 'mr_bytes', 'cqs')], [0, 0, 0, 0])
        self.assertEqual(now['listeners'][0]['transport'], 'tcp')
        self.assertIn('removed', now['listeners'][0]['reason'])
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, env={'VKRDMA_FALLBACK': 'tcp'})
        # An event loop that was told of nothing must not spin on what was closed.
        used = cpu(s.pid)
        time.sleep(2)
        self.assertLess(cpu(s.pid) - used, 0.3)
        out = self.finish(p, PROMISE + SLACK, expect=None)
        self.assertNotEqual(p.returncode, 0, out)
        harness.wait('the listener', lambda: harness.stat(s.pid)['listeners'][0]['transport'] == 'rdma', 20)
        self.assertGreater(time.monotonic() - began, 13)
        self.assertIn(b'PONG', self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port))

    def test_late_device(self):
        """No device when the server starts; one comes, and is used without a restart."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'absent,return@3000', 'VKRDMA_LOG': 'warn'})

        def ask():
            self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, env={'VKRDMA_FALLBACK': 'tcp'})
            return harness.stat(s.pid)['listeners'][0]['transport'] == 'rdma'
        self.assertFalse(ask())
        harness.wait('RDMA', ask, 30, 1)
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        with open(s.log, encoding='utf-8', errors='replace') as f:
            self.assertEqual(f.read().count('RDMA is not available'), 1)

    def test_client_device(self):
        """A client's device goes while it works, and it connects again by TCP, later by RDMA."""
        s = self.server()
        env = {'VKRDMA_SOFT_FAULT': 'remove@3000,return@6000', 'VKRDMA_FALLBACK': 'tcp'}
        p = self.spawn([harness.PYTHON, os.path.join(HERE, 'again.py'), harness.HOST, s.port, 9], s.port, env)
        ways = self.finish(p, 30).decode().split()
        self.assertEqual([w for i, w in enumerate(ways) if not i or ways[i - 1] != w], ['rdma', 'tcp', 'rdma'], ways)


def cpu(pid):
    """Seconds of processor time so far."""
    with open(f'/proc/{pid}/stat', encoding='ascii') as f:
        fields = f.read().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


if __name__ == '__main__':
    if harness.MODE != 'carried':
        raise SystemExit(77)
    harness.main()

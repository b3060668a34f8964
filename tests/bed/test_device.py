# SPDX-License-Identifier: BSD-2-Clause
"""The link goes down and up again, the device goes away and comes back, while servers and clients use them."""
import os
import subprocess
import time

import bed
import harness

PROMISE = 10  # seconds within which both sides have noticed
WAYS = ('recv', 'poll', 'epoll', 'writer')


class Device(bed.Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(bed.device_up)

    def crowd(self, s):
        """Waiting clients of several kinds, and a busy one."""
        waiting = {how: self.spawn(self.script('hold.py', s.port, how), s.port) for how in WAYS}
        for p in waiting.values():
            self.expect_line(p, b'ready\n')
        busy = self.spawn([f'{s.kind}-benchmark', '-h', harness.HOST, '-p', s.port, '-c', '5', '-n', '100000000', '-t', 'set,get'],
                          s.port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        harness.wait('all of them', lambda: self.carried_now(s) >= len(WAYS) + 5, 60)
        c = s.plain()
        before = int(c.info('stats')['total_commands_processed'])
        harness.wait('traffic', lambda: int(c.info('stats')['total_commands_processed']) > before + 100, 60)
        self.assert_carried(s.pid)
        return waiting, busy

    def all_notice(self, s, waiting, busy, since):
        """Every client has an end or an error, and the server has let all of them go."""
        def left():
            return [how for how, p in waiting.items() if p.poll() is None] + ['busy'] * (busy.poll() is None) + \
                ['server'] * (self.carried_now(s) > 0)
        try:
            harness.wait('both sides to notice', lambda: not left(), max(0, PROMISE - (time.monotonic() - since)), 0.1, 1)
        except AssertionError:
            raise AssertionError(f'{time.monotonic() - since:.1f} s later these have not noticed: {left()}') from None
        print(f'(noticed within {time.monotonic() - since:.1f} s)', end=' ', flush=True)
        for how, p in waiting.items():
            out = self.finish(p, 10, expect=None)
            self.assertGreaterEqual(p.returncode, 0, f'{how} died of signal {-p.returncode}')
            self.assertRegex(out.decode(), r'^(end|[A-Za-z]*Error)\n', how)
        self.assertGreaterEqual(busy.wait(5), 0, 'the benchmark died of a signal')
        self.assertTrue(s.alive(), 'the server')

    def nothing_left(self, s):
        harness.wait('the server to free all', lambda: not s.gauges()['qps'] and not s.gauges()['mrs'], 20)

    def link(self, kind):
        s = self.server(kind=kind)
        self.ask(s, 'SET', 'kept', 'value')
        waiting, busy = self.crowd(s)
        since = time.monotonic()
        bed.run('ip', 'link', 'set', bed.NETDEV, 'down')
        self.all_notice(s, waiting, busy, since)
        self.nothing_left(s)
        self.assertEqual(s.plain()('PING'), 'PONG')
        bed.device_up()
        # Where a connection was open as the link went down, soft-RoCE of Linux 6.1 never makes one again (its own queue pair
        # for management has died of a packet that could not leave): the device is taken away and made anew.
        if not bed.device_works():
            print('(made anew)', end=' ', flush=True)
            bed.device_renew()
        self.comes_back(s)

    def comes_back(self, s):
        """The server, which was never restarted, answers over RDMA again."""
        since = time.monotonic()

        def again():
            p = self.spawn([self.tool(s), '-h', harness.HOST, '-p', s.port, 'GET', 'kept'], s.port)
            return self.finish(p, 20, expect=None) == b'value\n' and p.returncode == 0
        harness.wait('RDMA once more', again, 60, 1)
        print(f'(back within {time.monotonic() - since:.1f} s)', end=' ', flush=True)

    def test_link_down_valkey(self):
        self.link('valkey')

    def test_link_down_redis(self):
        self.link('redis')

    def test_removed(self):
        """rdma link delete in the midst of use: it does not hang, nothing of the device is held, the server goes on over TCP."""
        s = self.server()
        self.ask(s, 'SET', 'kept', 'value')
        waiting, busy = self.crowd(s)
        since = time.monotonic()
        bed.run('rdma', 'link', 'delete', bed.RDMADEV, timeout=30)
        self.assertIsNone(bed.held(), 'the device is still there')
        self.all_notice(s, waiting, busy, since)
        self.nothing_left(s)
        harness.wait('the server to close the device', lambda: not any('uverbs' in k for k in bed.device_files(s.pid)), 20)
        self.assertEqual(s.plain()('PING'), 'PONG')
        # A client that may fall back reaches it under the same address, and says why it is TCP.
        log = os.path.join(self.dir, 'fallback.log')
        out = self.ask(s, 'GET', 'kept', env={'VKRDMA_FALLBACK': 'tcp', 'VKRDMA_LOG': 'info:' + log})
        self.assertEqual(out, b'value\n')
        with open(log, encoding='utf-8') as f:
            text = f.read()
        self.assertIn('TCP', text)
        print(text.strip().splitlines()[-1])
        # And when a device is there again the same server takes to it.
        bed.device_up()
        self.comes_back(s)

    def test_removed_idle(self):
        """The same with a listener alone: nobody is connected."""
        s = self.server()
        self.ask(s, 'SET', 'kept', 'value')
        harness.wait('the client to go', lambda: self.carried_now(s) == 0)
        bed.run('rdma', 'link', 'delete', bed.RDMADEV, timeout=30)
        harness.wait('the server to close the device', lambda: not any('uverbs' in k for k in bed.device_files(s.pid)), 20)
        self.assertEqual(s.plain()('GET', 'kept'), b'value')
        bed.device_up()
        self.comes_back(s)


if __name__ == '__main__':
    harness.main()

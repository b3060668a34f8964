# SPDX-License-Identifier: BSD-2-Clause
"""kill -9 of either side: the other learns of it within seconds and keeps nothing of it."""
import os
import signal
import subprocess

import harness

WAYS = ('recv', 'timeout', 'poll', 'epoll', 'select', 'asyncio', 'writer')


class Death(harness.Case):
    def ready(self, proc):
        self.expect_line(proc, b'ready\n')

    def test_server_killed(self):
        """Each kind of waiting client gets an end or an error."""
        s = self.server()
        holders = {how: self.spawn(self.script('hold.py', s.port, how), s.port) for how in WAYS}
        for p in holders.values():
            self.ready(p)
        if harness.CARRIED:
            self.assert_carried(s.pid)
        s.kill()
        for how, p in holders.items():
            out = self.finish(p, 10)
            self.assertIn(out, (b'end\n', b'ConnectionResetError\n', b'BrokenPipeError\n', b'ConnectionAbortedError\n'), how)

    def test_server_killed_under_tools(self):
        """A benchmark, a blocked cli and a pipelining client come to an end too."""
        self.need('valkey-benchmark')
        s = self.server()
        base = ['-h', harness.HOST, '-p', s.port]
        busy = self.spawn(['valkey-benchmark', *base, '-c', '20', '-n', '100000000', '-t', 'get'], s.port,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        blocked = self.spawn(['redis-cli', *base, 'BLPOP', 'never', '0'], s.port)
        load = self.spawn(self.script('load.py', s.port, 60), s.port)
        c = s.plain()
        harness.wait('all clients', lambda: int(c.info('clients')['connected_clients']) >= 27)
        harness.wait('traffic', lambda: int(c.info('stats')['total_commands_processed']) > 1000)
        if harness.CARRIED:
            self.assert_carried(s.pid)
        s.kill()
        self.finish(busy, 10, expect=None)
        self.finish(blocked, 10, expect=None)
        self.finish(load, 10, expect=None)
        self.assertNotEqual(load.returncode, 0, 'the load did not notice')
        for p in (busy, blocked, load):
            self.assertGreaterEqual(p.returncode, 0, f'{p.args[:2]} died of signal {-p.returncode}')

    def test_server_comes_back(self):
        """After kill -9 and a restart on the same port new connections are carried at once."""
        s = self.server()
        for _ in range(3):
            self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, timeout=20)
            s.kill()
            s.start()
        self.assertEqual(self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port), b'PONG\n')

    def test_clients_killed(self):
        """Idle, mid-reply and mid-request: the server frees all they had."""
        self.need('valkey-benchmark')
        s = self.server()
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        c = s.plain()
        harness.wait('the first client to go', lambda: c.info('clients')['connected_clients'] == '1')
        c('SET', 'large', b'x' * (32 << 20))
        base = s.gauges()
        for turn in range(harness.by_tier(1, 3, 10)):
            clients = [self.spawn(self.script('many.py', s.port, 25), s.port, stdin=subprocess.PIPE) for _ in range(2)]
            for p in clients:
                self.ready(p)
            clients.append(self.spawn(['valkey-benchmark', '-h', harness.HOST, '-p', s.port, '-c', '20', '-P', '16', '-n',
                                       '100000000', '-t', 'set'], s.port, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            # Gets replies of 32 MiB that nobody reads on.
            clients.append(self.spawn(['sh', '-c', 'exec redis-cli -h "$0" -p "$1" -r 1000 GET large | sleep 60', harness.HOST,
                                       s.port], s.port, start_new_session=True))
            harness.wait('all clients', lambda: int(c.info('clients')['connected_clients']) >= 72)
            for p in clients:
                if p is clients[-1]:
                    os.killpg(p.pid, signal.SIGKILL)
                else:
                    p.kill()
            harness.wait(f'the server to drop them (turn {turn})', lambda: c.info('clients')['connected_clients'] == '1', 30)
        self.settle(s, base)

    def test_client_stopped(self):
        """A client that is stopped, not dead, holds up nobody else."""
        s = self.server('--client-output-buffer-limit', 'normal 8mb 8mb 1')
        s.plain()('SET', 'large', b'x' * (1 << 20))
        victim = self.spawn(self.script('load.py', s.port, 60), s.port)
        c = s.plain()
        harness.wait('its connections', lambda: int(c.info('clients')['connected_clients']) >= 7)
        victim.send_signal(signal.SIGSTOP)
        other = self.run_client(self.script('load.py', s.port, 3), s.port, timeout=30)
        self.assertIn(b'operations', other)
        before = int(c.info('stats')['total_commands_processed'])
        victim.send_signal(signal.SIGCONT)
        harness.wait('it goes on', lambda: int(c.info('stats')['total_commands_processed']) > before + 1000)
        self.assertIsNone(victim.poll(), 'the stopped client')
        victim.kill()


if __name__ == '__main__':
    harness.main()

# SPDX-License-Identifier: BSD-2-Clause
"""kill -9 at random instants under load, many times over: the survivor's gauges return to the start.

tests/interop/test_death.py looks at each kind of waiting client once; here chance looks for the instant that nobody thought
of: in the handshake, between two refreshes, in the middle of a posted write.
"""
import os
import random
import subprocess
import threading
import time

from common import HOSTILE, KIND, STEADY, Case, Steady, harness, raw_env

SEED = int(os.environ.get('VKR_SEED', random.randrange(1 << 30)))


class Death(Case):
    def setUp(self):
        super().setUp()
        self.rnd = random.Random(SEED)
        print(f'(VKR_SEED={SEED})', end=' ', flush=True)

    def bench(self, port, *args):
        kind = KIND if harness.shutil.which(f'{KIND}-benchmark') else 'redis'
        self.need(f'{kind}-benchmark')
        return self.spawn([f'{kind}-benchmark', '-h', harness.HOST, '-p', port, '-n', '100000000', '-t', 'set,get', *args], port,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pause(self, low, high):
        """Chance is the point here: the instant of a kill, not a condition that could be waited for."""
        time.sleep(self.rnd.uniform(low, high))

    def test_clients(self):
        """Whatever a client was doing, nothing of it stays with the server, and the others go on."""
        s = self.server()
        steady = Steady(self, s.port, s.port)
        base = s.gauges()
        for turn in range(harness.by_tier(10, 40, 200)):
            shape = self.rnd.choice((('-c', '1'), ('-c', '20'), ('-c', '20', '-P', '16'), ('-c', '4', '-d', '200000'),
                                     ('-c', '50', '-d', '3000')))
            p = self.bench(s.port, *shape)
            self.pause(0, self.rnd.choice((0.05, 0.2, 0.6)))
            p.kill()
            p.wait()
            self.assertTrue(s.alive(), f'turn {turn} ({shape}): the server died')
            self.assertFalse(steady.dead(), f'turn {turn} ({shape}): {steady.errors()}')
        self.settle(s, base, 60)

    def test_native_clients(self):
        """The same with a raw RDMA client, killed at each step and in mid transfer."""
        s = self.server()
        steady = Steady(self, s.port, s.port)
        base = s.gauges()
        for _ in range(harness.by_tier(5, 20, 100)):
            p = self.track(subprocess.Popen([HOSTILE, 'client', harness.HOST, str(s.port), 'chat:1000000'], env=raw_env(),
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            self.pause(0, 0.3)
            p.kill()
            p.wait()
        self.assertTrue(s.alive())
        self.assertFalse(steady.dead(), steady.errors())
        self.settle(s, base, 60)

    def test_server(self):
        """A server killed at random instants under load: every client ends within seconds, by itself and not by a signal."""
        s = self.server()
        for turn in range(harness.by_tier(3, 10, 50)):
            clients = [self.bench(s.port, '-c', '20', *self.rnd.choice(((), ('-P', '16'), ('-d', '200000')))) for _ in range(2)]
            clients.append(self.spawn([STEADY, harness.HOST, s.port], s.port, stdin=subprocess.PIPE,
                                      stdout=subprocess.DEVNULL))
            c = s.plain()
            harness.wait('the clients', lambda c=c: int(c.info('clients')['connected_clients']) >= 30)
            self.pause(0, 0.3)
            self.assert_carried(s.pid)
            s.kill()
            for p in clients:
                try:
                    p.wait(15 * harness.PATIENCE)
                except subprocess.TimeoutExpired:
                    self.fail(f'turn {turn}: {p.args[:2]} has not noticed')
                self.assertGreaterEqual(p.returncode, 0, f'turn {turn}: {p.args[:2]} died of a signal')
            s.start()
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)

    def test_survivor_client(self):
        """One client process, servers that die under it: its gauges return to the start too."""
        s = self.server()
        steady = Steady(self, s.port, ['15000-31999'])
        base = harness.find(harness.stat(steady.proc.pid), 'qps')
        for _ in range(harness.by_tier(3, 10, 50)):
            victim = self.server()
            steady.command(f'beside {victim.port}')
            self.assertIsNotNone(steady.next_line('beside connected', 20), 'no connection to the victim')
            self.pause(0, 0.1)
            victim.kill()
            self.assertIsNotNone(steady.next_line('beside ended', 20), 'the client never heard of the death')
            self.servers.remove(victim)
        self.assertFalse(steady.dead(), steady.errors())
        harness.wait('its queue pairs', lambda: harness.find(harness.stat(steady.proc.pid), 'qps') == base)

    def test_both(self):
        """Clients die while the server is being connected to by others: no connection of theirs is lost or mixed up."""
        s = self.server()
        stop = threading.Event()

        def killer():
            while not stop.is_set():
                p = self.bench(s.port, '-c', '10')
                time.sleep(self.rnd.uniform(0, 0.2))
                p.kill()
                p.wait()
        t = threading.Thread(target=killer)
        t.start()
        try:
            out = self.run_client(self.script('load.py', s.port, harness.by_tier(3, 8, 60)), s.port, timeout=120)
        finally:
            stop.set()
            t.join()
        self.assertIn(b'operations', out)


if __name__ == '__main__':
    if harness.MODE != 'carried':
        raise SystemExit(77)
    if not os.path.exists(HOSTILE):
        raise SystemExit(f'{HOSTILE} has not been built')
    harness.main()

# SPDX-License-Identifier: BSD-2-Clause
"""Failures of the provider, injected into softverbs by VKRDMA_SOFT_FAULT."""
import os
import random
import subprocess

from common import HERE, Case, Steady, harness


class Injected(Case):
    def setUp(self):
        super().setUp()
        if harness.PROVIDER != 'soft':
            self.skipTest('only softverbs can inject faults')

    def client(self, port, fault, n=3, fallback='tcp', log=None):
        """n connections, each answered; the process is held for a look at its counters."""
        env = {'VKRDMA_SOFT_FAULT': fault, 'VKRDMA_FALLBACK': fallback}
        if log:
            env['VKRDMA_LOG'] = log
        p = self.spawn([harness.PYTHON, os.path.join(HERE, 'many_until.py'), harness.HOST, port, n], port, env,
                       stdin=subprocess.PIPE)
        return p, p.stdout.readline().decode()

    def opened(self, p, line, n, what):
        """The program has n answered connections; what carries them. Failed attempts must not stay."""
        if line != f'open {n} none\n':
            p.kill()
            self.fail(f'{what}: {line!r} {p.stderr.read()[-1500:]}')

        def settled():
            now = harness.stat(p.pid)['connections']
            return now if len(now) == n and all(c['transport'] in ('rdma', 'tcp') for c in now) else None
        connections = harness.wait(f'{what}: {n} connections and nothing else', settled)
        for c in connections:
            self.assertTrue(c['transport'] == 'rdma' or c['reason'], f'{what}: {c}')
            self.assertRegex(c['local'], r':[1-9]\d*$', f'{what}: {c}')
        ways = [c['transport'] for c in connections]
        self.reasons = {c['reason'] for c in connections}
        print(f'{what}: {ways} {sorted({c["reason"] for c in connections} - {""})}', flush=True)
        return ways

    def leave(self, p):
        """Lets the program go; what it wrote to its standard error."""
        p.stdin.close()
        err = p.stderr.read().decode()
        self.assertEqual(p.wait(20), 0, err)
        return err

    def test_client_resources(self):
        """What a client cannot create becomes TCP with the reason."""
        s = self.server()
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)  # what is made once is made now
        base = s.gauges()
        for fault in ('fail_create_qp', 'fail_create_qp=2', 'fail_reg_mr', 'fail_reg_mr=2', 'fail_reg_mr=3', 'fail_reg_mr=4',
                      'fail_reg_mr=5'):
            p, line = self.client(s.port, fault)
            self.assertIn('tcp', self.opened(p, line, 3, fault))
            self.leave(p)
        self.settle(s, base)
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)

    def test_client_refuses_tcp(self):
        """The same where TCP is forbidden: an error of connect(), no crash."""
        s = self.server()
        for fault in ('fail_create_qp', 'fail_reg_mr', 'no_device', 'unreachable=300'):
            p = self.spawn(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, {'VKRDMA_SOFT_FAULT': fault})
            out = self.finish(p, 20, expect=None)
            self.assertEqual(p.returncode, 1, f'{fault}: {out} {p.err}')
            self.assertNotIn(b'PONG', out, fault)
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)

    def test_client_told_again(self):
        """TCP is forbidden, and the program asks a second connect() how its non-blocking one went, as hiredis does."""
        s = self.server()
        p = self.spawn([harness.PYTHON, os.path.join(HERE, 'connect_twice.py'), harness.HOST, s.port], s.port,
                       {'VKRDMA_SOFT_FAULT': 'fail_create_qp'})
        self.assertEqual(self.finish(p, 20), b'EINPROGRESS\nENOMEM\nEINPROGRESS\n')
        s.flagged = False
        self.proofs += 1

    def test_server_resources(self):
        """A server that cannot make what it needs serves that client over TCP, and lives."""
        for fault in ('fail_create_qp', 'fail_create_qp=2', 'fail_reg_mr', 'fail_reg_mr=2', 'fail_reg_mr=4'):
            s = self.server(env={'VKRDMA_SOFT_FAULT': fault})
            p, line = self.client(s.port, '')
            ways = self.opened(p, line, 3, f'{fault} at the server')
            self.assertIn('tcp', ways, fault)
            # The client is told what the server lacks.
            why = 'no queue pair left' if 'qp' in fault else 'memory could not be registered'
            self.assertTrue(any('refused by' in r and why in r for r in self.reasons), f'{fault}: {self.reasons}')
            self.leave(p)
            self.assertTrue(s.alive(), fault)
            s.flagged = 'rdma' in ways  # the proof at the end asks for RDMA where there was some
            self.proofs += 1

    def test_no_device(self):
        """Plain TCP and one log line, on either side."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'no_device', 'VKRDMA_LOG': 'warn'}, flagged=True)
        s.flagged = False
        self.proofs += 1
        p, line = self.client(s.port, 'no_device', log='warn')
        self.assertEqual(line, 'open 3 none\n')
        log = self.leave(p)
        self.assertEqual(log.count('libvkrdma'), 1, log)
        with open(s.log, encoding='utf-8', errors='replace') as f:
            text = f.read()
        self.assertEqual(text.count('libvkrdma'), 1, text)

    def test_loopback(self):
        """Where 127.0.0.1 has no device and rdma_cm takes it for any address, a server that is bound to it stays local."""
        for bind in (['127.0.0.1'], ['::1'], ['127.0.0.1', '::1']):
            s = self.server('--bind', *bind, env={'VKRDMA_SOFT_FAULT': 'no_loopback'}, start=False)
            s.host = bind[0]
            s.start()
            for listener in harness.stat(s.pid)['listeners']:
                self.assertEqual((listener['transport'], listener['reason']), ('tcp', 'no RDMA device has this address'))
            s.flagged = False
            self.proofs += 1

    def test_unreachable(self):
        """Nobody answers: TCP within the time allowed, with the reason; the address is left alone for a while."""
        s = self.server()
        s.flagged = False
        self.proofs += 1
        started = harness.time.monotonic()
        p, line = self.client(s.port, 'unreachable=5000')
        took = harness.time.monotonic() - started
        self.assertEqual(set(self.opened(p, line, 3, 'unreachable')), {'tcp'})
        self.assertLess(took, 5, 'three connections to an address that does not answer')
        self.leave(p)

    def test_dies_after(self):
        """A client that dies between two posts, at each of the first ones and later."""
        s = self.server()
        steady = Steady(self, s.port, s.port)
        base = s.gauges()
        for n in [1, 2, 3, 4, 5, 8, 13, 50, 1000] + [random.randrange(1, 5000) for _ in range(harness.by_tier(2, 8, 50))]:
            p = self.spawn(self.script('load.py', s.port, 60), s.port, {'VKRDMA_SOFT_FAULT': f'die_after={n}'})
            self.finish(p, 60, expect=-9)
            self.assertTrue(s.alive(), f'die_after={n}')
            self.assertFalse(steady.dead(), f'die_after={n}: {steady.errors()}')
        self.settle(s, base, 60)

    def test_server_dies_after(self):
        for n in (1, 2, 3, 10, 100, 1000):
            s = self.server(env={'VKRDMA_SOFT_FAULT': f'die_after={n}'})
            p = self.spawn(self.script('load.py', s.port, 60), s.port)
            self.finish(p, 60, expect=None)
            self.assertGreater(p.returncode, 0, f'die_after={n}: the client ended with {p.returncode}')
            self.assertEqual(s.proc.wait(10), -9, f'die_after={n}: the server')
            self.servers.remove(s)
            self.proofs += 1

    def test_cq_error(self):
        """A completion queue that fails takes its connections along, not the process: new ones are served."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'cq_error=400'})
        p = self.spawn(self.script('load.py', s.port, 20), s.port)
        self.finish(p, 60, expect=None)
        # Six workers. redis-py reports the end of a connection in use, and replaces one that ended between two batches.
        with open(os.path.join(self.dir, 'client-shim.log'), encoding='utf-8') as f:
            opened = f.read().count('connection to')
        self.assertTrue(p.returncode > 0 or opened > 6, 'the client noticed nothing')
        self.assertTrue(s.alive(), 'the server died of it')
        p, line = self.client(s.port, '')
        self.opened(p, line, 3, 'after the failure')
        self.leave(p)
        self.assertTrue(s.alive())

    def test_delay(self):
        """Slow completions change nothing but the time."""
        s = self.server(env={'VKRDMA_SOFT_FAULT': 'delay=2000'})
        p = self.spawn(self.script('load.py', s.port, harness.by_tier(2, 4, 20)), s.port, {'VKRDMA_SOFT_FAULT': 'delay=1000'})
        self.assertIn(b'operations', self.finish(p, 120))


if __name__ == '__main__':
    if harness.MODE != 'carried':
        raise SystemExit(77)
    harness.main()

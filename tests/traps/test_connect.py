# SPDX-License-Identifier: BSD-2-Clause
"""T7, T12, T13: connections that are refused, refused for an old one's sake, or cut."""
import os
import select
import time
import unittest

from traps import HOST, NATIVE, SOFT, Trap, harness, main

CLI = os.path.join(NATIVE or '', 'bin', 'valkey-cli')
INJECTED = unittest.skipUnless(SOFT, 'the fault is injected by softverbs')


class Connect(Trap):
    def cli(self, port):
        """How valkey-cli --rdma takes it: its exit code, a negative signal number or 'hangs'; and what it says."""
        p = self.native_spawn([CLI, '--rdma', '-h', HOST, '-p', port, 'PING'])
        code = self.over(p, 3)
        return code, (p.stdout.read() + p.stderr.read()).decode(errors='replace').strip()

    @staticmethod
    def orderly(code):
        return code in (0, 1)

    # ------------------------------------------------------------ T7

    def test_t7_refused(self):
        """A native client that is refused, by a program or because nobody listens."""
        port = harness.free_port()
        h = self.hostile('server', port, 'reject')
        code, _ = self.cli(port)
        self.native(not self.orderly(code), f'valkey-cli --rdma, refused by a listener: {code}')
        self.over(h)
        code, _ = self.cli(harness.free_port())
        self.native(not self.orderly(code), f'valkey-cli --rdma where nobody listens: {code}')

        port = harness.free_port()
        r = self.raw('server', port, 'leave')
        code, said = self.cli(port)
        self.assertEqual((code, said), (1, 'Error: Server closed the connection'))
        self.native(False, f'accepted and then disconnected instead: {code}, {said!r}', deterministic=False)
        self.over(r)

        port = harness.free_port()
        h = self.hostile('server', port, 'reject')
        c = self.shim_client(port, 'sleepy', 1)
        refused = self.told(c, 'refused')
        self.assertEqual((refused, self.over(c)), ('Connection refused', 1))
        self.proofs += 1
        self.shim(f'as client: {refused!r}')

    def poor_servers(self):
        """Shimmed servers that lack what a connection needs."""
        if not SOFT:  # the device is there; memory that may be pinned is not
            s = self.server(start=False)
            s.argv = ['prlimit', '--memlock=8192', 'setpriv', '--bounding-set=-ipc_lock', *s.argv]
            yield s.start()
            return
        for fault in ('fail_create_qp=1', 'fail_reg_mr=1', 'fail_reg_mr=2'):
            yield self.server(env={'VKRDMA_SOFT_FAULT': fault})

    def test_t7_acceptor(self):
        """A native client of such a server is shown out, not rejected."""
        for s in self.poor_servers():
            for _ in range(3):
                self.assertEqual(self.cli(s.port), (1, 'Error: Server closed the connection'))
            self.assertTrue(s.alive())
            self.assertEqual(s.plain()('PING'), 'PONG')
            gauges = s.gauges()
            self.assertEqual((gauges['qps'], gauges['mrs']), (0, 0))
            s.flagged = False
            self.proofs += 1
        self.shim('as acceptor without queue pairs or memory: Server closed the connection')

    # ------------------------------------------------------------ T12

    @INJECTED
    def test_t12_stale(self):
        """The first requests are taken for those of an old connection."""
        s = self.native_server(env={'VKRDMA_SOFT_FAULT': 'stale=1'})
        code, _ = self.cli(s.rdma)
        self.native(not self.orderly(code), f'valkey-cli --rdma, rejected once with status 10: {code}')
        self.assertEqual(self.cli(s.rdma), (0, 'PONG'))

        s = self.native_server(env={'VKRDMA_SOFT_FAULT': 'stale=3'})
        c = self.shim_client(s.rdma, 'sleepy', 1)
        self.assertEqual(self.told(c, 'done'), '2 ok')
        self.carried(c)
        self.shim('rejected three times, then carried')

    # ------------------------------------------------------------ T13

    def ended(self, client, since, limit=10):
        """Seconds until the client, which waits for something to read, has heard of the end."""
        self.told(client, 'done', limit)
        return time.monotonic() - since

    @INJECTED
    def test_t13_cut(self):
        """The server is cut off: no message says so. The client waits for something to read."""
        cut = {'VKRDMA_SOFT_FAULT': 'cut@2500'}
        s = self.native_server(env=cut)
        n = self.native_client(s.rdma, 'first')
        c = self.shim_client(s.rdma, 'first')
        for p in (n, c):
            self.told(p, 'connected')
        connected = time.monotonic()
        took = self.ended(c, connected)
        self.assertGreater(took, 1)
        self.assertLess(took, 10)
        silent = not select.select([n.stdout], [], [], 0.5)[0]
        self.native(silent, f'the client, {took:.1f} s after it had connected: {"waits" if silent else "has heard of it"}')
        found = harness.stat(c.pid)
        self.assertGreater(found['totals']['sends_in'], 0)
        self.proofs += 1
        self.shim(f'a shimmed client of the native server heard of it after {took:.1f} s')

        s = self.server()
        n = self.native_client(s.port, 'first', env=cut)
        self.told(n, 'connected')
        plain = s.plain()
        harness.wait('the client to be there', lambda: plain.info('clients')['connected_clients'] == '2', 2)
        harness.wait('the client to be gone', lambda: plain.info('clients')['connected_clients'] == '1', 12, patience=1)
        s.flagged = False  # nothing was said over it
        self.shim('a shimmed server has dropped a native client that was cut off')


if __name__ == '__main__':
    main()

# SPDX-License-Identifier: BSD-2-Clause
"""The main job: stock servers and stock clients, unmodified, over the device."""
import re
import subprocess

import bed
import harness


class Main(bed.Case):
    def job(self, kind):
        s = self.server(kind=kind)
        self.assertEqual(self.ask(s, 'SET', 'greeting', 'hello'), b'OK\n')
        self.assertEqual(self.ask(s, 'GET', 'greeting'), b'hello\n')
        self.assertEqual(self.run_client([harness.PYTHON, f'{bed.HERE}/talk.py', s.port], s.port, timeout=120), b'ok\n')
        benchmark = [f'{s.kind}-benchmark', '-h', harness.HOST, '-p', s.port, '-c', '10', '-d', '64', '-t', 'set,get', '-q']
        for more in (['-n', '300'], ['-n', '1600', '-P', '16']):
            out = self.run_client([*benchmark, *more], s.port, timeout=120)
            rates = re.findall(rb'(SET|GET): ([0-9.]+) requests per second', out)
            self.assertEqual([r[0] for r in rates], [b'SET', b'GET'], out)
            print(f'({s.kind} {" ".join(more)}: ' + ', '.join(f'{n.decode()} {float(r):.0f}/s' for n, r in rates) + ')',
                  end=' ', flush=True)
        totals = harness.carried_totals(self.assert_carried(s.pid))
        self.assertGreater(totals['immediates_in'], 500)
        harness.wait('the clients to go', lambda: self.carried_now(s) == 0)

    def test_valkey(self):
        self.job('valkey')

    def test_redis(self):
        self.job('redis')

    def test_many(self):
        """200 connections at once, each answered; nothing of them stays."""
        s = self.server()
        self.ask(s, 'PING')
        harness.wait('the client to go', lambda: self.carried_now(s) == 0)
        base, kernel = s.gauges(), bed.held()
        p = self.spawn(self.script('many.py', s.port, 200), s.port, stdin=subprocess.PIPE)
        self.expect_line(p, b'ready\n')
        self.assertEqual(self.carried_now(s), 200)
        # Both ends are on this machine's one device.
        self.assertGreaterEqual(bed.held()['qp'] - kernel['qp'], 400)
        p.stdin.write(b'ping\nquit\n')
        p.stdin.flush()
        self.expect_line(p, b'pong\n')
        self.expect_line(p, b'closed\n')
        p.stdin.close()
        self.assertEqual(p.wait(30), 0)
        self.settle(s, base)
        harness.wait('the kernel to have all back', lambda: bed.held()['qp'] <= kernel['qp'], 20)


if __name__ == '__main__':
    harness.main()

# SPDX-License-Identifier: BSD-2-Clause
"""An ordinary user who may lock 64 KiB of memory: what does not fit is TCP, and both ends say why."""
import os
import re
import resource
import subprocess

import bed
import harness


class Limited(bed.Case):
    def setUp(self):
        super().setUp()
        self.assertNotEqual(os.getuid(), 0, 'this test is about an ordinary user')
        self.assertEqual(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1], 65536)

    def test_check(self):
        """vkrdma-run --check names the limit and what to do about it."""
        done = subprocess.run([os.path.join(bed.harness.BUILD, 'vkrdma-run'), '--check'], capture_output=True, text=True, timeout=60,
                              check=False)
        print(done.stdout)
        self.assertRegex(done.stdout, r'memlock +only 64 KiB may be locked')
        self.assertRegex(done.stdout, r'ulimit -l')
        self.assertRegex(done.stdout, rf'ok +address +{re.escape(bed.ADDR4)} ')
        self.assertEqual(done.returncode, 1)
        self.proofs += 1  # nothing here is to be carried

    def test_fallback(self):
        """Many clients: some fit perhaps, the others are TCP with the reason, and all get their answers."""
        s = self.server()
        s.flagged = False  # it may well be TCP altogether
        log = os.path.join(self.dir, 'limited.log')
        p = self.spawn(self.script('many.py', s.port, 20), s.port, {'VKRDMA_FALLBACK': 'tcp', 'VKRDMA_LOG': 'info:' + log},
                       stdin=subprocess.PIPE)
        self.expect_line(p, b'ready\n')
        connections = harness.stat(s.pid)['connections'] + harness.stat(p.pid)['connections']
        tcp = [c for c in connections if c['transport'] == 'tcp']
        self.assertGreater(len(tcp), 20, 'the limit did nothing')
        with open(log, encoding='utf-8') as f:
            text = f.read()
        with open(os.path.join(s.dir, 'shim.log'), encoding='utf-8') as f:
            both = text + f.read()
        print(both[-1500:])
        self.assertRegex(both, r'is TCP .*(memlock|RLIMIT_MEMLOCK|ulimit -l|memory may be locked)')
        self.proofs += 1
        p.stdin.write(b'ping\nquit\n')
        p.stdin.flush()
        self.expect_line(p, b'pong\n')
        self.expect_line(p, b'closed\n')
        p.stdin.close()
        self.assertEqual(p.wait(30), 0)


if __name__ == '__main__':
    harness.main()

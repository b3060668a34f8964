# SPDX-License-Identifier: BSD-2-Clause
"""Too few descriptors, too little lockable memory: TCP with the reason, and never less than without the shim."""
import os
import pwd
import resource
import subprocess

from common import HERE, KIND, Case, harness


class Limits(Case):
    def program(self, port, limit, hard, preload=True, extra=None):
        """many_until.py with a hard limit of descriptors."""
        env = self.client_env(port, {'VKRDMA_FALLBACK': 'tcp', **(extra or {})})
        if not preload:
            for name in ('LD_PRELOAD', 'VKRDMA_CONNECT', 'VKRDMA_PROVIDER'):
                env.pop(name, None)

        def limits():
            harness.die_with_parent()
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        p = self.track(subprocess.Popen([harness.PYTHON, os.path.join(HERE, 'many_until.py'), harness.HOST, str(port), str(limit)],
                                        env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=limits))
        line = p.stdout.readline().split()
        if not line or line[0] != 'open':
            p.kill()
            self.fail(f'{hard} descriptors: {line} {p.stderr.read()[-1500:]}')
        return p, int(line[1]), line[2]

    def test_client_descriptors(self):
        """Connections that find no second descriptor are TCP and say so; all of them work."""
        s = self.server()
        for hard in (64, 100, 200):
            p, n, why = self.program(s.port, 1000, hard)
            stat = harness.stat(p.pid)
            by = {'rdma': 0, 'tcp': 0}
            for c in stat['connections']:
                by[c['transport']] += 1
                if c['transport'] == 'tcp':
                    self.assertRegex(c['reason'].lower(), 'descriptor|file', 'the reason for TCP')
            print(f'hard limit {hard}: {n} connections, {by}, ended by {why}', flush=True)
            self.assertEqual(why, 'EMFILE')
            self.assertEqual(sum(by.values()), n)
            self.assertGreater(by['tcp'], 0, f'{hard}: nothing fell back')
            if hard >= 100:
                self.assertGreater(by['rdma'], 0, f'{hard}: nothing was carried')
            plain, alone, _ = self.program(s.port, 1000, hard, preload=False)
            # What the library keeps for itself is all that may be missing.
            self.assertGreater(n, (alone - 40) // 2, f'{hard}: {alone} without the shim')
            for q in (p, plain):
                q.stdin.close()
                self.assertEqual(q.wait(20), 0, q.stderr.read())

    def test_few_for_anything(self):
        """So few that the engine itself cannot start."""
        s = self.server()
        for hard in (8, 12, 16, 20, 24, 30):
            p, n, why = self.program(s.port, 2, hard)
            print(f'hard limit {hard}: {n} connections, {why}', flush=True)
            self.assertGreaterEqual(n, 1, f'{hard}: {why}')
            p.stdin.close()
            self.assertEqual(p.wait(20), 0, p.stderr.read())
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)

    def test_server_descriptors(self):
        """A server with few: every client is served, some over TCP, which takes what RDMA connections can spare; when they
        go everything comes back."""
        s = self.server('--maxclients', '60', start=False)
        few = harness.by_tier(112, 112, 112, 100)  # softverbs has some of its own
        s.argv = ['sh', '-c', f'ulimit -n {few}; exec "$0" "$@"'] + s.argv
        s.start()
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)
        base = s.gauges()
        p, n, why = self.program(s.port, 58, 4096)
        self.assertEqual((n, why), (58, 'none'))
        stat = harness.stat(s.pid)
        by = {t: sum(c['transport'] == t for c in stat['connections']) for t in ('rdma', 'tcp')}
        print('server:', by, flush=True)
        self.assertGreater(by['rdma'], 0)
        self.assertGreater(by['tcp'], 0, 'every client was carried: the limit was not reached')
        p.stdin.close()
        self.assertEqual(p.wait(20), 0, p.stderr.read())
        self.settle(s, base)
        self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port)

    def test_memlock(self):
        """An ordinary user who may lock 64 KiB: it works, over RDMA or with the reason."""
        try:
            nobody = pwd.getpwnam('nobody')
        except KeyError:
            self.skipTest('there is no user nobody')
        if os.getuid():
            self.skipTest('only root can become somebody else')
        port = harness.free_port()
        os.chmod(self.dir, 0o777)

        def become(kib):
            def run():
                harness.die_with_parent()
                resource.setrlimit(resource.RLIMIT_MEMLOCK, (kib << 10,) * 2)
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            return run
        kind = KIND if harness.shutil.which(f'{KIND}-server') else 'redis'
        argv = [f'{kind}-server', '--port', str(port), '--bind', harness.HOST, '--save', '', '--dir', self.dir,
                '--protected-mode', 'no']
        server = self.track(subprocess.Popen(argv, env=harness.preload_env(listen=[port]), stdin=subprocess.DEVNULL,
                                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=become(64)))

        def answers():
            try:
                return harness.Resp(port)('PING') == 'PONG'
            except (OSError, harness.ServerError):
                return False
        harness.wait('the server', answers)
        hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        for kib in (0, 64, (1 << 20) if hard == resource.RLIM_INFINITY else hard >> 10):
            p = self.track(subprocess.Popen(
                [harness.PYTHON, os.path.join(HERE, 'many_until.py'), harness.HOST, str(port), '8'],
                env=self.client_env(port, {'VKRDMA_FALLBACK': 'tcp', 'VKRDMA_LOG': 'info'}), stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=become(kib)))
            line = p.stdout.readline()
            if line != 'open 8 none\n':
                p.kill()
            self.assertEqual(line, 'open 8 none\n', f'{kib} KiB: {p.stderr.read() if not line else line}')
            stat = harness.stat(p.pid)
            self.assertIsNotNone(stat)
            for c in stat['connections']:
                self.assertTrue(c['transport'] == 'rdma' or c['reason'], c)
            print(f'memlock {kib} KiB: {[c["transport"] for c in stat["connections"]]}', flush=True)
            p.stdin.close()
            self.assertEqual(p.wait(20), 0)
        self.assertIsNone(server.poll())
        self.proofs += 1  # either transport is right here: the evidence is that vkrdma-stat tells which, and why


if __name__ == '__main__':
    if harness.MODE != 'carried':
        raise SystemExit(77)
    harness.main()

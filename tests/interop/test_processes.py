# SPDX-License-Identifier: BSD-2-Clause
"""Python's subprocess and multiprocessing inside a program that holds carried connections; programs with RDMA of their own."""
import subprocess

import harness


class Processes(harness.Case):
    def scenario(self, name):
        s = self.server()
        out = self.run_client(self.script('procs.py', name, s.port), s.port, timeout=90)
        self.assertEqual(out, b'ok\n')

    def test_run(self):
        self.scenario('run')

    def test_preexec(self):
        self.scenario('preexec')

    def test_fork_pool(self):
        self.scenario('fork_pool')

    def test_spawn_pool(self):
        self.scenario('spawn_pool')

    def test_executor(self):
        self.scenario('executor')

    def test_fork_exit(self):
        self.scenario('fork_exit')

    def test_rdma_libraries(self):
        """A program that has rdma-core's libraries itself: their names and ours do not mix."""
        cache = subprocess.run(['/sbin/ldconfig', '-p'], capture_output=True, text=True, check=True).stdout
        libraries = [line.split('=> ')[1] for line in cache.splitlines() if 'libibverbs.so.1 ' in line or 'librdmacm.so.1 ' in line]
        self.assertGreaterEqual(len(libraries), 2, 'rdma-core is not installed')
        s = self.server()
        env = {}
        if harness.CARRIED:
            env['LD_PRELOAD'] = ':'.join([harness.preload_env(connect=[s.port])['LD_PRELOAD'], *libraries])
        out = self.run_client(['redis-cli', '-h', harness.HOST, '-p', s.port, 'PING'], s.port, env=env)
        self.assertEqual(out, b'PONG\n')


if __name__ == '__main__':
    harness.main()

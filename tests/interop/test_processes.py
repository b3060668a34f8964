# SPDX-License-Identifier: BSD-2-Clause
"""Python's subprocess and multiprocessing inside a program that holds carried connections."""
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


if __name__ == '__main__':
    harness.main()

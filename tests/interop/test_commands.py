# SPDX-License-Identifier: BSD-2-Clause
"""What applications do all day: big MGETs, lists, pub/sub, MONITOR, transactions, blocking pops, scripts, CLIENT KILL."""
import harness

SCENARIOS = ('mget', 'lrange', 'pubsub', 'monitor', 'multi', 'blpop', 'script', 'client_kill', 'large_both_ways')


class Commands(harness.Case):
    def scenario(self, name, kind):
        # A subscriber that sleeps through 12 MB is over the default limit for pub/sub clients.
        s = self.server('--client-output-buffer-limit', 'pubsub 0 0 0', kind=kind)
        out = self.run_client(self.script('commands.py', name, s.port), s.port, timeout=120)
        self.assertEqual(out, b'ok\n')


def add(name, kind):
    def test(self):
        self.scenario(name, kind)
    test.__name__ = f'test_{name}_with_{kind}'
    setattr(Commands, test.__name__, Commands._proved(test))


for _name in SCENARIOS:
    add(_name, 'valkey')
    if harness.TIER != 'quick':
        add(_name, 'redis')

if __name__ == '__main__':
    harness.main()

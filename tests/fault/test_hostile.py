# SPDX-License-Identifier: BSD-2-Clause
"""A hostile peer on raw verbs: its connection dies, the program at the other end and everybody beside it do not.

Each attack is made against a shimmed server (which serves a well-behaved shimmed client meanwhile) and, as a server,
against a shimmed client (which has a well-behaved connection of its own beside). After each: the host lives, the steady
connection went on with its 99th percentile within 3x, and nothing of the attacker is left behind.
"""
import os
import re
import subprocess
import unittest

from common import HOSTILE, Steady, harness, p99, raw_env

DEAD, ALIVE, ANY = 'dead', 'alive', 'any'

# What must become of the attacker's connection. ANY: nothing obliges the other side to notice.
MESSAGES = [
    *[(f'opcode:{op}', DEAD) for op in (4, 5, 255, 0x5600, 0x5601, 0x5602, 0xffff)],
    *[(f'size:{n}', DEAD) for n in (0, 1, 31, 33, 64, 4096)],
    ('early-opcode:7', DEAD), ('early-size:31', DEAD), ('early-size:0', DEAD),
    ('imm:0', DEAD), ('imm:end', DEAD), ('imm:0xffffffff', DEAD), ('imm:0x80000000', DEAD), ('imm:100:7', ANY),
    ('overrun', ANY), ('register:length0', DEAD), ('register:wrap', DEAD),
    *[(f'write:{w}', DEAD) for w in ('past', 'straddle', 'before', 'null', 'key')],
    *[(f'write:{w}:1', DEAD) for w in ('past', 'straddle', 'before', 'null', 'key')],
    ('read', DEAD), ('atomic', DEAD), ('send-imm:32', ANY), ('send-imm:0', DEAD),
    ('fin', DEAD), ('reset', DEAD), ('disconnect', DEAD), ('early-disconnect', DEAD),
]
FLOODS = [
    ('flood:keepalive', ANY), ('flood:get', ANY), ('flood:set', ANY), ('flood:register', ANY), ('flood:zero:400000', ANY),
    ('flood:zeroimm', DEAD), ('flood:byte', ANY), ('early-flood:keepalive', ANY), ('early-flood:get', ANY),
]
PRIVATE = [
    *[(f'pd-garbage:{n}', ALIVE) for n in (1, 8, 40, 56)],
    *[(f'pd-short-magic:{n}', DEAD) for n in (4, 7)],
    ('pd-spoilt:4:0', DEAD), ('pd-spoilt:5:0', DEAD), ('pd-spoilt:5:39', DEAD), ('pd-spoilt:5:255', DEAD),
    ('pd-spoilt:8:255', ANY), ('pd-spoilt:7:0', DEAD),
    ('pd-ring:0', DEAD), ('pd-ring:0xffffffff', DEAD), ('pd-ring:65536:0xfffffffffffffff0', DEAD), ('pd-ring:32768', ANY),
]
QUIET = [('half', ALIVE), ('silence', ALIVE), ('no-receives', ANY)]
# The ring is wrong only when somebody writes to it: a client's attack makes the server do so.
PROVOKED = [
    *[(f'register:{w}', DEAD) for w in ('huge', 'long', 'null', 'elsewhere', 'key', 'notwritable')],
    ('register:tiny', ALIVE), ('rekey', ANY), ('greedy', ANY),
]
CLIENT_DEATHS = [f'die:{step}' for step in ('addr', 'qp', 'connect', 'established', 'registered', 'exchanged')] + ['die-busy']
SERVER_DEATHS = [f'die:{step}' for step in ('request', 'qp', 'accept', 'established', 'registered', 'exchanged')] + ['die-busy']


class Hostile(harness.Case):
    FACTOR = 3
    FLOOR = 400  # us: below that a window tells of the scheduler only

    def start(self):
        self.server_ = self.server()
        self.port2 = harness.free_port()
        self.steady = Steady(self, self.server_.port, [self.server_.port, self.port2])
        self.base = p99(self.steady.windows_since(self.steady.mark(), 10))
        self.gauges = self.server_.gauges()
        self.failures, self.done = [], 0

    def attack_args(self, role, port, case):
        return [HOSTILE, role, harness.HOST, str(port), case]

    def outcome(self, out, case, want):
        found = re.search(r'^outcome: (\w+)', out, re.M)
        got = found.group(1) if found else 'nothing'
        if got == 'refused':
            got = DEAD
        if want != ANY and got != want:
            self.failures.append(f'{case}: the connection is {got}, should be {want}')

    def beside(self, case, mark):
        """The well-behaved connection during the attack."""
        if self.steady.dead():
            self.fail(f'{case}: the well-behaved connection failed: {self.steady.errors()}')
        windows = self.steady.windows_since(mark, 3)
        now = p99(windows)
        limit = self.FACTOR * max(self.base, self.FLOOR)
        print(f'  {case}: p99 {now} us (before: {self.base})', flush=True)
        return now <= limit, f'{case}: p99 beside it {now} us, at most {limit}'

    def alive(self, case):
        self.assertTrue(self.server_.alive(), f'{case}: the server died')
        self.assertTrue(self.server_.answers(self.server_.port), f'{case}: the server does not answer')

    def against_server(self, case, want):
        r = subprocess.run(self.attack_args('client', self.server_.port, case), env=raw_env(), capture_output=True,
                           text=True, timeout=60, check=False)
        killed = case.startswith('die')
        if killed:
            self.assertEqual(r.returncode, -9, f'{case}: {r.stderr}')
        else:
            self.assertEqual(r.returncode, 0, f'{case}: {r.stderr}')
            self.outcome(r.stdout, case, want)

    def against_client(self, case, want):
        h = self.track(subprocess.Popen(self.attack_args('server', self.port2, case), env=raw_env(), text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        self.assertEqual(h.stdout.readline(), 'listening\n', case)
        self.steady.command(f'beside {self.port2}')
        try:
            out, err = h.communicate(timeout=60)
        finally:
            h.kill()
        if case.startswith('die'):
            self.assertEqual(h.returncode, -9, f'{case}: {err}')
        else:
            self.assertEqual(h.returncode, 0, f'{case}: {err}')
            self.outcome(out, case, want)
        # The host learns of the end in its own way: whatever it was, the connection is over now.
        line = self.steady.next_line('beside (connected|failed)', 10)
        if line is None:
            self.failures.append(f'{case}: the client\'s connect() came to no end')
        elif line.startswith('beside connected') and self.steady.next_line('beside ended', 10) is None:
            self.failures.append(f'{case}: the client never heard of the end')

    def run_all(self, attack, cases):
        self.start()
        for case, want in cases:
            for turn in range(3):
                mark = self.steady.mark()
                attack(case, want)
                self.alive(case)
                ok, text = self.beside(case, mark)
                if ok:
                    break
            else:
                self.failures.append(text + ' (three times)')
            self.done += 1
        self.settle(self.server_, self.gauges, 60)
        self.steady_settled()
        self.assertEqual(self.failures, [])
        self.assertEqual(self.done, len(cases))

    def steady_settled(self):
        def back():
            p = harness.stat(self.steady.proc.pid)
            return p and (harness.find(p, 'qps') or 0) == 1
        harness.wait('the client to keep one queue pair', back, 60)
        self.assert_carried(self.steady.proc.pid, 'the steady client')

    def test_client_messages(self):
        self.run_all(self.against_server, MESSAGES)

    def test_client_floods(self):
        self.run_all(self.against_server, FLOODS)

    def test_client_private_data(self):
        self.run_all(self.against_server, PRIVATE)

    def test_client_provoked(self):
        self.run_all(self.against_server, PROVOKED + QUIET)

    def test_client_deaths(self):
        self.run_all(self.against_server, [(c, ANY) for c in CLIENT_DEATHS])

    def test_server_messages(self):
        self.run_all(self.against_client, MESSAGES)

    def test_server_floods(self):
        self.run_all(self.against_client, FLOODS)

    def test_server_private_data(self):
        self.run_all(self.against_client, PRIVATE)

    def test_server_quiet(self):
        self.run_all(self.against_client, QUIET + [('reject', ANY), ('ignore', ANY)] + [
            (f'register:{w}', ANY) for w in ('huge', 'long', 'null', 'elsewhere', 'key', 'tiny')])

    def test_server_deaths(self):
        self.run_all(self.against_client, [(c, ANY) for c in SERVER_DEATHS])

    def test_control(self):
        """The attacker without an attack is served like anybody: the tests above fail for the right reasons."""
        self.start()
        self.against_server('chat:100', ALIVE)
        self.against_client('chat', ALIVE)
        self.assertEqual(self.failures, [])

    def test_every_attack_is_used(self):
        names = subprocess.run([HOSTILE, 'list'], env=raw_env(), capture_output=True, text=True, check=True).stdout.split()
        used = {c.split(':')[0] for c, _ in MESSAGES + FLOODS + PRIVATE + QUIET + PROVOKED + [('reject', 0), ('ignore', 0)]}
        used |= {c.split(':')[0] for c in CLIENT_DEATHS + SERVER_DEATHS} | {'chat'}
        self.assertEqual(sorted(set(names) - used), [])
        self.proofs += 1


if __name__ == '__main__':
    if not os.path.exists(HOSTILE):
        raise SystemExit(f'{HOSTILE} has not been built')
    if harness.MODE != 'carried':
        raise unittest.SkipTest('only carried')
    harness.main()

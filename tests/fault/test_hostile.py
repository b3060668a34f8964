# SPDX-License-Identifier: BSD-2-Clause
"""A hostile peer on raw verbs: its connection dies, the program at the other end and everybody beside it do not.

Each attack is made against a shimmed server (which serves a well-behaved shimmed client meanwhile) and, as a server,
against a shimmed client (which has a well-behaved connection of its own beside). After each: the host lives, the steady
connection went on with its 99th percentile within 3x (not where instrumented, or on a device), and nothing of the attacker is left
behind.
"""
import os
import re
import subprocess
import threading

from common import HOSTILE, Case, Steady, harness, p99, raw_env

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
# Between shims with credits: kinds that do not exist, values where none belong, ends and changes at wrong places.
CREDITS = [
    ('credit-chat', ALIVE), ('credit-register', DEAD), ('credit-fin', DEAD), ('credit-overrun', DEAD),
    *[(f'typed:{imm}', DEAD) for imm in (0, '0x10000001', '0x40000000', '0x50000005', '0x60000000', '0x60000001', '0x70000000',
                                         '0x80000000', '0x90000000', '0xa0000000', '0xf0000000', '0x0fffffff')],
    *[(f'keep-typed:{imm}', DEAD) for imm in ('0x70000000', '0x80000000', '0xb0000000')],
    ('typed:0x20000000', ALIVE), ('typed:0x2fffffff:50', ALIVE), ('typed:0x30000000:50', ALIVE),
    ('typed:0x20000000:5000', DEAD), ('typed:0x10000000:5000', DEAD),
    ('credit:0x7fffffff', DEAD), ('credit:0xffffffff', DEAD), ('credit:0:1000', DEAD), ('credit:0:0xffffffff', DEAD),
    *[(f'credit-write:{at}', DEAD) for at in ('0:16', '8', '-8', '4096')],
    ('offer:65536', ALIVE), ('offer:0', DEAD), ('offer:0xffffffff', DEAD), ('offer:65536:5000', DEAD),
]
# Rings on loan. Nothing is lent before more has been read, so these decline what they have not been given.
LOANS = [('lend:unasked', ALIVE), ('lend:unasked:5000', DEAD), ('lend:return', DEAD), ('lend:much', ALIVE), ('lend:much:5000', DEAD),
         ('lend:wrong', DEAD), ('lend:declined', DEAD), ('lend:twice', DEAD)]
# Queue pairs that outlive their connections.
KEPT = [('keep:open', ALIVE), *[(f'keep:{w}', DEAD) for w in ('twice', 'wrong', 'data', 'early')]]
FLOODS = [
    ('flood:keepalive', ANY), ('flood:get', ANY), ('flood:set', ANY), ('flood:register', ANY), ('flood:zero', ANY),
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


class Hostile(Case):
    FACTOR = 3
    FLOOR = 400  # us: below that a window tells of the scheduler only

    def start(self):
        self.server_ = self.server()
        self.steady = Steady(self, self.server_.port, ['15000-31999'])  # what free_port() gives
        self.base = p99(self.steady.windows_since(self.steady.mark(), 10))
        self.gauges = self.server_.gauges()
        self.failures, self.done, self.before = [], 0, self.base

    def outcome(self, out, case, want):
        found = re.search(r'^outcome: (\w+)', out, re.M)
        got = found.group(1) if found else 'nothing'
        if got == 'refused':
            got = DEAD
        if want != ANY and got != want:
            self.failures.append(f'{case}: the connection is {got}, should be {want}')

    def beside(self, case):
        """The well-behaved connection during the attack, or in the first windows after the beginning of a short one."""
        if self.steady.dead():
            self.fail(f'{case}: the well-behaved connection failed: {self.steady.errors()}')
        if harness.ASAN or harness.DEVICE:
            return True, ''  # times say nothing where instrumented or emulated; that everybody lives is what is asked
        windows = self.steady.windows_since(self.began, 4)[1:]  # the first began before the attack
        now = p99(windows[:max(self.ended - self.began, 3)])
        limit = self.FACTOR * max(self.base, self.before, self.FLOOR)
        print(f'  {case}: p99 {now} us (before: {self.base}, {self.before}) {self.note}', flush=True)
        return now <= limit, f'{case}: p99 beside it {now} us, at most {limit}'

    def watch(self, h, case, want):
        """Follows the attacker to its end."""
        self.began = self.ended = self.steady.mark()
        self.note, out = '', ''
        timer = threading.Timer(60 * harness.PATIENCE, h.kill)
        timer.start()
        for line in h.stdout:
            out += line
            if line == 'begins\n':
                self.began = self.ended = self.steady.mark()
            elif line == 'ends\n':
                self.ended = self.steady.mark()
            elif line.startswith(('flood', 'outcome')):
                self.note += line.strip() + ' '
        h.wait()
        in_time = timer.is_alive()
        timer.cancel()
        self.assertTrue(in_time, f'{case}: the attacker hangs: {out}')
        err = h.stderr.read()
        if case.startswith('die'):
            self.assertEqual(h.returncode, -9, f'{case}: {err}')
            return
        self.assertEqual(h.returncode, 0, f'{case}: {err}')
        self.outcome(out, case, want)

    def alive(self, case):
        self.assertTrue(self.server_.alive(), f'{case}: the server died')
        self.assertTrue(self.server_.answers(self.server_.port), f'{case}: the server does not answer')

    def attacker(self, role, port, case):
        return self.track(subprocess.Popen([HOSTILE, role, harness.HOST, str(port), case], env=raw_env(), text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def against_server(self, case, want):
        self.watch(self.attacker('client', self.server_.port, case), case, want)

    def against_client(self, case, want):
        port = harness.free_port()  # one that has refused is left alone for a while
        h = self.attacker('server', port, case)
        self.assertEqual(h.stdout.readline(), 'listening\n', case)
        self.steady.command(f'beside {port}')
        self.watch(h, case, want)
        # The host learns of the end in its own way: whatever it was, the connection is over now.
        line = self.steady.next_line('beside (connected|failed)', 10)
        if line is None:
            self.failures.append(f'{case}: the client\'s connect() came to no end')
        elif line.startswith('beside connected') and self.steady.next_line('beside ended', 10) is None:
            self.failures.append(f'{case}: the client never heard of the end')

    def run_all(self, attack, cases):
        self.start()
        for case, want in cases:
            for turn in range(5):
                # The machine is shared: what it is worth just now is part of "before".
                self.before = p99(self.steady.windows_since(max(self.steady.mark() - 5, 0)))
                attack(case, want)
                self.alive(case)
                ok, text = self.beside(case)
                if ok:
                    break
            else:
                self.failures.append(text + ' (five times)')
            self.done += 1
        for check in (lambda: self.settle(self.server_, self.gauges, 30), self.steady_settled):
            try:
                check()
            except AssertionError as e:
                self.failures.append(str(e))
        self.assertEqual(self.failures, [])
        self.assertEqual(self.done, len(cases))

    def steady_settled(self):
        def back():
            p = harness.stat(self.steady.proc.pid)
            return p and (harness.find(p, 'qps') or 0) == 1
        harness.wait('the client to keep one queue pair', back, 30)
        self.assert_carried(self.steady.proc.pid, 'the steady client')

    def test_client_messages(self):
        self.run_all(self.against_server, MESSAGES)

    def test_client_credits(self):
        self.run_all(self.against_server, CREDITS + KEPT + LOANS)

    def test_server_credits(self):
        self.run_all(self.against_client, CREDITS + LOANS)

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
        used = {c.split(':')[0] for c, _ in MESSAGES + CREDITS + KEPT + LOANS + FLOODS + PRIVATE + QUIET + PROVOKED + [('reject', 0), ('ignore', 0)]}
        used |= {c.split(':')[0] for c in CLIENT_DEATHS + SERVER_DEATHS} | {'chat'}
        self.assertEqual(sorted(set(names) - used), [])
        self.proofs += 1


if __name__ == '__main__':
    if not os.path.exists(HOSTILE):
        raise SystemExit(f'{HOSTILE} has not been built')
    if harness.MODE != 'carried':
        raise SystemExit(77)
    harness.main()

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""vkrdma-stat and vkrdma-run, seen from outside: usage test_tools.py BUILD_FOLDER [unittest arguments]"""

import json
import os
import random
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest

BUILD = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else 'build')
STAT = os.path.join(BUILD, 'vkrdma-stat')
RUN = os.path.join(BUILD, 'vkrdma-run')
FIXTURE = os.path.join(BUILD, 'stat_fixture')
PRELOAD = os.path.join(BUILD, 'fixture', 'libvkrdma.so')

MAGIC, VERSION, CONNS, LISTENERS = 0x31534b56, 2, 65536, 256
CONN, LISTENER, PAGE = 512, 256, 4096
LISTENERS_AT, CONNS_AT = PAGE, PAGE + LISTENERS * LISTENER


def run(argv, env=None, **kw):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False,
                          env={k: v for k, v in (env or os.environ).items()}, stdin=subprocess.DEVNULL, **kw)


def header(pid, high_conn=0, high_listener=0, magic=MAGIC, version=VERSION, size_conn=CONN, program=b'raw'):
    """struct vkr_stats_header"""
    h = struct.pack('<IIIIIIiIq', magic, version, size_conn, LISTENER, CONNS, LISTENERS, pid, 0, 0)
    h += program.ljust(64, b'\0')[:64] + b''.ljust(64, b'\0')
    h += bytes(18 * 8) + bytes(9 * 8)  # closed, gauges
    return h + struct.pack('<II', high_conn, high_listener)


class Fixture:
    def __init__(self, *args):
        self.proc = subprocess.Popen([FIXTURE, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.expect('ready')

    def expect(self, word):
        line = self.proc.stdout.readline().strip()
        if line != word:
            raise AssertionError(f'fixture said {line!r}, not {word!r}')

    def tell(self, line):
        self.proc.stdin.write(line + '\n')
        self.proc.stdin.flush()

    @property
    def pid(self):
        return self.proc.pid

    def end(self):
        self.proc.stdin.close()
        self.proc.stdout.close()
        self.proc.wait(30)


class StatCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix='vkrdma-tools-')
        self.addCleanup(shutil.rmtree, self.dir)

    def made(self):
        f = Fixture('made')
        self.addCleanup(f.end)
        return f

    def raw(self, content):
        path = os.path.join(self.dir, 'map')
        with open(path, 'wb') as out:
            out.write(content)
        f = Fixture('raw', path)
        self.addCleanup(f.end)
        return f

    def raw_for_own_pid(self, build):
        """The header names the pid, which is known only when the process runs: try again with the next one."""
        f = self.raw(b'\0' * PAGE)
        path = f'/proc/{f.pid}/fd'
        for fd in os.listdir(path):
            if 'vkrdma-stats' in os.readlink(f'{path}/{fd}'):
                with open(f'{path}/{fd}', 'r+b') as m:
                    m.truncate(0)
                    m.write(build(f.pid))
        return f

    def json(self, *args, status=0):
        r = run([STAT, '--json', *args])
        self.assertEqual((r.returncode, r.stderr), (status, ''))
        return json.loads(r.stdout)

    def process(self, pid):
        found = [p for p in self.json()['processes'] if p['pid'] == pid]
        self.assertEqual(len(found), 1, f'process {pid}')
        return found[0]


class TestStat(StatCase):
    def test_json(self):
        f = self.made()
        p = self.process(f.pid)
        self.assertEqual((p['program'], p['provider'], p['device']), ('stat_fixture', 'verbs', 'soft0'))
        first, second = p['listeners']
        self.assertEqual(first, {'local': '0.0.0.0:6379', 'transport': 'rdma', 'reason': '', 'rule': '6379', 'fd': 7,
                                 'accepted_rdma': 3, 'accepted_tcp': 1})
        self.assertEqual((second['local'], second['transport'], second['reason']),
                         ('[::1]:6380', 'tcp', 'the port is taken'))
        by_peer = {c['peer']: c for c in p['connections']}
        self.assertEqual(set(by_peer), {'10.0.0.2:1001', '10.0.0.2:1002', '10.0.0.2:1003', '10.0.0.2:1004', ''})
        names = ['bytes_in', 'bytes_out', 'immediates_in', 'immediates_out', 'sends_in', 'sends_out', 'refreshes_in',
                 'refreshes_out', 'stalls', 'rings_in', 'rings_out', 'credits_in', 'credits_out', 'wakes_in', 'wakes_out']
        c = by_peer['10.0.0.2:1001']
        self.assertEqual([c[n] for n in names], list(range(1000, 1015)))
        self.assertEqual((c['local'], c['role'], c['transport'], c['reason'], c['peer_kind'], c['fd'], c['state'],
                          c['rule'], c['mem_mr'], c['mem_queue']),
                         ('10.0.0.1:6379', 'accept', 'rdma', '', 'native', 9, 'open', '6379', 65536, 16384))
        self.assertGreater(c['since'], 1600000000000)
        c = by_peer['10.0.0.2:1002']
        self.assertEqual((c['role'], c['peer_kind']), ('connect', 'shim'))
        c = by_peer['10.0.0.2:1003']
        self.assertEqual((c['transport'], c['reason']), ('tcp', 'no "device"\\??[2J?'))
        self.assertEqual((by_peer['10.0.0.2:1004']['state'], by_peer['10.0.0.2:1004']['transport']),
                         ('connecting', 'none'))
        totals = p['totals']
        self.assertEqual([totals[n] for n in names], [1110 + 3 * i for i in range(15)])
        self.assertEqual((totals['conns_rdma'], totals['conns_tcp'], totals['failed']), (3, 1, 1))
        self.assertEqual((totals['wakeups'], totals['fallbacks']), (42, 1))
        g = p['gauges']
        self.assertEqual((g['qps'], g['mr_bytes'], g['library_fds']), (2, 4096, 1))
        self.assertEqual(g['mem_per_rdma_connection'], 81920)

    def test_totals_keep_closed_connections(self):
        f = self.made()
        before = self.process(f.pid)
        f.tell('close')
        f.expect('done')
        after = self.process(f.pid)
        self.assertEqual(before['totals'], after['totals'])
        self.assertEqual(len(after['connections']), len(before['connections']) - 1)

    def test_text(self):
        f = self.made()
        r = run([STAT, '-p', str(f.pid)])
        self.assertEqual((r.returncode, r.stderr), (0, ''))
        lines = r.stdout.splitlines()
        self.assertRegex(lines[0], rf'^stat_fixture  pid {f.pid}  provider verbs, device soft0  up \d+s$')
        for part in ('listening on 0.0.0.0:6379  rdma and tcp  accepted 3 rdma, 1 tcp  rule 6379',
                     'since start: 3 rdma and 1 tcp connections, 1 failed, 1 fell back to tcp',
                     'by rdma: 1.1K in (1116 immediates), 1.1K out (1119 immediates)',
                     'wake-ups 42', 'the port is taken',
                     'memory: 80.0K an idle connection (MRs 64.0K, queues 16.0K), mean of 2 idle rdma connections'):
            self.assertIn(part, r.stdout)
        row = next(x for x in lines if '10.0.0.2:1001' in x).split()
        self.assertEqual(row, ['10.0.0.1:6379', '10.0.0.2:1001', 'accept', 'rdma', 'native', '1000', '1001', '1002',
                               '1003', '2.0K', '1008', '80.0K'])
        row = next(x for x in lines if '10.0.0.2:1003' in x).split()
        self.assertEqual(row[3:12], ['tcp'] + ['-'] * 8)
        self.assertFalse([c for c in r.stdout if ord(c) < 32 and c != '\n' or ord(c) > 126])

    def test_nothing_found(self):
        r = run([STAT, '-p', str(os.getpid())])
        self.assertEqual(r.returncode, 1)
        self.assertIn('no process', r.stdout)
        self.assertEqual(self.json('-p', str(os.getpid()))['processes'], [])
        self.assertEqual(self.json('-p', '1073741823')['processes'], [])

    def test_watch(self):
        f = self.made()
        argv = [STAT, '-p', str(f.pid), '--json', '--watch', '0.2', '--count', '3']
        lines = run(argv).stdout.splitlines()
        self.assertEqual(len(lines), 3)
        times = [json.loads(x)['time'] for x in lines]
        self.assertGreaterEqual(times[2] - times[0], 390)

    def test_watch_shows_rates(self):
        f = self.made()
        with subprocess.Popen([STAT, '-p', str(f.pid), '--watch=0.5', '-n2'], stdout=subprocess.PIPE, text=True) as p:
            head = []
            while not head or 'now:' not in head[-1]:
                head.append(p.stdout.readline())
            f.tell('more')
            f.expect('done')
            rest = p.stdout.read()
        self.assertEqual(p.returncode, 0)
        self.assertIn('IN/s', rest)
        row = next(x for x in rest.splitlines() if '10.0.0.2:1001' in x).split()
        # 100,000 bytes in about half a second, or a little more on a busy machine
        self.assertRegex(row[5], r'^\d+(\.\d)?K$')
        self.assertGreater(float(row[5][:-1]), 5)
        self.assertLess(float(row[5][:-1]), 250)
        idle = next(x for x in rest.splitlines() if '10.0.0.2:1002' in x).split()
        self.assertEqual(idle[5], '0')
        self.assertIn('mean of 1 idle rdma connections', rest)

    def test_child_with_the_parents_map_is_not_shown(self):
        f = self.made()
        f.tell('fork')
        child = int(f.proc.stdout.readline())
        f.expect('done')
        self.assertEqual(self.json('-p', str(child))['processes'], [])
        self.process(f.pid)

    def test_usage(self):
        for args in (['--nonsense'], ['extra'], ['--pid', 'x'], ['--pid', '-1'], ['--pid'], ['--watch=0'],
                     ['--watch=x'], ['--count', '0']):
            r = run([STAT, *args])
            self.assertEqual((args, r.returncode, r.stdout), (args, 2, ''))
            self.assertEqual(r.stderr.count('\n'), 1, r.stderr)
        for args in (['--help'], ['--version']):
            r = run([STAT, *args])
            self.assertEqual((r.returncode, r.stderr), (0, ''))
            self.assertIn('vkrdma-stat', r.stdout)

    def test_full_disk(self):
        f = self.made()
        with open('/dev/full', 'w', encoding='ascii') as full:
            r = subprocess.run([STAT, '--json', '-p', str(f.pid)], stdout=full, stderr=subprocess.PIPE, timeout=60,
                               check=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn(b'standard output', r.stderr)


class TestHostileMaps(StatCase):
    def check(self, f):
        """Neither view fails, whatever they show."""
        out = self.json('-p', str(f.pid))
        r = run([STAT, '-p', str(f.pid)])
        self.assertIn(r.returncode, (0, 1), r.stderr)
        self.assertEqual(r.stderr, '')
        return out

    def test_not_a_map(self):
        for content in (b'', b'x', b'\0' * PAGE, b'\xff' * PAGE):
            out = self.check(self.raw(content))
            self.assertEqual((out['processes'], out['unreadable']), ([], 1))

    def test_another_version(self):
        for kw in ({'version': VERSION + 1}, {'version': VERSION - 1}, {'size_conn': 0}, {'size_conn': 2**32 - 1}):
            out = self.check(self.raw_for_own_pid(lambda pid, kw=kw: header(pid, **kw).ljust(PAGE, b'\0')))
            self.assertEqual((out['processes'], out['unreadable']), ([], 1))

    def test_another_pid(self):
        out = self.check(self.raw(header(1).ljust(PAGE, b'\0')))
        self.assertEqual(out['processes'], [])

    def test_header_alone(self):
        out = self.check(self.raw_for_own_pid(lambda pid: header(pid, 2**32 - 1, 2**32 - 1)))
        self.assertEqual(len(out['processes']), 1)
        self.assertEqual(out['processes'][0]['connections'], [])

    def test_strings_without_end(self):
        def build(pid):
            return header(pid, 2, 1, program=b'\x80' * 64).ljust(PAGE, b'\0') + b'\x1b' * LISTENER + \
                bytes(LISTENER * (LISTENERS - 1)) + b'\xff' * 2 * CONN
        out = self.check(self.raw_for_own_pid(build))
        p = out['processes'][0]
        self.assertEqual(p['program'], '?' * 64)
        self.assertEqual([c['reason'] for c in p['connections']], ['?' * 96] * 2)
        self.assertEqual(p['connections'][0]['bytes_in'], 2**64 - 1)
        self.assertEqual(p['totals']['bytes_in'], 2**64 - 2)
        self.assertEqual(p['listeners'][0]['reason'], '?' * 96)

    def test_everything_in_use(self):
        def build(pid):
            return header(pid, CONNS, LISTENERS).ljust(PAGE, b'\0') + b'\1' * (LISTENER * LISTENERS + CONN * CONNS)
        out = self.check(self.raw_for_own_pid(build))
        self.assertEqual(len(out['processes'][0]['connections']), CONNS)
        self.assertEqual(len(out['processes'][0]['listeners']), LISTENERS)

    def test_cut_short_within_a_slot(self):
        def build(pid):
            return header(pid, 10, 10).ljust(PAGE, b'\0') + b'\1' * (LISTENER * LISTENERS + CONN * 2 + 100)
        f = self.raw_for_own_pid(build)
        self.assertEqual(len(self.check(f)['processes'][0]['connections']), 2)
        f.tell(f'truncate {CONNS_AT + CONN}')
        f.expect('done')
        self.assertEqual(len(self.check(f)['processes'][0]['connections']), 1)

    def test_random(self):
        for seed in range(40):
            rnd = random.Random(seed)

            def build(pid, rnd=rnd):
                body = bytearray(header(pid, rnd.choice((0, 3, 70, 2**31, 2**32 - 1)), rnd.randrange(300))
                                 .ljust(PAGE, b'\0'))
                body += rnd.randbytes(LISTENER * LISTENERS + CONN * 80)
                for _ in range(rnd.randrange(4)):
                    body[rnd.randrange(24, 600)] = rnd.randrange(256)
                return bytes(body[:rnd.choice((len(body), rnd.randrange(len(body))))])
            with self.subTest(seed=seed):
                self.check(self.raw_for_own_pid(build))

    def test_it_does_not_hide_others(self):
        hostile = self.raw(b'\xff' * PAGE)
        f = self.made()
        self.process(f.pid)
        self.assertEqual(self.json()['unreadable'] >= 1, True)
        self.assertIsNone(hostile.proc.poll())


SHOW = 'import os,sys;print({k:v for k,v in os.environ.items() if k.startswith(("VKRDMA_","LD_PRELOAD"))},sys.argv[1:])'


def minimal_elf(interp=False, go=False, klass=2):
    """An ELF header with program headers; need not run."""
    headers = []
    if interp:
        headers.append((3, 0, b''))
    note = struct.pack('<III', 4, 4, 4) + b'Go\0\0' + b'abcd'
    if go:
        headers.append((4, 64 + 56 * (len(headers) + 1), note))
    ident = b'\x7fELF' + bytes((klass, 1, 1)) + bytes(9)
    out = ident + struct.pack('<HHIQQQIHHHHHH', 2, 62, 1, 0, 64, 0, 0, 64, 56, len(headers), 0, 0, 0)
    for kind, offset, data in headers:
        out += struct.pack('<IIQQQQQQ', kind, 4, offset, 0, 0, len(data), len(data), 4)
    return out + (note if go else b'')


class TestRun(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix='vkrdma-tools-')
        self.addCleanup(shutil.rmtree, self.dir)
        self.run_tool = os.path.join(self.dir, 'vkrdma-run')
        self.lib = os.path.join(self.dir, 'libvkrdma.so')
        shutil.copy(RUN, self.run_tool)
        shutil.copy(PRELOAD, self.lib)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(('VKRDMA_', 'LD_PRELOAD'))}
        # a preloaded library comes before the sanitizer in a tool built with one
        self.env['ASAN_OPTIONS'] = 'verify_asan_link_order=0'

    def tool(self, *args, env=None):
        return run([self.run_tool, *args], env={**self.env, **(env or {})})

    def shown(self, *args, env=None):
        r = self.tool(*args, sys.executable, '-c', SHOW, env=env)
        self.assertEqual((r.returncode, r.stderr), (0, 'fixture loaded\n'))
        return r.stdout.strip()

    def file(self, name, content, mode=0o755):
        path = os.path.join(self.dir, name)
        with open(path, 'wb') as out:
            out.write(content)
        os.chmod(path, mode)
        return path

    def test_variables(self):
        self.assertEqual(self.shown('--listen', '6379'), str({'VKRDMA_LISTEN': '6379', 'LD_PRELOAD': self.lib}) + ' []')
        out = self.shown('-l', '1', '--listen=2', '-c', '10.0.0.0/8:3', '--soft', '--fallback', 'none', '--log', 'info')
        for part in ("'VKRDMA_LISTEN': '1,2'", "'VKRDMA_CONNECT': '10.0.0.0/8:3'", "'VKRDMA_PROVIDER': 'soft'",
                     "'VKRDMA_FALLBACK': 'none'", "'VKRDMA_LOG': 'info'"):
            self.assertIn(part, out)

    def test_environment_is_kept(self):
        out = self.shown('-l', '1', env={'VKRDMA_LISTEN': '9', 'VKRDMA_CONNECT': '8'})
        self.assertIn("'VKRDMA_LISTEN': '1'", out)
        self.assertIn("'VKRDMA_CONNECT': '8'", out)
        self.assertIn("'VKRDMA_LISTEN': '9'", self.shown(env={'VKRDMA_LISTEN': '9'}))

    def test_preload_is_appended(self):
        other = os.path.join(self.dir, 'other.so')
        shutil.copy(PRELOAD, other)
        r = self.tool('-l', '1', sys.executable, '-c', SHOW, env={'LD_PRELOAD': other})
        self.assertIn(f"'LD_PRELOAD': '{other}:{self.lib}'", r.stdout)
        r = self.tool('-l', '1', sys.executable, '-c', SHOW, env={'LD_PRELOAD': f'{self.lib} {other}'})
        self.assertIn(f"'LD_PRELOAD': '{self.lib} {other}'", r.stdout)

    def test_arguments_of_the_program(self):
        r = self.tool('-l', '1', sys.executable, '-c', SHOW, '--listen', '5', '--help')
        self.assertIn("'VKRDMA_LISTEN': '1'", r.stdout)
        self.assertIn("['--listen', '5', '--help']", r.stdout)
        r = self.tool('-l', '1', '--', sys.executable, '-c', SHOW)
        self.assertEqual(r.returncode, 0)

    def test_status_of_the_program(self):
        self.assertEqual(self.tool('-l', '1', 'sh', '-c', 'exit 77').returncode, 77)
        r = self.tool('-l', '1', 'no-such-program-here')
        self.assertEqual((r.returncode, r.stderr.count('\n')), (127, 1))
        r = self.tool('-l', '1', self.file('data', b'\0', 0o644))
        self.assertEqual((r.returncode, r.stderr.count('\n')), (126, 1))

    def test_usage(self):
        for args, text in (([], 'no program'), (['true'], 'no port was given'), (['--listen'], 'argument'),
                           (['--listen', 'x', 'true'], 'VKRDMA_LISTEN: "x" at character 1'),
                           (['--listen', '', 'true'], 'empty list'),
                           (['--connect', '1,70000', 'true'], '"70000" at character 3'),
                           (['--fallback', 'maybe', '-l', '1', 'true'], 'VKRDMA_FALLBACK'),
                           (['--log', 'loud', '-l', '1', 'true'], 'VKRDMA_LOG'),
                           (['--nonsense', 'true'], 'nonsense'), (['--check', 'true'], '--check takes no program')):
            r = self.tool(*args)
            self.assertEqual((args, r.returncode, r.stdout), (args, 2, ''))
            self.assertEqual(r.stderr.count('\n'), 1, r.stderr)
            self.assertIn(text, r.stderr)
        r = self.tool('true', env={'VKRDMA_RING': 'big', 'VKRDMA_LISTEN': '1'})
        self.assertEqual(r.returncode, 2)
        self.assertIn('VKRDMA_RING', r.stderr)
        for args in (['--help'], ['--version']):
            r = self.tool(*args)
            self.assertEqual((r.returncode, r.stderr), (0, ''))
            self.assertIn('vkrdma-run', r.stdout)

    def test_library_missing(self):
        os.unlink(self.lib)
        r = self.tool('-l', '1', 'true')
        if r.returncode == 0:
            self.skipTest('libvkrdma is installed on this machine')
        self.assertEqual((r.returncode, r.stderr.count('\n')), (2, 1))
        self.assertIn('libvkrdma.so was not found', r.stderr)

    def test_library_in_a_folder_with_a_blank(self):
        folder = os.path.join(self.dir, 'a b')
        os.mkdir(folder)
        for path in (self.run_tool, self.lib):
            shutil.copy(path, folder)
        r = run([os.path.join(folder, 'vkrdma-run'), '-l', '1', 'true'], env=self.env)
        self.assertEqual((r.returncode, r.stderr.count('\n')), (2, 1))
        self.assertIn('blank', r.stderr)

    def warning(self, path):
        r = self.tool('-l', '1', path)
        lines = [x for x in r.stderr.splitlines() if 'warning' in x]
        return lines[0] if lines else ''

    def test_programs_out_of_reach(self):
        static = self.file('static', minimal_elf())
        self.assertIn('linked statically', self.warning(static))
        self.assertIn('Go program', self.warning(self.file('go', minimal_elf(interp=True, go=True))))
        self.assertIn('32-bit', self.warning(self.file('old', minimal_elf(klass=1))))
        self.assertIn('linked statically', self.warning(self.file('script', f'#! {static} -x\n'.encode())))
        self.assertEqual(self.warning(self.file('dynamic', minimal_elf(interp=True))), '')
        self.assertEqual(self.warning(self.file('sh', b'#!/bin/sh\nexit 0\n')), '')
        self.assertEqual(self.warning(self.file('loop', f'#!{self.dir}/loop\n'.encode())), '')
        for cut in (4, 20, 63, 64):
            self.warning(self.file('cut', minimal_elf(interp=True, go=True)[:cut]))

    @unittest.skipUnless(os.getuid() == 0, 'needs root to make a program of another user')
    def test_setuid(self):
        path = os.path.join(self.dir, 'true')
        shutil.copy(shutil.which('true'), path)
        os.chown(path, 65534, 65534)
        os.chmod(path, 0o755 | stat.S_ISUID)
        os.chmod(self.dir, 0o755)
        self.assertIn('setuid', self.warning(path))
        os.chmod(path, 0o755)
        self.assertEqual(self.warning(path), '')


class TestCheck(unittest.TestCase):
    def lines(self, *args):
        r = run([RUN, '--check', *args])
        self.assertEqual(r.stderr, '')
        lines = r.stdout.splitlines()
        for line in lines[:-1]:
            self.assertRegex(line, r'^(ok|note|missing) +(libvkrdma|libraries|files|device|port|address|memlock|soft) ')
        missing = [x for x in lines if x.startswith('missing')]
        self.assertEqual(r.returncode, 1 if missing else 0)
        self.assertRegex(lines[-1], '^RDMA does not work here' if missing else '^RDMA works here')
        for line in missing:
            self.assertRegex(line, ' -> .', 'a step that fails says what to do')
        return lines

    def test_verbs(self):
        lines = self.lines()
        steps = {x.split()[1] for x in lines[:-1]}
        self.assertTrue({'libvkrdma', 'libraries', 'memlock', 'soft'} <= steps, steps)
        if not os.path.isdir('/sys/class/infiniband'):
            self.assertTrue([x for x in lines if x.startswith('missing  device')], lines)

    def test_soft(self):
        lines = self.lines('--soft')
        self.assertEqual([x.split()[1] for x in lines[:-1]], ['libvkrdma', 'soft'])
        if os.path.exists(os.path.join(BUILD, 'libvkrdma-soft.so')):
            self.assertTrue(lines[1].startswith('ok '), lines)


if __name__ == '__main__':
    unittest.main(verbosity=1)
